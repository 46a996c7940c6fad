"""A workspace as one file, copied while it learns, and back again.

A plain copy of the folder can miss an image or mix two moments. A backup is of one moment: the journal as SQLite copies it, the
images that this journal names, a checkpoint that is not ahead of it, the settings, the published models. `backup.json`
in the zip lists every file with its size and SHA-256; what is not listed there does not belong to it.
"""

import json
import os
import re
import shutil
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, NonNegativeInt, ValidationError

from edge_hpcr import __version__
from edge_hpcr.common.errors import Failed, UserError, first_of
from edge_hpcr.common.files import WRITING, disk_errors, sha256
from edge_hpcr.common.formats import BACKUP
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.database import JournalDamaged
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import reading
from edge_hpcr.workspace.recover import backup_journal, why_foreign
from edge_hpcr.workspace.sample_files import sample_path
from edge_hpcr.workspace.transfer import (
    UNFINISHED,
    ZIP_DAMAGE,
    Progress,
    appearing,
    open_zip,
    refuse_inside,
    writing_zip,
)

MAKER = "edge_hpcr backup"
INDEX = "backup.json"
LARGEST_INDEX = 500_000_000  # bytes; a million images take 120 MB
PASSES = 20  # after the first, which takes longest, each has only what changed meanwhile
# What belongs to a workspace, by its name there: no file that is hidden, and none that could lie anywhere else.
_FILE = re.compile(
    r"journal\.sqlite|settings\.json|regions\.json"
    r"|(images|checkpoints|exports|benchmarks)(/[^/\\:\x00-\x1f.][^/\\:\x00-\x1f]*){1,7}"
)


def _our_file(name: str) -> str:
    if _FILE.fullmatch(name) is None:
        raise ValueError("it is no file of a workspace")
    return name


class Contents(BaseModel):
    """What a backup holds."""

    labels: int
    images: int
    events: int
    checkpoint: str | None
    bytes: int
    missing: int = 0  # images that the journal names, and that were not whole in the workspace itself
    files: dict[Annotated[str, AfterValidator(_our_file)], tuple[NonNegativeInt, str]]  # size and SHA-256


def back_up(path: Path, target: Path, progress: Progress | None = None) -> Contents:
    """Write a workspace to a new zip file, whole there or absent; also while a process learns in it."""
    layout = Layout(path)
    layout.check_exists()
    target = Path(os.path.realpath(target))
    refuse_inside(layout.path, target)
    cannot = disk_errors(f"cannot write the backup {target}", "is there room, and a right to write?")
    with (
        cannot,
        writing_zip(target) as bundle,
        TemporaryDirectory(prefix=".", suffix=UNFINISHED, dir=target.parent) as folder,
    ):
        return _Copy(layout, bundle, Path(folder, "journal.sqlite"), progress).run()


@dataclass
class _Copy:
    _layout: Layout
    _bundle: zipfile.ZipFile
    _journal: Path
    _progress: Progress | None
    _stored: dict[str, tuple[int, str]] = field(default_factory=dict)  # what is in the zip: bytes and SHA-256
    _copied: set[str] = field(default_factory=set)  # images

    def run(self) -> Contents:
        """Copy until one pass finds everything: what a learner removes meanwhile, the next pass no longer asks for."""
        layout = self._layout
        lacking: tuple[set[str], tuple[Path, ...]] | None = None
        for _ in range(PASSES):
            # The order counts: a journal that is copied after a checkpoint knows all that the checkpoint has learned.
            saved, learned = self._newest_checkpoint()
            backup_journal(layout.journal, self._journal)
            with reading(self._journal) as journal:
                images, labels, events = journal.image_files(), journal.counts().labels, journal.last_seq
                if saved and (why := why_foreign(saved, journal)):
                    order = "start `learn` on the workspace, which puts it in order"
                    raise UserError(f"checkpoint {saved} {why}: {order}")
            missing, folders = self._copy_images(images), layout.checkpoint_folders()
            unusable = () if saved else tuple(folders)
            before, lacking = lacking, (missing, unusable)
            # What two passes miss is not there at all. While a checkpoint is kept, so are the images that it needs.
            if (lacking == (set(), ()) or lacking == before) and (saved is None or saved in folders):
                break
        else:
            raise Failed(f"{layout.path} changes faster than it can be copied: try again")
        self._store({"journal.sqlite": self._journal.read_bytes(), **learned})
        # What says which version is the current one goes before the versions: it may name none that comes later.
        for place in (
            *(layout.exports / "latest.json", layout.exports / "history.json"),
            *sorted(layout.exports.glob("v*/")),
            *(layout.benchmarks, layout.settings, layout.regions),
        ):
            files = self._read(place)
            if place.exists():  # else it was removed while it was read
                self._store(files)
        unused = {f"images/{file}" for file in self._copied - images.keys()}  # of an earlier pass
        listed = {name: facts for name, facts in self._stored.items() if name not in unused}
        contents = Contents(
            labels=labels,
            images=len(images) - len(missing),
            events=events,
            checkpoint=saved.name if saved else None,
            bytes=sum(size for size, _ in listed.values()),
            missing=len(missing),
            files=listed,
        )
        made = {"made_by": MAKER, "format": BACKUP.current, "version": __version__, "at": time.time()}
        self._bundle.writestr(INDEX, json.dumps(made | contents.model_dump()), zipfile.ZIP_DEFLATED)
        return contents

    def _store(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            # Images and weights are packed already.
            packing = zipfile.ZIP_DEFLATED if name.endswith(".sqlite") else zipfile.ZIP_STORED
            self._bundle.writestr(name, content, packing)
            self._stored[name] = (len(content), sha256(content))

    def _read(self, place: Path) -> dict[str, bytes]:
        """This file, or those in this folder; what goes meanwhile is not there at all."""
        with suppress(FileNotFoundError):
            paths = [place] if place.is_file() or place.is_symlink() else sorted(place.rglob("*"))
            files = [p for p in paths if p.is_file() and not p.is_symlink() and p.suffix != WRITING]
            names = {path.relative_to(self._layout.path).as_posix(): path for path in files}
            return {name: path.read_bytes() for name, path in names.items() if _FILE.fullmatch(name)}
        return {}

    def _newest_checkpoint(self) -> tuple[Path | None, dict[str, bytes]]:
        """The newest that is whole, with its files; one that is removed or replaced meanwhile is passed over."""
        for folder in reversed(self._layout.checkpoint_folders()):
            files, place = self._read(folder), f"checkpoints/{folder.name}"
            with suppress(KeyError, ValueError, TypeError, AttributeError):
                hashes = json.loads(files[f"{place}/{checkpoint.INDEX}"])["sha256"]
                if all(sha256(files[f"{place}/{name}"]) == digest for name, digest in hashes.items()):
                    return folder, files
        return None, {}

    def _copy_images(self, images: dict[str, str]) -> set[str]:
        """Copy those that are not in the zip yet; returns the files that are missing or damaged."""
        for done, (file, digest) in enumerate(images.items(), 1):
            if file not in self._copied:
                with suppress(FileNotFoundError):
                    content = sample_path(self._layout.images, file).read_bytes()
                    if sha256(content) == digest:
                        self._store({f"images/{file}": content})
                        self._copied.add(file)
            if self._progress is not None:
                self._progress(done, len(images))
        return images.keys() - self._copied


# Restore ----------------------------------------------------------------------------------------------------------


def restore(source: Path, path: Path, progress: Progress | None = None) -> Contents:
    """Unpack a backup into a new or empty folder; every file is compared with its SHA-256 before the folder is there."""
    path = Path(os.path.realpath(path))
    with disk_errors(
        f"cannot restore {source} to {path}", "is it there, is there room, and a right to write?"
    ):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists already: name a new or empty folder")
        try:
            with appearing(path) as unfinished, open_zip(source) as bundle:
                contents = _read_contents(bundle, source)
                unfinished.mkdir(mode=0o700)
                for done, (name, (size, digest)) in enumerate(contents.files.items(), 1):
                    _unpack(bundle, name, unfinished / name, size, digest)
                    if progress is not None:
                        progress(done, len(contents.files))
                with reading(unfinished / "journal.sqlite") as journal:
                    journal.check()
                os.sync()
        except (*ZIP_DAMAGE, JournalDamaged) as error:
            raise UserError(f"{source} is not a complete backup ({error}): copy or make it again") from error
    return contents


def _read_contents(bundle: zipfile.ZipFile, source: Path) -> Contents:
    with bundle.open(INDEX) as file:
        facts: Any = json.loads(file.read(LARGEST_INDEX))
    if not isinstance(facts, dict) or facts.get("made_by") != MAKER:
        raise UserError(f"{source} was not made by `backup`: name a file that was")
    if BACKUP.is_old(facts.get("format"), source, facts.get("version")):
        BACKUP.upgrade(facts, facts["format"])
    try:
        return Contents.model_validate(facts)
    except ValidationError as error:
        raise ValueError(first_of(error)) from None


def _unpack(bundle: zipfile.ZipFile, name: str, target: Path, size: int, digest: str) -> None:
    """Write one file. The size is compared first: `zipfile` never gives more than the archive states."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if bundle.getinfo(name).file_size == size:
        with bundle.open(name) as packed, target.open("xb") as file:
            shutil.copyfileobj(packed, file)
        if sha256(target) == digest:
            return
    raise ValueError(f"{name} is not what was backed up")
