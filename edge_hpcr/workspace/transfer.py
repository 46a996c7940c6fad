"""Labelled samples out of a workspace and into one: a folder for each class (the ImageFolder layout), or that as a zip.

    mug/000123.png   classes.json   samples.csv

`classes.json` keeps each class's real name, id and colour, which a folder's name cannot always carry; an import reads
it. `samples.csv` lists every sample, with or without an image, for people and programs; an import does not read it.
"""

import csv
import io
import itertools
import json
import os
import secrets
import shutil
import threading
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, flush_to_disk, sha256, write_through
from edge_hpcr.common.formats import EXPORTED_CLASSES
from edge_hpcr.common.text import as_text, many
from edge_hpcr.stream.class_folders import ClassFolders, find_class_folders, looks_like_image
from edge_hpcr.stream.decode import BadImage, decode_image
from edge_hpcr.stream.gate import perceptual_hash
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.labelled_files import MAC_EXTRAS, SourceFile, check_source, open_source
from edge_hpcr.workspace.queries import reading
from edge_hpcr.workspace.records import ClassRow, SampleRow, clean_name, folded, import_number
from edge_hpcr.workspace.sample_files import shrink

MAKER = "edge_hpcr"
CLASSES, SAMPLES = "classes.json", "samples.csv"
LONGEST_FOLDER = 80  # bytes; some encrypted file systems allow no more than 143
IMAGES_AT_ONCE = 10  # one flush to disk for all of them
REASONS_KEPT = 10
_FORBIDDEN = set('<>:"/\\|?*')
_RESERVED = {"con", "prn", "aux", "nul", "conin$", "conout$", MAC_EXTRAS.casefold(), CLASSES, SAMPLES} | {
    f"{device}{digit}" for device in ("com", "lpt") for digit in "0123456789¹²³"
}

Progress = Callable[[int, int], None]  # done, and of how many
Write = Callable[[str, bytes], None]  # name and content
_OwnClasses = dict[str, tuple[str, str | None]]  # name and colour of a class by its folder


@dataclass(frozen=True)
class Exported:
    samples: int
    classes: int
    missing: int  # labelled, but the image is no longer there, or damaged


@dataclass
class Imported:
    number: str = field(default_factory=lambda: secrets.token_hex(8))  # by which it can be taken back
    samples: int = 0  # labelled now
    classes: int = 0  # made for them
    known: int = 0  # were here already, and stayed as they are
    deleted: int = 0  # of the known ones: deleted here earlier
    bad: int = 0  # in quarantine, with the reason
    reasons: list[str] = field(default_factory=list)  # of the first bad ones


# Export -----------------------------------------------------------------------------------------------------------


def export_samples(workspace: Workspace, target: Path, progress: Progress | None = None) -> Exported:
    """Write all labelled samples to a new or empty folder, or to a new .zip; it is whole there or absent."""
    target = Path(os.path.realpath(target))
    zipped = target.suffix.lower() == ".zip"
    _refuse_inside(workspace.path, target)
    with reading(workspace.layout.journal) as journal:  # as of one moment, while others go on to label
        classes, rows = journal.classes(), list(journal.all_samples(state="labelled"))
    if not rows:
        raise UserError(f"nothing to export: no sample of {workspace.path} has a label")
    folders = folder_names({each.id: each.name for each in classes})
    missing = 0
    table = io.StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow(["file", "sample", "class", "held_out", "origin", "source_digest"])
    with disk_errors(f"cannot write the export {target}", "is there room, and a right to write?"):
        if target.exists() and (zipped or not target.is_dir() or any(target.iterdir())):
            raise UserError(f"{target} exists already: name a new .zip, or a new or empty folder")
        with (_writing_zip if zipped else _writing_folder)(target) as write:
            for done, row in enumerate(rows, 1):
                name = f"{folders[row.class_id or 0]}/{row.id:06d}{Path(row.file).suffix}"
                content = _content(workspace, row)
                if content is None:
                    missing, name = missing + 1, ""
                else:
                    write(name, content)
                known = (row.id, row.class_id, int(row.held_out), row.origin, row.source_digest or "")
                lines.writerow([name, *known])
                if progress is not None:
                    progress(done, len(rows))
            write(CLASSES, _classes_file(classes, folders))
            write(SAMPLES, table.getvalue().encode())
    return Exported(len(rows) - missing, len(classes), missing)


def _content(workspace: Workspace, row: SampleRow) -> bytes | None:
    """The stored file as it is; None if the image was dropped or is damaged."""
    if not row.has_image:
        return None
    try:
        content = (workspace.files.folder / row.file).read_bytes()
    except OSError:
        return None  # a learner that runs beside may just have dropped it
    return content if sha256(content) == row.digest else None


def _classes_file(classes: Sequence[ClassRow], folders: Mapping[int, str]) -> bytes:
    listed = [{"id": c.id, "name": c.name, "colour": c.colour, "folder": folders[c.id]} for c in classes]
    made = {"made_by": MAKER, "version": __version__, "format": EXPORTED_CLASSES.current}
    return json.dumps({**made, "classes": listed}, indent=1).encode()


def folder_names(classes: Mapping[int, str]) -> dict[int, str]:
    """A folder's name for each class, good on every file system, and different in more than case.

    >>> folder_names({1: "mug", 2: "MUG.", 3: "nuts/bolts", 4: "con"})
    {1: 'mug', 2: 'MUG-2', 3: 'nuts_bolts', 4: '_con'}
    """
    chosen: dict[int, str] = {}
    taken: set[str] = set()
    for class_id, name in classes.items():
        safe = _safe_name(name)
        numbered = (f"{safe}-{class_id}-{number}" for number in itertools.count(2))
        candidates = itertools.chain([safe, f"{safe}-{class_id}"], numbered)
        chosen[class_id] = next(folder for folder in candidates if _alike(folder) not in taken)
        taken.add(_alike(chosen[class_id]))
    return chosen


def _safe_name(name: str) -> str:
    name = "".join(c if c.isprintable() and c not in _FORBIDDEN else "_" for c in name)
    # A leading dot hides a folder, and Windows loses dots and spaces at the end.
    name = name.encode()[:LONGEST_FOLDER].decode(errors="ignore").strip(" .") or "class"
    reserved = {name.casefold(), name.partition(".")[0].strip().casefold()} & _RESERVED
    return f"_{name}" if reserved else name


def _alike(name: str) -> str:
    """File systems that ignore case or normal forms take names that are equal in this form for one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name[:100]}.{MAKER}-writing")


@contextmanager
def _writing_folder(target: Path) -> Iterator[Write]:
    unfinished = _unfinished(target)
    shutil.rmtree(unfinished, ignore_errors=True)  # what a power cut left of an earlier one
    unfinished.mkdir(parents=True)
    folders = {unfinished}

    def write(name: str, content: bytes) -> None:
        path = unfinished / name
        if path.parent not in folders:
            path.parent.mkdir()
            folders.add(path.parent)
        write_through(path, content)

    try:
        yield write
        for folder in folders:
            flush_to_disk(folder)
        unfinished.rename(target)  # takes the place of an empty folder, and of no other
        flush_to_disk(target.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _writing_zip(target: Path) -> Iterator[Write]:
    unfinished = _unfinished(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(unfinished, "w") as bundle:
            yield bundle.writestr  # uncompressed: images are packed already
        flush_to_disk(unfinished)
        unfinished.rename(target)
        flush_to_disk(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)


# Import -----------------------------------------------------------------------------------------------------------


def import_samples(
    workspace: Workspace,
    source: Path,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    called: Path | None = None,
    split: str | None = None,
) -> Imported:
    """Take in and label the images of a folder or a zip that holds a folder for each class.

    `edge_hpcr/stream/class_folders.py` says which folders name the classes, in any case, and what `split` chooses; an
    export of ours brings real names and colours. An image that is here already stays as it is, unless it waits in the
    queue, where a killed import may have left it. `called` is the name that people know a zip by, if it lies under another.
    """
    source = Path(source)
    _check(workspace.path, source, called)
    job = _Import(workspace)
    with open_source(source, job.refuse, called) as files, import_number(job.result.number):
        if not files and not job.result.bad:
            raise _empty(called or source)
        chunks = job.plan(files, split)
        total, done = sum(len(chunk) for chunk in chunks), 0
        for chunk in chunks:
            if stop is not None and stop.is_set():
                break
            job.take(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return job.result


@dataclass(frozen=True)
class Found:
    """What an import would take, by the names of the files: none has been read."""

    classes: dict[str, int]  # name: pictures
    skipped: int  # files that are no pictures, or lie in no folder that would name their class
    folders: ClassFolders

    def __str__(self) -> str:
        """
        >>> str(Found({"dog": 3, "cat": 2}, 1, ClassFolders((), {"train": 5, "test": 2}, "train")))
        '2 classes, 5 pictures, 1 file skipped; train/ and test/ look like splits: train is used'
        """
        pictures = sum(self.classes.values())
        skipped = f", {many(self.skipped, 'file')} skipped" if self.skipped else ""
        note = f"; {self.folders.note}" if self.folders.note else ""
        return f"{many(len(self.classes), 'class')}, {many(pictures, 'picture')}{skipped}{note}"


def look_at(workspace: Path, source: Path, called: Path | None = None, split: str | None = None) -> Found:
    """What `import_samples` would take into this workspace, which need not exist; no picture is read, nothing changes."""
    source = Path(source)
    _check(workspace, source, called)
    unlisted: list[Path] = []
    with open_source(source, lambda path, reason: unlisted.append(path), called) as files:
        if not files and not unlisted:
            raise _empty(called or source)
        folders = find_class_folders([file.parts for file in files], split)
        own = _own_list(files, folders)
        classes: Counter[str] = Counter()
        skipped = len(unlisted)
        for file in files:
            name = folders.class_of(file.parts)
            if name is not None and looks_like_image(file.parts[-1]):
                classes[own.get(name, (name, None))[0] if own else name] += 1
            elif not folders.leaves_out(file.parts) and not (own and file.parts[-1] in (CLASSES, SAMPLES)):
                skipped += 1
    return Found(dict(classes), skipped, folders)


def _check(workspace: Path, source: Path, called: Path | None) -> None:
    check_source(source, called)
    _refuse_inside(workspace, Path(os.path.realpath(source)))


def _empty(name: Path) -> UserError:
    return UserError(f"{name} holds no files: a folder for each class, with images, is expected")


def _refuse_inside(workspace: Path, place: Path) -> None:
    if place.is_relative_to(os.path.realpath(workspace)):
        raise UserError(f"{place} lies in the workspace itself: name a place outside of it")


class _Import:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.result = Imported()
        self._known = _known_digests(workspace)
        self._classes: dict[str, int] = {}

    def refuse(self, path: Path, reason: str) -> None:
        self.workspace.quarantine(path, reason)
        self.result.bad += 1
        if len(self.result.reasons) < REASONS_KEPT:
            self.result.reasons.append(reason)

    def plan(self, files: list[SourceFile], split: str | None) -> list[list[tuple[str, SourceFile]]]:
        """The files with their classes' names, a few at a time and of all classes in turn; the rest is refused."""
        folders = find_class_folders([file.parts for file in files], split)
        own = _own_list(files, folders)
        for name, colour in own.values() if own else ():
            self._class_id(name, colour)
        groups: dict[str, list[tuple[str, SourceFile]]] = {}
        for file in files:
            if folders.leaves_out(file.parts):
                continue
            folder = folders.class_of(file.parts)
            if folder is None:
                if not own or file.parts[-1] not in (CLASSES, SAMPLES):
                    self.refuse(file.path, "it lies in no folder that would name its class")
                continue
            folder = unicodedata.normalize("NFC", folder)
            try:
                name = clean_name((own or {}).get(folder, (folder, None))[0])
            except UserError as error:
                self.refuse(file.path, str(error))
                continue
            groups.setdefault(folded(name), []).append((name, file))
        # One of each class in turn: a learner forgets what comes in long rows, and tests before each label would only
        # say in which order they came.
        rounds = itertools.zip_longest(*groups.values())
        mixed = [item for each in rounds for item in each if item is not None]
        return [mixed[start : start + IMAGES_AT_ONCE] for start in range(0, len(mixed), IMAGES_AT_ONCE)]

    def take(self, files: list[tuple[str, SourceFile]]) -> None:
        """Store the images and their labels: those of one call together, or none of them."""
        waiting: list[tuple[int, str]] = []
        new: list[tuple[Taken, str]] = []
        for name, file in files:
            try:
                content = file.read()
                digest = sha256(content)
                if digest in self._known:
                    waiting += [(sample_id, name) for sample_id in self._meet_again(digest)]
                    continue
                image = decode_image(content, str(file.path))
            except BadImage as error:
                self.refuse(file.path, str(error))
                continue
            new.append((Taken(shrink(image), as_text(file.path), digest, perceptual_hash(image)), name))
            self._known[digest] = ("labelled", 0)
        if waiting or new:
            for name in dict.fromkeys(name for _, name in [*waiting, *new]):
                self._class_id(name)
            with self.workspace.taking([taken for taken, _ in new]) as ids:
                labels = [*waiting, *zip(ids, (name for _, name in new), strict=True)]
                self.workspace.journal.label_each((i, self._class_id(name)) for i, name in labels)
            self.result.samples += len(waiting) + len(new)

    def _meet_again(self, digest: str) -> list[int]:
        """The sample of a known file, if it still needs its label."""
        state, sample_id = self._known[digest]
        if state == "queued":
            self._known[digest] = ("labelled", sample_id)
            return [sample_id]
        self.result.known += 1
        self.result.deleted += state == "deleted"
        return []

    def _class_id(self, name: str, colour: str | None = None) -> int:
        key = folded(clean_name(name))
        if key not in self._classes:
            if (found := self.workspace.journal.class_id(name)) is None:
                found = self.workspace.journal.create_class(name, colour)
                self.result.classes += 1
            self._classes[key] = found
        return self._classes[key]


def _known_digests(workspace: Workspace) -> dict[str, tuple[str, int]]:
    """State and id of every sample, by what it was read from and by what is stored (which an export hands out)."""
    order = ("labelled", "queued", "dismissed", "deleted")
    known: dict[str, tuple[str, int]] = {}
    waiting = workspace.journal.taken_back()
    for row in workspace.journal.all_samples():
        state = "queued" if row.id in waiting else row.state
        for digest in filter(None, (row.source_digest, row.digest)):
            if digest not in known or order.index(state) < order.index(known[digest][0]):
                known[digest] = (state, row.id)
    return known


def _own_list(files: Sequence[SourceFile], folders: ClassFolders) -> _OwnClasses | None:
    """The list of classes that an export of ours brings along, beside its folders."""
    place = (*folders.top, CLASSES)
    return next(
        (own for file in files if file.parts == place and (own := _own_classes(file)) is not None), None
    )


def _own_classes(file: SourceFile) -> _OwnClasses | None:
    """Name and colour of each class by its folder, if this file is the list that an export of ours wrote."""
    try:
        listed: Any = json.loads(file.read())
    except (BadImage, ValueError, RecursionError):
        return None  # somebody else's: it will be refused as a file without a class
    if not isinstance(listed, dict) or listed.get("made_by") != MAKER:
        return None
    if EXPORTED_CLASSES.is_old(listed.get("format"), file.path, listed.get("version")):
        EXPORTED_CLASSES.upgrade(listed, listed["format"])
    try:
        return {
            unicodedata.normalize("NFC", entry["folder"]): (clean_name(entry["name"]), entry["colour"])
            for entry in listed["classes"]
        }
    except (KeyError, TypeError, UserError) as error:
        advice = "remove it, and the folders' names are used"
        raise UserError(f"{file.path} is damaged ({error}): {advice}") from error
