"""Datasets on disk: whole or absent, checked on loading, each complaint naming the file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import store
from edge_hpcr.bench.datasets.registry import DatasetInfo
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256

SMALL = DatasetInfo(
    classes=3, tasks=3, side=8, train_per_class=4, test_per_class=2, sources=("folder",), description="small"
)


def _arrays(grey: bool = False, seed: int = 0) -> data.Dataset:
    rng = np.random.default_rng(seed)
    shape = (8, 8) if grey else (8, 8, 3)
    return data.Dataset(
        rng.integers(0, 256, (12, *shape), dtype=np.uint8),
        np.arange(12, dtype=np.int64) % 3,
        rng.integers(0, 256, (6, *shape), dtype=np.uint8),
        np.arange(6, dtype=np.int64) % 3,
        ("ant", "bee", "cat"),
    )


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    store.write(tmp_path, "small", _arrays(), "folder")
    return tmp_path


def test_what_is_written_is_read_back(stored):
    loaded, written = store.read(stored, "small", SMALL), _arrays()
    for key in store.ARRAYS:
        np.testing.assert_array_equal(getattr(loaded, key), getattr(written, key))
        assert getattr(loaded, key).dtype == getattr(written, key).dtype
    assert loaded.class_names == ("ant", "bee", "cat")
    assert loaded.name == "small"
    meta = json.loads((stored / "small" / "meta.json").read_text())
    assert meta["source"] == "folder" and set(meta["files"]) == {f"{key}.npy" for key in store.ARRAYS}


def test_grey_images_get_three_equal_channels(tmp_path):
    store.write(tmp_path, "small", _arrays(grey=True), "folder")
    loaded = store.read(tmp_path, "small", SMALL)
    assert loaded.train_images.shape == (12, 8, 8, 3)
    for channel in range(3):
        np.testing.assert_array_equal(loaded.train_images[..., channel], _arrays(grey=True).train_images)


def test_writing_to_a_loaded_array_does_not_change_the_file(stored):
    images = store.read(stored, "small", SMALL).train_images
    images[:] = 0
    np.testing.assert_array_equal(store.read(stored, "small", SMALL).train_images, _arrays().train_images)


def test_a_stored_dataset_is_replaced_by_a_complete_new_one(stored):
    store.write(stored, "small", _arrays(seed=1), "folder")
    loaded = store.read(stored, "small", SMALL)
    np.testing.assert_array_equal(loaded.train_images, _arrays(seed=1).train_images)


def test_leftovers_of_a_killed_run_are_neither_read_nor_in_the_way(tmp_path):
    leftover = store.partial_folder(tmp_path, "small") / "arrays"
    leftover.mkdir()
    (leftover / "train_images.npy").write_bytes(b"half")
    with pytest.raises(UserError, match="data get small"):
        store.read(tmp_path, "small", SMALL)
    store.write(tmp_path, "small", _arrays(), "folder")
    assert store.read(tmp_path, "small", SMALL).train_labels.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize("key", store.ARRAYS)
@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_a_damaged_file_is_named(stored, key, damage):
    path = stored / "small" / f"{key}.npy"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        content[-1] ^= 1  # the size stays: only the hash can tell
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{key}\.npy: .*damaged.*data get small"):
        store.read(stored, "small", SMALL)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 99}', '{"format": 1, "name": "small"}', b"\xff\xfe".decode("latin1")]
)
def test_a_damaged_description_is_named(stored, text):
    (stored / "small" / "meta.json").write_text(text, encoding="latin1")
    with pytest.raises(UserError, match=r"meta\.json: .*data get small"):
        store.read(stored, "small", SMALL)


def test_a_description_that_omits_a_file_is_named(stored):
    path = stored / "small" / "meta.json"
    meta = json.loads(path.read_text())
    del meta["files"]["test_labels.npy"]
    path.write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.json: damaged: it does not describe test_labels\.npy"):
        store.read(stored, "small", SMALL)


@pytest.mark.parametrize(
    ("change", "file"),
    [
        ({"train_labels": np.full(12, 3)}, "train_labels"),  # a class too many
        ({"test_labels": np.full(6, -1)}, "test_labels"),
        ({"train_labels": np.zeros(11, np.int64)}, "train_labels"),  # one label too few
        ({"train_labels": np.zeros(12, np.int32)}, "train_labels"),
        ({"test_images": np.zeros((6, 9, 8, 3), np.uint8)}, "test_images"),
        ({"train_images": np.zeros((12, 8, 8, 3), np.float32)}, "train_images"),
    ],
)
def test_arrays_of_the_wrong_kind_are_named_although_their_hash_is_right(tmp_path, change, file):
    store.write(tmp_path, "small", replace(_arrays(), **change), "folder")
    with pytest.raises(UserError, match=rf"{file}\.npy: damaged"):
        store.read(tmp_path, "small", SMALL)


def test_an_array_of_python_objects_is_not_unpickled(stored):
    path = stored / "small" / "train_images.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    meta_path = stored / "small" / "meta.json"
    meta = json.loads(meta_path.read_text())
    meta["files"][path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    meta_path.write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"train_images\.npy: missing or damaged"):
        store.read(stored, "small", SMALL)


def test_a_root_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        store.write(tmp_path / "file" / "root", "small", _arrays(), "folder")


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    for call in (data.load, data.get):
        with pytest.raises(UserError, match=r"unknown dataset 'cifar11'.*digits.*cifar10.*tiny_imagenet"):
            call("cifar11", tmp_path)


@pytest.mark.parametrize("name", [name for name in data.DATASETS if name != "digits"])
def test_a_missing_dataset_says_the_command_that_gets_it(tmp_path, name):
    with pytest.raises(UserError, match=rf"`python -m edge_hpcr data get {name} --root {tmp_path}`"):
        data.load(name, tmp_path)


def test_the_root_comes_from_the_environment_or_is_datasets(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGE_HPCR_DATA", str(tmp_path))
    assert data.default_root() == tmp_path
    with pytest.raises(UserError, match=str(tmp_path)):
        data.load("cifar10")
    monkeypatch.delenv("EDGE_HPCR_DATA")
    assert data.default_root() == Path("datasets")


def test_the_digits_are_the_real_ones_split_by_class():
    from sklearn.datasets import load_digits

    digits, source = data.load("digits"), load_digits()
    assert digits.train_images.shape == (1433, 8, 8, 3) and digits.test_images.shape == (364, 8, 8, 3)
    assert digits.train_images.dtype == np.uint8 and digits.train_labels.dtype == np.int64
    assert digits.class_names == tuple("0123456789")
    assert digits.train_images.max() == 255 and digits.train_images.min() == 0
    for label in range(10):
        members = source.images[source.target == label]
        cut = len(members) * 80 // 100
        for images, labels, part in (
            (digits.train_images, digits.train_labels, members[:cut]),
            (digits.test_images, digits.test_labels, members[cut:]),
        ):
            ours = images[labels == label].astype(float) * 16 / 255
            assert np.abs(ours[..., 0] - part).max() < 0.04  # half a grey level of 255, in sixteenths
            np.testing.assert_array_equal(ours[..., 0], ours[..., 2])
    again = data.load("digits")
    np.testing.assert_array_equal(again.train_images, digits.train_images)


def test_the_default_tasks_divide_the_classes_as_the_benchmark_says():
    expected = {
        "digits": (10, 5, 8),
        "mnist": (10, 5, 28),
        "fashion_mnist": (10, 5, 28),
        "cifar10": (10, 5, 32),
        "cifar100": (100, 10, 32),
        "mini_imagenet": (100, 10, 84),
        "tiny_imagenet": (200, 20, 64),
    }
    assert {name: (info.classes, info.tasks, info.side) for name, info in data.DATASETS.items()} == expected
