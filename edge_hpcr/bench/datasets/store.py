"""One simple layout for every dataset on disk: four .npy files and a meta.json, whole or absent.

    ROOT/cifar10/{train_images,train_labels,test_images,test_labels}.npy
    ROOT/cifar10/meta.json      the size and SHA-256 of each file, the class names, the source, the date

Grey images are stored as [N, H, W] and given three equal channels on loading. Unfinished work (downloads,
arrays not yet renamed) lives in ROOT/.partial/NAME, which may be deleted at any time.
"""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from edge_hpcr import __version__
from edge_hpcr.bench.datasets.registry import Dataset, DatasetInfo
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import flush_to_disk, sha256
from edge_hpcr.common.formats import DATASET

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
META = "meta.json"


def partial_folder(root: Path, name: str) -> Path:
    """Where unfinished work on a dataset lives; on the root's own disk, so that a rename completes it."""
    folder = root / ".partial" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{root}: the data folder cannot be written: {error.strerror}") from error
    return folder


def write(root: Path, name: str, arrays: Dataset, source: str) -> Path:
    """Put a dataset into the root. Another one of the same name is replaced only by a complete new one."""
    target = root / name
    partial = partial_folder(root, name)
    temporary = partial / "arrays"
    try:
        for leftover in (temporary, partial / "replaced"):
            if leftover.exists():
                shutil.rmtree(leftover)  # a run before this one was killed here
        temporary.mkdir()
        files = {f"{key}.npy": _write_array(temporary / f"{key}.npy", getattr(arrays, key)) for key in ARRAYS}
        meta = {
            "format": DATASET.current,
            "version": __version__,
            "name": name,
            "source": source,
            "obtained": datetime.now(UTC).isoformat(timespec="seconds"),
            "class_names": list(arrays.class_names),
            "files": files,
        }
        (temporary / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        flush_to_disk(temporary / META)
        flush_to_disk(temporary)
        if target.exists():
            # Two renames, because a folder that is not empty cannot be replaced by one.
            target.rename(partial / "replaced")
        temporary.rename(target)
        flush_to_disk(root)
    except OSError as error:
        raise UserError(f"{target}: the dataset cannot be written: {error.strerror}") from error
    return target


def read(root: Path, name: str, info: DatasetInfo, options: str = "") -> Dataset:
    """A dataset from the root, checked; UserError says which file is missing or damaged."""
    folder = root / name
    command = f"`python -m edge_hpcr data get {name}{options}`"
    again = f"fetch it again with {command}"
    if not folder.exists():
        raise UserError(f"{folder}: no such dataset; fetch it with {command}")
    meta = _read_meta(folder / META, name, info, again)
    loaded = {key: _read_array(folder / f"{key}.npy", meta["files"], again) for key in ARRAYS}
    for split in ("train", "test"):
        images, labels = loaded[f"{split}_images"], loaded[f"{split}_labels"]
        side = info.side
        if images.dtype != np.uint8 or images.shape[1:] not in ((side, side), (side, side, 3)):
            raise UserError(
                f"{folder / f'{split}_images.npy'}: damaged: {images.dtype} {images.shape} instead of "
                f"uint8 images of {side}x{side}; {again}"
            )
        if labels.dtype != np.int64 or labels.shape != images.shape[:1] or not within(labels, info.classes):
            raise UserError(
                f"{folder / f'{split}_labels.npy'}: damaged: not {len(images)} labels of 0 to "
                f"{info.classes - 1}; {again}"
            )
        if images.ndim == 3:  # grey: three equal channels
            loaded[f"{split}_images"] = np.repeat(images[..., None], 3, axis=-1)
    return Dataset(name=name, class_names=tuple(meta["class_names"]), **loaded)


def identity(root: Path, name: str) -> str:
    """The hash of the hashes of a stored dataset's files; "" if its description is damaged."""
    try:
        files = json.loads((root / name / META).read_text(encoding="utf-8"))["files"]
        return sha256(json.dumps([files[f"{key}.npy"]["sha256"] for key in ARRAYS]).encode())
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def within(numbers: np.ndarray, end: int) -> bool:
    """Whether there are numbers, all from 0 to below the end."""
    return numbers.size > 0 and int(numbers.min()) >= 0 and int(numbers.max()) < end


def _write_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)
    flush_to_disk(path)
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _read_meta(path: Path, name: str, info: DatasetInfo, again: str) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: missing or damaged ({error}); {again}") from error
    if not isinstance(meta, dict) or meta.get("name") != name:
        raise UserError(f"{path}: not the description of {name}; {again}")
    if DATASET.is_old(meta.get("format"), path, meta.get("version")):
        DATASET.upgrade(meta, meta["format"])
    names, files = meta.get("class_names"), meta.get("files")
    if not isinstance(names, list) or len(names) != info.classes or not isinstance(files, dict):
        raise UserError(f"{path}: damaged: it does not name {info.classes} classes and the files; {again}")
    return meta


def _read_array(path: Path, files: dict[str, Any], again: str) -> np.ndarray:
    expected = files.get(path.name)
    if not isinstance(expected, dict):
        raise UserError(f"{path.parent / META}: damaged: it does not describe {path.name}; {again}")
    try:
        if path.stat().st_size != expected.get("bytes") or sha256(path) != expected.get("sha256"):
            raise UserError(f"{path}: damaged (its content is not the one that was stored); {again}")
        # Mapped, so that seeds running in parallel share one copy; "c" lets a caller write to its own pages.
        return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: missing or damaged ({error}); {again}") from error
