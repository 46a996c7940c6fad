"""MiniImageNet and TinyImageNet from the folders that people have."""

from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from edge_hpcr.bench.datasets.registry import DatasetInfo
from edge_hpcr.bench.datasets.safe_pickle import read_pickle
from edge_hpcr.bench.datasets.store import Arrays
from edge_hpcr.common.errors import UserError

SPLITS = ("train", "val", "test")  # MiniImageNet's: disjoint classes, put together here
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


def read_mini(folder: Path, info: DatasetInfo) -> Arrays:
    """MiniImageNet as pickles or as an image folder.

    All classes of the three splits together (train, val, test; by name within each). Of each class's images,
    in the order of the file, the first are for training and the rest for testing.
    """
    assert info.train_per_class is not None and info.test_per_class is not None
    if all((folder / _cache_name(split)).is_file() for split in SPLITS):
        classes = _mini_pickles(folder, info.side)
    elif all((folder / split).is_dir() for split in SPLITS):
        classes = _mini_images(folder, info.side, info.train_per_class + info.test_per_class)
    else:
        raise UserError(
            f"{folder}: not MiniImageNet: it needs either the folders train, val and test with "
            f"<class>/*.jpg, or {', '.join(_cache_name(split) for split in SPLITS)}. {info.where}"
        )
    if len(classes) != info.classes:
        raise UserError(f"{folder}: {len(classes)} classes instead of {info.classes}")
    for name, images in classes.items():
        _check_count(folder, name, len(images), info.train_per_class + info.test_per_class)
    cut = info.train_per_class
    return _arrays(
        [(images[:cut], images[cut:]) for images in classes.values()],
        tuple(classes),
    )


def read_tiny(folder: Path, info: DatasetInfo) -> Arrays:
    """TinyImageNet's official folder; its validation images, which have labels, are the test set."""
    assert info.train_per_class is not None and info.test_per_class is not None
    annotations = folder / "val" / "val_annotations.txt"
    if not (folder / "train").is_dir() or not annotations.is_file():
        raise UserError(
            f"{folder}: not TinyImageNet: it needs train/<class>/images, val/images and "
            "val/val_annotations.txt"
        )
    ids = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    if len(ids) != info.classes:
        raise UserError(f"{folder / 'train'}: {len(ids)} classes instead of {info.classes}")
    test: dict[str, list[Path]] = {name: [] for name in ids}
    for number, line in enumerate(annotations.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in test or Path(fields[0]).name != fields[0]:
            raise UserError(f"{annotations}: line {number} names no image and known class")
        test[fields[1]].append(folder / "val" / "images" / fields[0])
    train = {name: _image_files(folder / "train" / name / "images") for name in ids}
    for name in ids:
        _check_count(folder / "train", name, len(train[name]), info.train_per_class)
        _check_count(folder / "val", name, len(test[name]), info.test_per_class)
    with _progress(info.classes * (info.train_per_class + info.test_per_class)) as bar:
        pairs = [(_decode(train[name], info.side, bar), _decode(test[name], info.side, bar)) for name in ids]
    return _arrays(pairs, _spoken_names(folder / "words.txt", ids))


def _cache_name(split: str) -> str:
    return f"mini-imagenet-cache-{split}.pkl"


def _mini_pickles(folder: Path, side: int) -> dict[str, np.ndarray]:
    classes: dict[str, np.ndarray] = {}
    for split in SPLITS:
        path = folder / _cache_name(split)
        content = read_pickle(path)
        images = content.get("image_data") if isinstance(content, dict) else None
        members = content.get("class_dict") if isinstance(content, dict) else None
        if not isinstance(images, np.ndarray) or not isinstance(members, dict):
            raise UserError(f"{path}: it needs an array 'image_data' and a dictionary 'class_dict'")
        if images.dtype != np.uint8 or images.shape[1:] != (side, side, 3):
            raise UserError(f"{path}: images {images.dtype} {images.shape} instead of uint8 {side}x{side}x3")
        for name in sorted(members, key=str):
            try:
                indices = np.asarray(members[name])
            except ValueError as error:  # a list of lists of unequal lengths
                raise UserError(f"{path}: class {name!r} does not list images of this file") from error
            if indices.ndim != 1 or indices.dtype.kind not in "iu" or not _all_below(indices, len(images)):
                raise UserError(f"{path}: class {name!r} does not list images of this file")
            _add_class(classes, str(name), np.asarray(images)[indices], path)
    return classes


def _mini_images(folder: Path, side: int, per_class: int) -> dict[str, np.ndarray]:
    files: dict[str, list[Path]] = {}
    for split in SPLITS:
        for path in sorted(path for path in (folder / split).iterdir() if path.is_dir()):
            images = _image_files(path)
            _check_count(folder / split, path.name, len(images), per_class)  # before an hour of decoding
            _add_class(files, path.name, images, path)
    with _progress(sum(map(len, files.values()))) as bar:
        return {name: _decode(paths, side, bar) for name, paths in files.items()}


def _add_class(classes: dict[str, Any], name: str, content: Any, path: Path) -> None:
    if name in classes:
        raise UserError(
            f"{path}: class {name!r} is in more than one of {', '.join(SPLITS)}; they must be disjoint"
        )
    classes[name] = content


def _all_below(indices: np.ndarray, end: int) -> bool:
    return indices.size > 0 and int(indices.min()) >= 0 and int(indices.max()) < end


def _check_count(folder: Path, name: str, found: int, expected: int) -> None:
    if found != expected:
        raise UserError(f"{folder}: class {name} has {found} images instead of {expected}")


def _image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)


def _decode(paths: list[Path], side: int, bar: tqdm) -> np.ndarray:
    images = np.empty((len(paths), side, side, 3), dtype=np.uint8)
    for index, path in enumerate(paths):
        images[index] = _image(path, side)
        bar.update()
    return images


def _image(path: Path, side: int) -> np.ndarray:
    try:
        encoded = np.fromfile(path, dtype=np.uint8)  # not cv2.imread, which cannot open every path on Windows
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(encoded, flags) if encoded.size else None
    except cv2.error as error:
        raise UserError(f"{path}: damaged: not an image OpenCV reads ({error.err})") from error
    if image is None:
        raise UserError(f"{path}: damaged: not an image")
    if image.shape[:2] != (side, side):
        image = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    return image[..., ::-1]


def _progress(images: int) -> tqdm:
    return tqdm(desc="reading images", total=images, unit="img")


def _arrays(pairs: list[tuple[np.ndarray, np.ndarray]], names: tuple[str, ...]) -> Arrays:
    """Class after class, as (training, test) images, with the labels 0, 1, ..."""
    return Arrays(
        np.concatenate([train for train, _ in pairs]),
        np.repeat(np.arange(len(pairs), dtype=np.int64), [len(train) for train, _ in pairs]),
        np.concatenate([test for _, test in pairs]),
        np.repeat(np.arange(len(pairs), dtype=np.int64), [len(test) for _, test in pairs]),
        names,
    )


def _spoken_names(words: Path, ids: list[str]) -> tuple[str, ...]:
    """What words.txt calls each id first; the id itself without it, and behind a name that two share."""
    if not words.is_file():
        return tuple(ids)
    lines = (
        line.split("\t", 1)
        for line in words.read_text(encoding="utf-8", errors="replace").splitlines()
        if "\t" in line
    )
    first = {wnid: text.split(",")[0].strip() for wnid, text in lines}
    names = [first.get(wnid, wnid) for wnid in ids]
    uses = Counter(names)
    return tuple(
        name if uses[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, ids, strict=True)
    )
