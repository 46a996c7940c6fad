"""Labelled samples out of a workspace, as a zip with a folder for each class, and such a zip or folder into one.

mug/000123.png   nuts%2Fbolts/000124.jpg
"""

import itertools
import os
import random
import re
import shutil
import struct
import threading
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import unquote

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING, disk_errors, flush_to_disk, sha256
from edge_hpcr.common.text import as_text, many, natural_order
from edge_hpcr.stream import Frame
from edge_hpcr.stream.base import BadFile
from edge_hpcr.stream.decode import MAX_BYTES, BadImage, decode_image, read_bytes
from edge_hpcr.stream.image_folder import class_folder, looks_like_image, parts_of, top_folder, walk
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.records import IMPORT, clean_name, folded, new_group
from edge_hpcr.workspace.sample_files import looked_at
from edge_hpcr.workspace.selection import DRAWN, DRAWN_EVERY, UNKNOWN
from edge_hpcr.workspace.workspace import Workspace, warn_of_bad_file

IMAGES_AT_ONCE = 10  # one flush to disk for all of them
REASONS_KEPT = 10
UNFINISHED = f".edge-hpcr{WRITING}"
LEFT_SECONDS = 3600.0  # since the last change of an unfinished file that nobody writes any more
# What cannot stand in a folder's name on some system: signs, a dot that hides it, an end that is lost.
_UNSAFE = re.compile(r'[<>:"/\\|?*%]|^[ .]|[ .]$')

Progress = Callable[[int, int], None]  # done, and of how many


@dataclass(frozen=True)
class Exported:
    samples: int
    classes: int
    missing: int  # labelled, but the image is no longer there, or damaged

    def __str__(self) -> str:
        missing = f"; {many(self.missing, 'label')} no longer had an image" if self.missing else ""
        return f"{many(self.samples, 'sample')} of {many(self.classes, 'class')} exported{missing}"


@dataclass
class Imported:
    samples: int = 0  # labelled now
    classes: int = 0  # made for them
    queued: int = 0  # without a class, so that they wait for a label
    left_out: int = 0  # of those: the queue is full
    known: int = 0  # were here already, and stayed as they are
    bad: int = 0
    reasons: list[str] = field(default_factory=list)  # of the first bad ones

    def __str__(self) -> str:
        """
        >>> str(Imported(samples=12, classes=1, known=3, bad=2)), str(Imported(queued=2))
        ('12 samples labelled, 1 new class, 3 known already, 2 bad', '2 samples in the queue, 0 known already, 0 bad')
        """
        labelled = [f"{many(self.samples, 'sample')} labelled", many(self.classes, "new class")]
        queued = [f"{many(self.queued, 'sample')} in the queue"] if self.queued else []
        if self.left_out:
            queued.append(f"{self.left_out:,} left out because the queue is full")
        first = [*(labelled if self.samples or not queued else []), *queued]
        return f"{', '.join(first)}, {self.known:,} known already, {self.bad:,} bad"


# Export -----------------------------------------------------------------------------------------------------------


def export_samples(workspace: Workspace, target: Path, progress: Progress | None = None) -> Exported:
    """Write all labelled samples to a new .zip; it is whole there or absent."""
    target = Path(os.path.realpath(target))
    refuse_inside(workspace.path, target)
    with reading(workspace.layout.journal) as journal:  # as of one moment, while others go on to label
        classes, rows = journal.classes(), list(journal.all_samples(state="labelled"))
    if not rows:
        raise UserError(f"nothing to export: no sample of {workspace.path} has a label")
    folders = {each.id: folder_of(each.name) for each in classes}
    missing = 0
    cannot = disk_errors(f"cannot write the export {target}", "check free space and permissions")
    with cannot, writing_zip(target) as bundle:
        for done, row in enumerate(rows, 1):
            try:
                content = workspace.files.content(row)
                bundle.writestr(f"{folders[row.class_id or 0]}/{Path(row.file).name}", content)
            except UserError:  # dropped, perhaps just now by a learner that runs beside; or damaged
                missing += 1
            if progress is not None:
                progress(done, len(rows))
    return Exported(len(rows) - missing, len(classes), missing)


def folder_of(name: str) -> str:
    """A folder's name for a class, good on every file system; `class_of` makes the class's name of it again.

    >>> [folder_of(name) for name in ("mug", "nuts/bolts", "..")]
    ['mug', 'nuts%2Fbolts', '%2E%2E']
    """
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)


def class_of(folder: str) -> str:
    name = unquote(folder)
    return clean_name(name if folder_of(name) == folder else folder)


@contextmanager
def writing_zip(target: Path) -> Iterator[zipfile.ZipFile]:
    """A new zip, for this user alone; it is whole at its place when the block ends, or absent."""
    if target.exists() or target.suffix.lower() != ".zip":
        raise UserError(f"{target} exists already or is no .zip: name a new .zip")
    with appearing(target) as unfinished:
        unfinished.touch(mode=0o600)
        with zipfile.ZipFile(unfinished, "w") as bundle:  # uncompressed: images are packed already
            yield bundle


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A hidden place beside the target for what is not whole yet; at the end of the block the target is there, or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name[:100]}{UNFINISHED}")
    for left in target.parent.glob(f".*{UNFINISHED}*"):  # by a command that was killed
        newest = max(part.lstat().st_mtime for part in (left, *left.rglob("*")))
        # Another one may be that of a command which runs now.
        if left == unfinished or time.time() - newest > LEFT_SECONDS:
            _remove(left)
    try:
        yield unfinished
        flush_to_disk(unfinished)
        unfinished.rename(target)  # takes the place of an empty folder, and of no other
        flush_to_disk(target.parent)
    finally:
        _remove(unfinished)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def refuse_inside(workspace: Path, place: Path) -> None:
    if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(workspace)):
        raise UserError(f"{place} lies in the workspace itself: name a place outside of it")


# The files of a folder or a zip: listed, and read without trusting any of them --------------------------------------

# What `zipfile` raises on archives that are damaged, or made to look so.
ZIP_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error, KeyError)


@dataclass(frozen=True)
class SourceFile:
    parts: tuple[str, ...]  # folders and name below the top, as text
    path: Path  # for people; inside a zip, the zip's path and then the name
    read: Callable[[], bytes]  # `BadImage` says why not


def _files_of(source: Path, name: Path, refuse: BadFile, opened: ExitStack) -> list[SourceFile]:
    """The files of a folder or a zip, in natural order, without hidden ones; `name` is the source's for people."""
    with disk_errors(f"{name} cannot be read"):
        if not source.exists():
            raise UserError(f"{name}: there is no such folder or zip file")
        if not source.is_dir():
            return _zip_files(name, opened.enter_context(open_zip(source, name)))
        return [
            SourceFile(
                parts_of(path, source),
                name / path.relative_to(source),
                partial(read_bytes, path, follow=False),
            )
            for path in walk(source, refuse)
        ]


def open_zip(source: Path, name: Path | None = None) -> zipfile.ZipFile:
    """A zip whose files unpack to as much as it states, in pieces of any size; `name` is its own for people."""
    try:
        bundle = zipfile.ZipFile(source)
    except ZIP_DAMAGE as error:
        raise UserError(
            f"{name or source} is damaged or not a zip ({error}): copy or make it again"
        ) from error
    # Python unpacks the other methods without a limit, so that a small file could fill the memory.
    if any(
        each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for each in bundle.infolist()
    ):
        bundle.close()
        raise UserError(
            f"{name or source} is packed in an unusual way: pack it anew, or use the unpacked folder"
        )
    return bundle


def _zip_files(source: Path, bundle: zipfile.ZipFile) -> list[SourceFile]:
    files = []
    for entry in bundle.infolist():
        name = entry.filename.replace("\\", "/")  # as some programs for Windows write it
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or PureWindowsPath(name).drive or ".." in parts:
            raise UserError(f"{source} is refused: {entry.filename[:100]!r} in it leads out of the archive")
        hidden = any(part.startswith(".") for part in parts)  # so are all files of __MACOSX
        if not (hidden or name.endswith("/")):
            path = source.joinpath(*parts)
            files.append(SourceFile(parts, path, partial(_read_entry, bundle, entry, path)))
    return sorted(files, key=lambda file: [natural_order(part) for part in file.parts])


def _read_entry(bundle: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    if entry.file_size > MAX_BYTES:  # and `zipfile` never gives more than the size that the archive states
        raise BadImage(f"{path} cannot be used as an image: it has more than {MAX_BYTES:,} bytes")
    try:
        with bundle.open(entry) as file:
            return file.read(entry.file_size)  # `bundle.read` would unpack a chunk of any size
    except (*ZIP_DAMAGE, OSError) as error:
        raise BadImage(f"{path} cannot be used as an image: it is damaged in the zip ({error})") from error


# Import -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What an import would take, by the names of the files: none has been read."""

    pictures: list[tuple[str, SourceFile]]  # each with the name of its class
    loose: list[SourceFile]  # pictures in no folder that would name a class: they go into the queue
    bad: list[tuple[Path, str]]  # files that cannot be used, and why

    @property
    def classes(self) -> dict[str, int]:
        """Pictures by class."""
        return Counter(name for name, _ in self.pictures)

    def __str__(self) -> str:
        """
        >>> str(Plan([], [], [(Path("read.me"), "it is no picture")]))
        '0 classes, 0 pictures, 1 file skipped'
        """
        skipped = f", {many(len(self.bad), 'file')} skipped" if self.bad else ""
        loose = f", {many(len(self.loose), 'picture')} without a class" if self.loose else ""
        return f"{many(len(self.classes), 'class')}, {many(len(self.pictures), 'picture')}{loose}{skipped}"


def look_at(workspace: Path, source: Path, called: Path | None = None) -> Plan:
    """What `import_samples` would take into this workspace, which need not exist; no picture is read, nothing changes."""
    with _planned(workspace, source, called) as plan:
        return plan


@contextmanager
def _planned(workspace: Path, source: Path, called: Path | None = None) -> Iterator[Plan]:
    """The plan for a folder or a zip, whose files can be read in the block; `called` is the name that people know it by."""
    refuse_inside(workspace, source)
    name, plan = called or source, Plan([], [], [])
    with ExitStack() as opened:
        files = _files_of(source, name, lambda path, reason: plan.bad.append((path, reason)), opened)
        if not files and not plan.bad:
            raise UserError(f"{name} holds no files: a folder for each class, with images, is expected")
        top = top_folder([file.parts for file in files])
        for file in files:
            folder = class_folder(file.parts, top)
            if not looks_like_image(file.parts[-1]):
                plan.bad.append((file.path, "its name is not that of a picture"))
            elif folder is None:
                plan.loose.append(file)
            else:
                try:
                    plan.pictures.append((class_of(folder), file))
                except UserError as error:
                    plan.bad.append((file.path, str(error)))
        yield plan


def import_samples(
    workspace: Workspace,
    source: Path,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    called: Path | None = None,
) -> Imported:
    """Take in the images of a folder or a zip: one action of the history labels those in a folder for each class, the
    others wait in the queue.

    `edge_hpcr/stream/image_folder.py` says which folders name the classes. An image that is labelled here already, or was
    deleted, stays as it is. One that waits, or has been dismissed, as an import leaves its images that is undone, gets its
    label.
    """
    with _planned(workspace.path, source, called) as plan:
        job = _Import(workspace)
        for path, reason in plan.bad:
            job.refuse(path, reason)
        # One of each class in turn: a learner forgets what comes in long rows, and tests before each label would only
        # say in which order they came.
        groups: dict[str, list[tuple[str | None, SourceFile]]] = {}
        for name, file in plan.pictures:
            groups.setdefault(folded(name), []).append((name, file))
        rounds = itertools.zip_longest(*groups.values())
        mixed = [item for each in rounds for item in each if item is not None]
        mixed += [(None, file) for file in plan.loose]
        for done in range(0, len(mixed), IMAGES_AT_ONCE):
            if stop is not None and stop.is_set():
                break
            job.take(mixed[done : done + IMAGES_AT_ONCE])
            if progress is not None:
                progress(min(done + IMAGES_AT_ONCE, len(mixed)), len(mixed))
    return job.result


class _Import:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.result = Imported()
        self._group = new_group(IMPORT)
        self._known = _known_digests(workspace.journal)
        self._queued = workspace.journal.counts().queued

    def refuse(self, path: Path, reason: str) -> None:
        warn_of_bad_file(path, reason)
        self.result.bad += 1
        if len(self.result.reasons) < REASONS_KEPT:
            self.result.reasons.append(reason)

    def take(self, files: list[tuple[str | None, SourceFile]]) -> None:
        """Store the images and their labels: those of one call together, or none of them. Without a name they are queued."""
        journal, settings, waiting = self.workspace.journal, self.workspace.settings, list[tuple[int, str]]()
        new: list[tuple[Frame, str | None]] = []
        for name, file in files:
            try:
                content = file.read()
                digest = sha256(content)
                queued = self._queued + sum(name is None for _, name in new)
                if name is None and digest not in self._known and queued >= settings.queue_samples:
                    self.result.left_out += 1
                    continue
                if digest not in self._known:
                    image = decode_image(content, str(file.path))
                    frame = looked_at(Frame(image, as_text(file.path), digest=digest))
                    # Some are for measuring; the others wait for the learner to say how much their label would tell.
                    if name is None:
                        frame.priority = DRAWN if random.random() < 1 / DRAWN_EVERY else UNKNOWN
                    new.append((frame, name))
                elif name is not None and (sample_id := self._known[digest]) is not None:
                    waiting.append((sample_id, name))
                else:
                    self.result.known += 1
            except BadImage as error:
                self.refuse(file.path, str(error))
                continue
            self._known[digest] = None
        for _, name in [*waiting, *new]:
            if name is not None and journal.class_id(name) is None:
                journal.create_class(name, self._group)
                self.result.classes += 1
        with self.workspace.taking([taken for taken, _ in new]) as ids:
            named = [(i, name) for i, (_, name) in zip(ids, new, strict=True) if name is not None]
            labels = [(i, journal.class_named(name)) for i, name in [*waiting, *named]]
            journal.label_each(labels, self._group)
        self.result.samples += len(waiting) + len(named)
        self.result.queued += len(new) - len(named)
        self._queued += len(new) - len(named)


def _known_digests(journal: Queries) -> dict[str, int | None]:
    """What is here, by what it was read from and by what is stored (which an export hands out): the sample if it can be labelled."""
    found: dict[str, int | None] = {}
    for row in journal.all_samples():
        waits = row.state in ("queued", "dismissed") and row.has_image
        for digest in filter(None, (row.source_digest, row.digest)):
            found[digest] = row.id if waits and found.get(digest, row.id) is not None else None
    return found
