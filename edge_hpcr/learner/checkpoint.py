"""A folder that is whole or absent: tensors as safetensors, the rest as JSON, never a pickle.

A checkpoint is written to a temporary folder beside its place, flushed to disk, and renamed. `checkpoint.json` carries
the SHA-256 of every other file, so that a file that was cut short or changed is found and named before it is used.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import flush_to_disk, reason_of, sha256
from edge_hpcr.common.formats import CHECKPOINT


class DamagedCheckpoint(UserError):
    """Cut short or changed; an older checkpoint may be whole."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"damaged checkpoint: {file} {problem}; use an older checkpoint")


INDEX = "checkpoint.json"


class CannotWrite(UserError):
    """The disk refused a checkpoint; the one before it is still there."""


def _previous(folder: Path) -> Path:
    return folder.with_name(folder.name + ".previous")


def _unfinished(folder: Path) -> Path:
    return folder.with_name(folder.name + ".writing")


def _facts_hash(facts: dict[str, Any]) -> str:
    return sha256(json.dumps(facts, sort_keys=True).encode())


def write(folder: Path, arrays: dict[str, dict[str, np.ndarray]], facts: dict[str, Any]) -> None:
    """Write `facts` and one safetensors file for each group of `arrays`; replaces an older checkpoint there."""
    folder = Path(folder)
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not (folder / INDEX).is_file() and not is_empty:
        raise UserError(f"{folder} is not a checkpoint: choose another name")

    # As they will be read: JSON's names are text, and text sorts 10 before 2, which the hash would tell apart.
    facts = json.loads(json.dumps(facts, allow_nan=False))

    def fill(temporary: Path) -> None:
        for name, group in arrays.items():
            whole = {key: np.asarray(value, order="C") for key, value in group.items()}
            save_file(whole, temporary / f"{name}.safetensors")
        hashes = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
        index = {"format": CHECKPOINT.current, "version": __version__, "sha256": hashes, "facts": facts}
        index["facts_sha256"] = _facts_hash(facts)
        (temporary / INDEX).write_text(json.dumps(index, allow_nan=False))

    _put(folder, fill)


def pack(folder: Path) -> dict[str, bytes]:
    """The files of a checkpoint by name, to send them to another machine."""
    place, index = _index(Path(folder))
    return {name: (place / name).read_bytes() for name in (INDEX, *index["sha256"])}


def unpack(files: dict[str, bytes], folder: Path) -> None:
    """Write what `pack` gave; replaces an older checkpoint there."""

    def fill(temporary: Path) -> None:
        for name, content in files.items():
            (temporary / name).write_bytes(content)

    _put(Path(folder), fill)


def _put(folder: Path, fill: Callable[[Path], None]) -> None:
    """Put a new checkpoint in its place, whose files `fill` writes into a folder."""
    temporary = _unfinished(folder)
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # what a power cut left of an earlier one
        temporary.mkdir(parents=True)
        fill(temporary)
        for path in [*temporary.iterdir(), temporary]:
            flush_to_disk(path)
        _swap_in(temporary, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = f"{reason_of(error)}; check free space and permissions"
        raise CannotWrite(f"cannot write the checkpoint {folder}: {reason}") from error


def _swap_in(temporary: Path, folder: Path) -> None:
    # A folder cannot replace another one in a single step. Whenever the power goes, either name holds a whole
    # checkpoint, and `read` looks at both.
    previous = _previous(folder)
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    temporary.rename(folder)
    flush_to_disk(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def exists(folder: Path) -> bool:
    return any((place / INDEX).is_file() for place in (Path(folder), _previous(Path(folder))))


def remove(folder: Path) -> None:
    """Whole or absent: a folder that is half removed must not have a checkpoint's name."""
    folder = Path(folder)
    leaving = folder.with_name(folder.name + ".removing")
    if folder.exists():
        shutil.rmtree(leaving, ignore_errors=True)
        folder.rename(leaving)
    for place in (leaving, _previous(folder), _unfinished(folder)):
        shutil.rmtree(place, ignore_errors=True)


def facts(folder: Path) -> dict[str, Any]:
    """The facts alone, which takes no time: whether the arrays are whole, only `read` knows."""
    return dict(_upgraded(_index(Path(folder))[1])["facts"])


def _index(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where the checkpoint really is, and its index as it was written."""
    place = folder if (folder / INDEX).is_file() else _previous(folder)
    try:
        index = json.loads((place / INDEX).read_text())
        written, stored = index["format"], index["facts"]
        # Of a restored backup's, too, only files in its own folder are read.
        index["sha256"] = {Path(name).name: digest for name, digest in index["sha256"].items()}
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {folder}: {INDEX} is missing there") from None
    except OSError as error:
        raise UserError(f"checkpoint {place} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(place / INDEX, f"cannot be read ({error})") from None
    CHECKPOINT.is_old(written, place, index.get("version"))
    if index.get("facts_sha256") != _facts_hash(stored):
        raise DamagedCheckpoint(place / INDEX, "was changed")
    return place, index


def _upgraded(index: dict[str, Any]) -> dict[str, Any]:
    CHECKPOINT.upgrade(index, index["format"])
    return index


def read(folder: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """The arrays and facts that `write` was given; a `UserError` names what is missing, cut short or of another version."""
    place, index = _index(Path(folder))
    index["arrays"] = {Path(name).stem: _group(place / name, hash) for name, hash in index["sha256"].items()}
    return index["arrays"], _upgraded(index)["facts"]


def _group(path: Path, expected: str) -> dict[str, np.ndarray]:
    try:
        if sha256(path) != expected:
            raise DamagedCheckpoint(path, "was cut short or changed")
        return dict(load_file(path))
    except (FileNotFoundError, IsADirectoryError):
        raise DamagedCheckpoint(path, "is missing") from None
    except SafetensorError as error:
        raise DamagedCheckpoint(path, f"cannot be read ({error})") from None
