"""A workspace as one file, copied while it learns, and back again.

A plain copy of the folder can miss an image or mix two moments. A backup is of one moment: the journal as SQLite copies it, the
images that this journal names, a checkpoint that is not ahead of it, the settings, the published models. `backup.json`
in the zip lists every file with its size and SHA-256; what is not listed there does not belong to it.
"""

import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from edge_hpcr import __version__
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.files import WRITING, disk_errors, flush_to_disk, sha256
from edge_hpcr.common.formats import BACKUP
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.labelled_files import ZIP_DAMAGE
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import reading
from edge_hpcr.workspace.recover import backup_journal
from edge_hpcr.workspace.set_aside import why_foreign

MAKER = "edge_hpcr backup"
INDEX = "backup.json"
LARGEST_INDEX = 500_000_000  # bytes; a million images take 120 MB
PASSES = 20  # after the first, which takes longest, each has only what changed meanwhile
_PIECE = 1 << 20
_TOPS = {"journal.sqlite", "settings.json", "regions.json", "images", "checkpoints", "exports", "benchmarks"}
_DEEPEST = 8  # folders

Progress = Callable[[int, int], None]  # done, and of how many


@dataclass(frozen=True)
class Contents:
    """What a backup holds."""

    labels: int
    images: int
    events: int
    checkpoint: str | None
    bytes: int
    missing: int = 0  # images that the journal names, and that were not whole in the workspace itself


def back_up(path: Path, target: Path, progress: Progress | None = None) -> Contents:
    """Write a workspace to a new zip file, whole there or absent; also while a process learns in it."""
    layout = Layout(path)
    layout.check_exists()
    target = Path(os.path.realpath(target))
    if target.is_relative_to(os.path.realpath(layout.path)):
        raise UserError(f"{target} lies in the workspace itself: name a place outside of it")
    if target.exists():
        raise UserError(f"{target} exists already: name a new file")
    unfinished = target.with_name(f".{target.name[:100]}{WRITING}")
    journal = target.with_name(f".{target.name[:100]}.journal")
    with disk_errors(f"cannot write the backup {target}", "is there room, and a right to write?"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.unlink(missing_ok=True)
            unfinished.touch(mode=0o600)  # settings may hold a camera's password
            with zipfile.ZipFile(unfinished, "w") as bundle:
                contents = _Copy(layout, bundle, journal, progress).run()
            flush_to_disk(unfinished)
            unfinished.rename(target)
            flush_to_disk(target.parent)
        finally:
            for leftover in (unfinished, journal):
                leftover.unlink(missing_ok=True)
    return contents


class _Copy:
    def __init__(
        self, layout: Layout, bundle: zipfile.ZipFile, journal: Path, progress: Progress | None
    ) -> None:
        self._layout, self._bundle, self._journal, self._progress = layout, bundle, journal, progress
        self._stored: dict[str, tuple[int, str]] = {}  # what is in the zip: bytes and SHA-256

    def run(self) -> Contents:
        """Copy until one pass finds everything: what a learner removes meanwhile, the next pass no longer asks for."""
        missing: set[str] | None = None
        for _ in range(PASSES):
            # The order counts: a journal that is copied after a checkpoint knows all that the checkpoint has learned.
            saved, checkpoint_files = self._newest_checkpoint()
            backup_journal(self._layout.journal, self._journal)
            with reading(self._journal) as journal:
                images, counts, events = journal.image_files(), journal.counts(), journal.last_seq
                foreign = why_foreign(saved, journal) if saved else ""
            before, missing = missing, self._copy_images(images)
            loose = self._copy_models()
            is_kept = saved in self._layout.checkpoint_folders() if saved else not self._saves()
            # What two passes miss is not there at all. While a checkpoint is kept, so are the images that it needs.
            if (not missing or missing == before) and is_kept and loose is not None:
                break
        else:
            raise Failed(f"{self._layout.path} changes faster than it can be copied: try again")
        if foreign:
            raise UserError(
                f"checkpoint {saved} {foreign}: start `learn` on the workspace, which puts it in order"
            )
        for file in (self._layout.settings, self._layout.regions):
            with suppress(FileNotFoundError):
                self._store(file.name, file.read_bytes())
        for name, content in (checkpoint_files | loose | self._benchmarks()).items():
            self._store(name, content)
        self._bundle.write(self._journal, "journal.sqlite", zipfile.ZIP_DEFLATED)
        self._stored["journal.sqlite"] = (self._journal.stat().st_size, sha256(self._journal))
        listed = {
            name: facts
            for name, facts in self._stored.items()
            if not name.startswith("images/") or name.removeprefix("images/") in images
        }
        contents = Contents(
            counts.labels,
            len(images) - len(missing),
            events,
            saved.name if saved else None,
            sum(size for size, _ in listed.values()),
            len(missing),
        )
        made = {"made_by": MAKER, "format": BACKUP.current, "version": __version__, "at": time.time()}
        index = {**made, **vars(contents), "files": listed}
        self._bundle.writestr(INDEX, json.dumps(index), zipfile.ZIP_DEFLATED)
        return contents

    def _store(self, name: str, content: bytes) -> None:
        self._bundle.writestr(name, content)  # uncompressed: images and weights are packed already
        self._stored[name] = (len(content), sha256(content))

    def _saves(self) -> bool:
        return bool(self._layout.checkpoint_folders())

    def _newest_checkpoint(self) -> tuple[Path | None, dict[str, bytes]]:
        """The newest that is whole, with its files; one that is removed or replaced meanwhile is passed over."""
        for folder in reversed(self._layout.checkpoint_folders()):
            files, place = self._read_folder(folder), self._name(folder)
            with suppress(KeyError, ValueError, TypeError, AttributeError):
                hashes = json.loads(files[f"{place}/{checkpoint.INDEX}"])["sha256"]
                if all(sha256(files[f"{place}/{name}"]) == digest for name, digest in hashes.items()):
                    return folder, files
        return None, {}

    def _read_folder(self, folder: Path) -> dict[str, bytes]:
        """The files of a folder that is whole or absent; none if it is absent by now."""
        try:
            paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
            return {self._name(path): path.read_bytes() for path in paths}
        except FileNotFoundError:
            return {}

    def _name(self, path: Path) -> str:
        return path.relative_to(self._layout.path).as_posix()

    def _copy_images(self, images: dict[str, str]) -> set[str]:
        """Copy those that are not in the zip yet; returns the files that are missing or damaged."""
        missing = set()
        for done, (file, digest) in enumerate(images.items(), 1):
            name = f"images/{file}"
            if name not in self._stored:
                content = b""
                with suppress(FileNotFoundError):
                    content = (self._layout.images / file).read_bytes()
                if sha256(content) == digest:
                    self._store(name, content)
                else:
                    missing.add(file)
            if self._progress is not None:
                self._progress(done, len(images))
        return missing

    def _copy_models(self) -> dict[str, bytes] | None:
        """Copy versions that are not in the zip yet; returns what says which is the current one, None if it came later."""
        exports, files = self._layout.exports, dict[str, bytes]()
        for folder in sorted(exports.glob("v*/")):
            if f"{self._name(folder)}/manifest.json" not in self._stored:
                for name, content in self._read_folder(folder).items():
                    self._store(name, content)
        for path in (exports / "latest.json", exports / "history.json"):
            with suppress(FileNotFoundError):
                files[self._name(path)] = path.read_bytes()
        newest = max((folder.name for folder in exports.glob("v*/")), default=None)
        is_stored = newest is None or f"exports/{newest}/manifest.json" in self._stored
        return files if is_stored or not (exports / str(newest) / "manifest.json").exists() else None

    def _benchmarks(self) -> dict[str, bytes]:
        return {
            name: content
            for name, content in self._read_folder(self._layout.benchmarks).items()
            if not name.endswith(WRITING)
        }


# Restore ----------------------------------------------------------------------------------------------------------


def restore(source: Path, path: Path, progress: Progress | None = None) -> Contents:
    """Unpack a backup into a new or empty folder; every file is compared with its SHA-256 before the folder is there."""
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(f".{path.name[:100]}{WRITING}")
    damaged = f"{source} is no whole backup"
    with disk_errors(
        f"cannot restore {source} to {path}", "is it there, is there room, and a right to write?"
    ):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists already: name a new or empty folder")
        try:
            with zipfile.ZipFile(source) as bundle:
                index = _read_index(bundle, source)
                files = _listed_files(index, source)
                path.parent.mkdir(parents=True, exist_ok=True)
                need, free = sum(size for size, _ in files.values()), shutil.disk_usage(path.parent).free
                if need > free:
                    raise UserError(f"{source} needs {format_bytes(need)}, and {format_bytes(free)} are free")
                shutil.rmtree(unfinished, ignore_errors=True)  # what a power cut left of an earlier one
                unfinished.mkdir(mode=0o700)
                for done, (name, (size, digest)) in enumerate(files.items(), 1):
                    _unpack(bundle, name, unfinished / name, size, digest)
                    if progress is not None:
                        progress(done, len(files))
            contents = _check_journal(unfinished, index)
            os.sync()
            unfinished.rename(path)  # takes the place of an empty folder, and of no other
            flush_to_disk(path.parent)
        except (*ZIP_DAMAGE, KeyError, NotImplementedError) as error:
            raise UserError(f"{damaged} ({error}): copy or make it again") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return contents


def _read_index(bundle: zipfile.ZipFile, source: Path) -> dict[str, Any]:
    with bundle.open(INDEX) as file:
        text = file.read(LARGEST_INDEX)
    try:
        index = json.loads(text)
    except RecursionError as error:
        raise ValueError("its list of files is nested too deeply") from error
    if not isinstance(index, dict) or index.get("made_by") != MAKER:
        raise UserError(f"{source} was not made by `backup`: name a file that was")
    if BACKUP.is_old(index.get("format"), source, index.get("version")):
        BACKUP.upgrade(index, index["format"])
    return index


def _listed_files(index: dict[str, Any], source: Path) -> dict[str, tuple[int, str]]:
    """The files by name, each with its size and SHA-256; refuses names that could lead anywhere else."""
    files = index.get("files")
    if not isinstance(files, dict) or "journal.sqlite" not in files:
        raise ValueError("it does not list its files")
    for name, facts in files.items():
        parts = PurePosixPath(name).parts
        plain = "/".join(parts) == name and not set("\\:\0") & set(name) and ".." not in parts
        if not plain or len(parts) > _DEEPEST or parts[0] not in _TOPS or len(name) > 1000:
            raise UserError(f"{source} is refused: {name[:100]!r} in it is no file of a workspace")
        if not (isinstance(facts, list) and len(facts) == 2 and type(facts[0]) is int and facts[0] >= 0):
            raise ValueError(f"{name[:100]} has no size")
    return {name: (size, str(digest)) for name, (size, digest) in files.items()}


def _unpack(bundle: zipfile.ZipFile, name: str, target: Path, size: int, digest: str) -> None:
    """Write one file; never more than its stated size, whatever the zip unpacks to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hashed, held = hashlib.sha256(), 0
    with bundle.open(name) as packed, target.open("xb") as file:
        while piece := packed.read(min(_PIECE, size - held + 1)):
            held += len(piece)
            if held > size:
                break
            hashed.update(piece)
            file.write(piece)
    if held != size or hashed.hexdigest() != digest:
        raise ValueError(f"{name} is not what was backed up")


def _check_journal(folder: Path, index: dict[str, Any]) -> Contents:
    with reading(folder / "journal.sqlite") as journal:
        for damage in journal.damage(1):
            raise ValueError(f"its journal is damaged: {damage}")
        counts = journal.counts()
        missing = [name for name in journal.image_files() if not (folder / "images" / name).is_file()]
        saved = [each.name for each in Layout(folder).checkpoint_folders()]
        size = sum(size for size, _ in index["files"].values())
        return Contents(
            counts.labels,
            counts.images - len(missing),
            journal.last_seq,
            saved[-1] if saved else None,
            size,
            len(missing),
        )
