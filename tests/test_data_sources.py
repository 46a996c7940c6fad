"""The checks before a dataset is stored, the choice between sources, and the command line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import formats, sources, store
from edge_hpcr.bench.datasets.registry import DATASETS
from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError

# The checks before storing


def _checked(**change: object) -> None:
    info = replace(
        DATASETS["fashion_mnist"], classes=2, train_per_class=2, test_per_class=1, content_sha256=None
    )
    arrays = data.Dataset(
        np.zeros((4, 28, 28), np.uint8),
        np.array([0, 1, 0, 1]),
        np.zeros((2, 28, 28), np.uint8),
        np.array([0, 1]),
        ("a", "b"),
    )
    expected = change.pop("content_sha256", None)
    sources.check("small", replace(info, content_sha256=expected), replace(arrays, **change))


def test_the_checks_accept_what_is_right_and_name_what_is_wrong():
    _checked()
    for change, complaint in (
        ({"train_labels": np.array([0, 0, 0, 1])}, "3 train images of class 0 instead of 2"),
        ({"test_labels": np.array([0, 2])}, "test labels outside 0 to 1"),
        ({"test_labels": np.array([0])}, "each with a label"),
        ({"train_images": np.zeros((4, 27, 28), np.uint8)}, "images of 28x28"),
        ({"class_names": ("a",)}, "1 class names instead of 2"),
        ({"content_sha256": "0" * 64}, "not the official ones"),
    ):
        with pytest.raises(UserError, match=complaint):
            _checked(**change)


def test_the_content_hash_sees_every_image_label_and_shape():
    images, labels = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3), np.array([0, 1])
    whole = data.Dataset(images, labels, images, labels, ("a", "b"))
    changed = images.copy()
    changed[1, 1, 1, 2] ^= 1
    others = [
        replace(whole, train_images=changed),
        replace(whole, test_images=changed),
        replace(whole, train_labels=labels[::-1]),
        replace(whole, test_labels=labels[::-1]),
        replace(whole, train_images=images.reshape(2, 2, 3, 2)),
    ]
    hashes = {formats.content_hash(arrays) for arrays in [whole, *others]}
    assert len(hashes) == 6


# Choosing a source, and the command line


@pytest.mark.parametrize(
    ("name", "source", "folder", "complaint"),
    [
        ("cifar10", "debian", None, r"cifar10 has no source 'debian'; it has: auto, download, npm, folder"),
        ("cifar10", "usb", None, r"unknown source 'usb': choose one of auto"),
        ("cifar10", "folder", None, r"--source folder --folder DIR"),
        ("cifar10", "npm", ".", r"--folder goes with the source 'folder', not with 'npm'"),
        ("mini_imagenet", "auto", None, r"no official address.*--source folder --folder DIR"),
        ("mnist", "folder", "absent", r"absent: no such folder"),
        ("digits", "auto", None, r"digits is built in"),
    ],
)
def test_a_source_that_cannot_be_used_is_an_error_that_says_what_can(
    tmp_path, name, source, folder, complaint
):
    with pytest.raises(UserError, match=complaint):
        data.get(name, tmp_path, source, Path(folder) if folder else None)
    assert not (tmp_path / name).exists()


def _command(*words: str) -> int:
    return main(["data", *words])


def test_the_command_says_that_digits_need_no_fetching(tmp_path, capsys):
    assert _command("get", "digits", "--root", str(tmp_path)) == 0
    assert "nothing to fetch" in capsys.readouterr().out


def test_the_command_lists_every_dataset_and_whether_it_is_there(tmp_path, capsys):
    arrays = data.Dataset(*[np.zeros(1, np.int64)] * 4, ("a",))
    store.write(tmp_path, "cifar10", arrays, "folder")
    assert _command("list", "--root", str(tmp_path)) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(DATASETS) < set(lines)
    assert (
        " there " in lines["cifar10"]
        and " not fetched " in lines["mnist"]
        and " built in " in lines["digits"]
    )


def test_a_whole_dataset_is_left_alone_and_a_damaged_one_is_fetched_again(tmp_path, capsys):
    # Official sizes, because `get` knows no others: MNIST's shape with few images is enough for `load`.
    arrays = data.Dataset(
        np.zeros((10, 28, 28), np.uint8),
        np.arange(10, dtype=np.int64),
        np.zeros((10, 28, 28), np.uint8),
        np.arange(10, dtype=np.int64),
        formats.MNIST_NAMES,
    )
    stored = store.write(tmp_path, "mnist", arrays, "folder")
    assert _command("get", "mnist", "--root", str(tmp_path)) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(stored) and "already there and whole" in printed.err
    (stored / "test_labels.npy").write_bytes(b"damaged")
    assert _command("get", "mnist", "--root", str(tmp_path), "--folder", str(tmp_path / "absent")) == 2
    complaint = capsys.readouterr().err
    assert "fetching it again" in complaint and "absent: no such folder" in complaint
    assert stored.exists()  # nothing is taken away before there is something better
