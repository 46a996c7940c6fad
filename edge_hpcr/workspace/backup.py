"""A workspace as one file, copied while it learns, and back again.

A plain copy of the folder can miss an image or mix two moments. A backup is of one moment: the journal as SQLite copies it, the
images that this journal names, a checkpoint that is not ahead of it, the settings, the published models. It is a zip, which
keeps a checksum of each file; `backup.json` in it says how much it holds, so that nothing can be missing.
"""

import json
import os
import re
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from edge_hpcr import __version__
from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.files import WRITING, disk_errors, sha256
from edge_hpcr.common.formats import BACKUP
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.database import JournalDamaged
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries, reading
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
LARGEST_INDEX = 500_000_000  # bytes; earlier versions listed every file in it
PASSES = 20  # after the first, which takes longest, each has only what changed meanwhile
# What belongs to a workspace, by its name there: no file that is hidden, and none that could lie anywhere else.
_FILE = re.compile(
    r"journal\.sqlite|settings\.json|regions\.json"
    r"|(images|checkpoints|exports|benchmarks)(/[^/\\:\x00-\x1f.][^/\\:\x00-\x1f]*){1,7}"
)


class Contents(NamedTuple):
    """What a backup holds."""

    labels: int
    images: int
    events: int
    checkpoint: str | None
    bytes: int
    missing: int  # images that the journal names, and that were not whole in the workspace itself


def _contents(journal: Queries, bundle: zipfile.ZipFile) -> tuple[Contents, list[str]]:
    """What belongs to a backup with this journal, and its files. Of an earlier pass it may hold other images, too."""
    images = {f"images/{file}" for file in journal.image_files()}
    sizes = {entry.filename: entry.file_size for entry in bundle.infolist() if entry.filename != INDEX}
    ours = [name for name in sizes if name in images or not name.startswith("images/")]
    checkpoints = [name.split("/")[1] for name in ours if name.startswith("checkpoints/")]
    missing = len(images - sizes.keys())
    held = Contents(
        labels=journal.counts().labels,
        images=len(images) - missing,
        events=journal.last_seq,
        checkpoint=checkpoints[0] if checkpoints else None,
        bytes=sum(sizes[name] for name in ours),
        missing=missing,
    )
    return held, ours


def back_up(path: Path, target: Path, progress: Progress | None = None) -> Contents:
    """Write a workspace to a new zip file, whole there or absent; also while a process learns in it."""
    layout = Layout(path)
    layout.check_exists()
    target = Path(os.path.realpath(target))
    refuse_inside(layout.path, target)
    cannot = disk_errors(f"cannot write the backup {target}", "check free space and permissions")
    with (
        cannot,
        writing_zip(target) as bundle,
        TemporaryDirectory(prefix=".", suffix=UNFINISHED, dir=target.parent) as folder,
    ):
        return _Copy(layout, bundle).run(Path(folder, "journal.sqlite"), progress)


class _Copy:
    def __init__(self, layout: Layout, bundle: zipfile.ZipFile) -> None:
        self._layout, self._bundle = layout, bundle

    def run(self, copied: Path, progress: Progress | None) -> Contents:
        """Copy until one pass finds everything: what a learner removes meanwhile, the next pass no longer asks for."""
        layout = self._layout
        for _ in range(PASSES):
            folders = layout.checkpoint_folders()
            # The order counts: a journal that is copied after a checkpoint knows all that the checkpoint has learned.
            saved, learned = self._newest_whole(folders)
            backup_journal(layout.journal, copied)
            with reading(copied) as journal:
                if saved and (why := why_foreign(saved, journal)):
                    order = "start `learn` on the workspace, which puts it in order"
                    raise UserError(f"checkpoint {saved} {why}: {order}")
                missing = self._copy_images(journal.image_files(), progress)
            with reading(layout.journal) as journal:
                lost = missing & journal.image_files().keys()
            # While a checkpoint is kept, so are the images that it needs.
            if missing == lost and (saved.exists() if saved else folders == layout.checkpoint_folders()):
                break
        else:
            raise Failed(f"{layout.path} changes faster than it can be copied: try again")
        self._store({"journal.sqlite": copied.read_bytes(), **learned})
        # What says which version is the current one goes before the versions: it may name none that comes later.
        for place in (
            *(layout.exports / "latest.json", layout.exports / "history.json"),
            *sorted(layout.exports.glob("v*/")),
            *(layout.benchmarks, layout.settings, layout.regions),
        ):
            files = self._read(place)
            if place.exists():  # else it was removed while it was read
                self._store(files)
        with reading(copied) as journal:
            held = _contents(journal, self._bundle)[0]
        made = {"made_by": MAKER, "format": BACKUP.current, "version": __version__, "at": time.time()}
        self._store({INDEX: json.dumps(made | held._asdict()).encode()})
        return held

    def _store(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            # Images and weights are packed already.
            packing = zipfile.ZIP_DEFLATED if name.endswith(".sqlite") else zipfile.ZIP_STORED
            self._bundle.writestr(name, content, packing)

    def _read(self, place: Path) -> dict[str, bytes]:
        """This file, or those in this folder; what goes meanwhile is not there at all."""
        with suppress(FileNotFoundError):
            paths = [place] if place.is_file() or place.is_symlink() else sorted(place.rglob("*"))
            files = [p for p in paths if p.is_file() and not p.is_symlink() and p.suffix != WRITING]
            names = {path.relative_to(self._layout.path).as_posix(): path for path in files}
            return {name: path.read_bytes() for name, path in names.items() if _FILE.fullmatch(name)}
        return {}

    def _newest_whole(self, folders: list[Path]) -> tuple[Path | None, dict[str, bytes]]:
        """The newest whole checkpoint with its files; one that is removed or replaced meanwhile is passed over."""
        for folder in reversed(folders):
            files, place = self._read(folder), f"checkpoints/{folder.name}"
            with suppress(KeyError, ValueError, TypeError, AttributeError):
                hashes = json.loads(files[f"{place}/{checkpoint.INDEX}"])["sha256"]
                if all(sha256(files[f"{place}/{name}"]) == digest for name, digest in hashes.items()):
                    return folder, files
        return None, {}

    def _copy_images(self, images: dict[str, str], progress: Progress | None) -> set[str]:
        """Copy those that are not in the zip yet; returns the files that are missing or damaged."""
        missing, copied = set[str](), set(self._bundle.namelist())
        for done, (file, digest) in enumerate(images.items(), 1):
            if f"images/{file}" not in copied:
                missing.add(file)
                with suppress(FileNotFoundError):
                    content = sample_path(self._layout.images, file).read_bytes()
                    if sha256(content) == digest:
                        self._store({f"images/{file}": content})
                        missing.remove(file)
            if progress is not None:
                progress(done, len(images))
        return missing


# Restore ----------------------------------------------------------------------------------------------------------


def restore(source: Path, path: Path, progress: Progress | None = None) -> Contents:
    """Unpack a backup into a new or empty folder; every file's checksum is compared before the folder is there."""
    path = Path(os.path.realpath(path))
    with disk_errors(
        f"cannot restore {source} to {path}", "check that it exists, free space and permissions"
    ):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists already: name a new or empty folder")
        try:
            with appearing(path) as unfinished, open_zip(source) as bundle:
                facts = _read_index(bundle, source)
                unfinished.mkdir(mode=0o700)
                with reading(Path(bundle.extract("journal.sqlite", unfinished))) as journal:
                    journal.check()
                    held, files = _contents(journal, bundle)
                if any(facts.get(name) != value for name, value in held._asdict().items()):
                    raise ValueError("it does not hold what was backed up")
                for done, name in enumerate(files, 1):
                    if _FILE.fullmatch(name) is None:
                        raise ValueError(f"{name[:100]!r} is no file of a workspace")
                    bundle.extract(name, unfinished)  # which compares its checksum
                    if progress is not None:
                        progress(done, len(files))
                os.sync()
        except (*ZIP_DAMAGE, JournalDamaged) as error:
            raise UserError(f"{source} is not a complete backup ({error}): copy or make it again") from error
    return held


def _read_index(bundle: zipfile.ZipFile, source: Path) -> dict[str, Any]:
    with bundle.open(INDEX) as file:
        facts: Any = json.loads(file.read(LARGEST_INDEX))
    if not isinstance(facts, dict) or facts.get("made_by") != MAKER:
        raise UserError(f"{source} was not made by `backup`: name a file that was")
    BACKUP.is_old(facts.get("format"), source, facts.get("version"))  # which refuses a newer one
    return facts
