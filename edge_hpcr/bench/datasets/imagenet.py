"""MiniImageNet and TinyImageNet from the folders that people have."""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from edge_hpcr.bench.datasets.registry import Dataset, DatasetInfo
from edge_hpcr.bench.datasets.safe_pickle import read_pickle
from edge_hpcr.bench.datasets.store import within
from edge_hpcr.common.errors import UserError

SPLITS = ("train", "val", "test")
PICKLES = tuple(f"mini-imagenet-cache-{split}.pkl" for split in SPLITS)
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
Files = dict[str, list[Path]]  # of each class, in the order of their names


def read_mini(folder: Path, info: DatasetInfo) -> Dataset:
    """MiniImageNet as pickles, or as an image folder in one of two layouts.

    In few-shot learning, train, val and test have classes of their own. All are put together (by name within each),
    and of each class's images, in the order of the file, the first are for training and the rest for testing. In
    continual learning, train and val (or test) hold the same classes: the images of train are for training.
    """
    if all((folder / name).is_file() for name in PICKLES):
        return _mini_pickles(folder, info)
    found = {split: _class_files(folder / split) for split in SPLITS if (folder / split).is_dir()}
    train = found.get("train", {})
    for other in ("val", "test"):
        if train and train.keys() == found.get(other, {}).keys():
            _check_counts(folder / "train", train, info.train_per_class)
            _check_counts(folder / other, found[other], info.test_per_class)
            return _read_files(folder, train, found[other], info)
    if len(found) < len(SPLITS):
        raise UserError(
            f"{folder}: not MiniImageNet: it needs train and val with images of the same classes, <class>/*.jpg; or "
            f"train, val and test with images of other classes each; or {', '.join(PICKLES)}. {info.where}"
        )
    files: Files = {}
    for split, classes in found.items():
        _check_counts(folder / split, classes, info.train_per_class + info.test_per_class)
        _add_classes(files, classes, folder / split)
    cut = info.train_per_class
    return _read_files(
        folder,
        {name: paths[:cut] for name, paths in files.items()},
        {name: paths[cut:] for name, paths in files.items()},
        info,
    )


def read_tiny(folder: Path, info: DatasetInfo) -> Dataset:
    """TinyImageNet's official folder; its validation images, which have labels, are the test set."""
    annotations = folder / "val" / "val_annotations.txt"
    if not (folder / "train").is_dir() or not annotations.is_file():
        raise UserError(
            f"{folder}: not TinyImageNet: it needs train/<class>/images, val/images and val/val_annotations.txt"
        )
    train = _class_files(folder / "train", "images")
    _check_classes(folder / "train", train, info)
    test: Files = {name: [] for name in train}
    for number, line in enumerate(annotations.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in test or Path(fields[0]).name != fields[0]:
            raise UserError(f"{annotations}: line {number} names no image and known class")
        test[fields[1]].append(folder / "val" / "images" / fields[0])
    _check_counts(folder / "train", train, info.train_per_class)
    _check_counts(folder / "val", test, info.test_per_class)
    return _read_files(folder, train, test, info, _spoken_names(folder / "words.txt", list(train)))


def _mini_pickles(folder: Path, info: DatasetInfo) -> Dataset:
    classes: dict[str, np.ndarray] = {}
    for name in PICKLES:
        path = folder / name
        content = read_pickle(path)
        images = content.get("image_data") if isinstance(content, dict) else None
        members = content.get("class_dict") if isinstance(content, dict) else None
        if not isinstance(images, np.ndarray) or not isinstance(members, dict):
            raise UserError(f"{path}: it needs an array 'image_data' and a dictionary 'class_dict'")
        if images.dtype != np.uint8 or images.shape[1:] != (info.side, info.side, 3):
            raise UserError(
                f"{path}: images {images.dtype} {images.shape} instead of uint8 {info.side}x{info.side}x3"
            )
        own = {}
        for wnid in sorted(members, key=str):
            try:
                indices = np.asarray(members[wnid])
            except ValueError:  # a list of lists of unequal lengths
                indices = np.empty(0)
            if indices.ndim != 1 or indices.dtype.kind not in "iu" or not within(indices, len(images)):
                raise UserError(f"{path}: class {wnid!r} does not list images of this file")
            own[str(wnid)] = np.asarray(images)[indices]
        _check_counts(path, own, info.train_per_class + info.test_per_class)
        _add_classes(classes, own, path)
    _check_classes(folder, classes, info)
    cut = info.train_per_class
    return _arrays(
        np.concatenate([images[:cut] for images in classes.values()]),
        np.concatenate([images[cut:] for images in classes.values()]),
        tuple(classes),
    )


def _add_classes(all_classes: dict[str, Any], more: Mapping[str, Any], path: Path) -> None:
    for name in more.keys() & all_classes.keys():
        raise UserError(
            f"{path}: class {name!r} is in more than one of {', '.join(SPLITS)}; they must be disjoint"
        )
    all_classes.update(more)


def _check_counts(folder: Path, classes: Mapping[str, Sequence[Any]], expected: int) -> None:
    for name, members in classes.items():
        if len(members) != expected:
            raise UserError(f"{folder}: class {name} has {len(members)} images instead of {expected}")


def _check_classes(folder: Path, classes: Mapping[str, Any], info: DatasetInfo) -> None:
    if len(classes) != info.classes:
        raise UserError(f"{folder}: {len(classes)} classes instead of {info.classes}")


def _class_files(folder: Path, below: str = "") -> Files:
    """The images of each class, which is a folder; they lie in it, or in a folder `below` it."""
    files: Files = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not (path / below).is_dir():
            raise UserError(f"{path / below}: no such folder")
        files[path.name] = sorted(p for p in (path / below).iterdir() if p.suffix.lower() in _SUFFIXES)
    return files


def _read_files(
    folder: Path, train: Files, test: Files, info: DatasetInfo, names: tuple[str, ...] = ()
) -> Dataset:
    _check_classes(folder, train, info)
    paths = [path for files in (train, test) for own in files.values() for path in own]
    images = np.empty((len(paths), info.side, info.side, 3), np.uint8)

    def read(place: int) -> None:
        images[place] = _image(paths[place], info.side)

    with ThreadPoolExecutor() as pool:  # OpenCV decodes and scales without Python's lock: all cores work
        for _ in tqdm(pool.map(read, range(len(paths))), desc="reading images", total=len(paths), unit="img"):
            pass
    cut = info.classes * info.train_per_class
    return _arrays(images[:cut], images[cut:], names or tuple(train))


def _image(path: Path, side: int) -> np.ndarray:
    try:
        encoded = np.fromfile(path, dtype=np.uint8)  # not cv2.imread, which cannot open every path on Windows
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(encoded, flags) if encoded.size else None
    except cv2.error as error:
        raise UserError(f"{path}: damaged: not an image OpenCV reads ({error.err})") from error
    if image is None:
        raise UserError(f"{path}: damaged: not an image")
    if image.shape[:2] != (side, side):
        image = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    return image


def _arrays(train: np.ndarray, test: np.ndarray, names: tuple[str, ...]) -> Dataset:
    """Images class after class, as many of each, with the labels 0, 1, ..."""
    labels = [np.repeat(np.arange(len(names)), len(images) // len(names)) for images in (train, test)]
    return Dataset(train, labels[0], test, labels[1], names)


def _spoken_names(words: Path, ids: list[str]) -> tuple[str, ...]:
    """What words.txt calls each id first; the id itself without it, and behind a name that two share."""
    lines = words.read_text(encoding="utf-8", errors="replace").splitlines() if words.is_file() else []
    first = {
        wnid: text.split(",")[0].strip() for wnid, _, text in (line.partition("\t") for line in lines) if text
    }
    names = [first.get(wnid, wnid) for wnid in ids]
    uses = Counter(names)
    return tuple(
        name if uses[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, ids, strict=True)
    )
