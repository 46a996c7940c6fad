"""Folders of images: in which order they come, which class they belong to, and how each becomes a frame.

mug/1.png   pen/1.png                    classes are the folders at the top
dataset/mug/1.png                        or below a folder that holds everything

A watched folder goes on with what arrives later. It is looked through again and again: notifications of the system would
come a second sooner, but not from a network disk.
"""

import mimetypes
import os
import time
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, sha256
from edge_hpcr.common.text import as_text, natural_order
from edge_hpcr.stream.base import BadFile, FileStream, Frame
from edge_hpcr.stream.decode import BadImage, decode_image, read_bytes

SETTLED_SECONDS = 1.0  # a file that has not changed for so long is complete
LOOK_SECONDS = 0.5  # between two looks through a watched folder
LOOK_SHARE = 20  # and of a large one, so many times as long as a look takes
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}

Parts = tuple[str, ...]  # the folders on the way to a file, and its name
# Of a file's content, whatever its name: device, number, size and time of the last change.
Identity = tuple[int, ...]


# Which folders name the classes ---------------------------------------------------------------------------------------


def top_folder(files: Collection[Parts]) -> Parts:
    """The folder below which folders name the classes, by the names of all files of a collection."""
    top: Parts = ()
    # Many collections lie in one folder, or several; but a folder with images in it is a class.
    while True:
        below = [parts[len(top) :] for parts in files if len(parts) > len(top)]
        names = {parts[0] for parts in below if len(parts) > 1}
        images = [parts for parts in below if looks_like_image(parts[-1])]
        holds_images = any(len(parts) <= 2 for parts in images)
        if len(names) != 1 or holds_images or all(len(parts) <= 2 for parts in below):
            break
        top = (*top, *names)
    found = {parts[0] for parts in images if len(parts) > 1}
    # A folder that holds pictures itself is a class, whatever it is called: there are pictures of trains.
    if len(found) > 1 and not holds_images and SPLITS.issuperset(map(str.casefold, found)):
        splits = " and ".join(sorted(found))
        raise UserError(
            f"the folders {splits} are parts of a data set, and no classes: give one of them alone"
        )
    return top


def class_folder(parts: Parts, top: Parts = ()) -> str | None:
    """The folder that names a file's class; None if there is none.

    >>> class_folder(("data", "dog", "1.png"), ("data",))
    'dog'
    """
    below = parts[len(top) :]
    return below[0] if parts[: len(top)] == top and len(below) > 1 else None


def looks_like_image(name: str) -> bool:
    kind, _ = mimetypes.guess_type(name, strict=False)
    return kind is not None and kind.startswith("image/")


# Files ----------------------------------------------------------------------------------------------------------------


def require_folder(path: Path) -> None:
    """Refuse what is not a folder."""
    with disk_errors(f"{as_text(path)} cannot be read"):  # a name that is too long, or a folder above it
        if not path.is_dir():
            raise UserError(f"{as_text(path)}: there is no such folder")


def walk(root: Path, on_bad_file: BadFile) -> Iterator[Path]:
    """Every file below the folder in natural order, hidden ones left out; an `OSError` if the folder is not there.

    A link to a folder is not followed, because it may lead out or round in circles.
    """
    with os.scandir(root) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in sorted(shown, key=lambda entry: natural_order(entry.name)):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            try:
                yield from walk(path, on_bad_file)
            except OSError as error:
                on_bad_file(path, f"{as_text(path)}: this folder cannot be listed: {error.strerror}")
        elif entry.is_symlink() and path.is_dir():
            on_bad_file(path, f"{as_text(path)}: a link to a folder is not followed")
        else:
            yield path


def parts_of(path: Path, root: Path) -> Parts:
    return tuple(map(as_text, path.relative_to(root).parts))


def read_frame(path: Path, root: Path, top: Parts | None = None) -> Frame:
    """The image in a file below `root`; with its class if folders below `top` name them. `BadImage` says why it cannot be used."""
    # Asked here and not when the folder was listed: a link may have changed in between.
    inside = os.path.realpath(root)
    if os.path.commonpath([inside, os.path.realpath(path)]) != inside:
        raise BadImage(f"{as_text(path)} leads out of the folder: such a link is not followed")
    data = read_bytes(path)
    return Frame(
        image=decode_image(data, str(path)),
        origin=as_text(path),
        label=class_folder(parts_of(path, root), top) if top is not None else None,
        digest=sha256(data),
    )


class Folder(FileStream):
    """All images below a folder; with `labels="folders"`, the folders name the classes."""

    def __init__(
        self, path: Path, labels: str = "none", on_bad_file: BadFile | None = None, fps: float | None = None
    ) -> None:
        require_folder(path)
        super().__init__(as_text(path), fps, on_bad_file)
        self._root = path
        self._top: Parts | None = None
        self._files = walk(path, self._refuse)
        if labels == "folders":
            files = [*self._files]  # only together they show which folders name the classes
            self._top, self._files = top_folder([parts_of(each, path) for each in files]), iter(files)

    def _next(self) -> Frame | None:
        try:
            path = next(self._files)
        except StopIteration:
            self._end = f"ended after {self._frames} images"
        except OSError as error:
            self._end = f"ended: the folder {self.name} cannot be listed: {error.strerror}"
        else:
            try:
                return read_frame(path, self._root, self._top)
            except BadImage as error:
                self._refuse(path, str(error))
        return None

    def _progress(self) -> str:
        return f"live, {self._frames} images so far"


class WatchedFolder(FileStream):
    """Every version of every file, once. A folder that disappears is watched again when it comes back."""

    def __init__(self, path: Path, labels: str = "none", on_bad_file: BadFile | None = None) -> None:
        require_folder(path)
        super().__init__(as_text(path), on_bad_file=on_bad_file)
        self._root = path.absolute()
        self._top: Parts | None = () if labels == "folders" else None
        self._seen: dict[Path, tuple[Identity, float]] = {}  # what each file is, and since when
        self._complete: deque[tuple[Path, Identity]] = deque()
        self._taken: dict[Path, Identity] = {}
        self._refused: set[Path] = set()  # folders and links that are not looked into
        self._next_look = 0.0
        self._there = True

    def _next(self) -> Frame | None:
        if not self._complete and time.monotonic() >= self._next_look:
            self._look_through()
        frame = self._take(*self._complete.popleft()) if self._complete else None
        if not self._complete:
            self._due = self._next_look
        return frame

    def _look_through(self) -> None:
        begun, found = time.monotonic(), dict[Path, tuple[Identity, float]]()
        try:
            for path in walk(self._root, self._refuse_once):
                if identity := _identity(path):
                    known, since = self._seen.get(path, (None, begun))
                    found[path] = identity, since if identity == known else begun
        except OSError:  # it has disappeared; what was taken of it is not forgotten
            self._there, self._next_look = False, time.monotonic() + LOOK_SECONDS
            return
        self._seen = found
        self._taken = {path: taken for path, taken in self._taken.items() if path in found}
        self._complete.extend(
            (path, identity)
            for path, (identity, since) in found.items()
            if self._taken.get(path) != identity and begun - since >= SETTLED_SECONDS
        )
        ended = time.monotonic()
        self._there, self._next_look = True, ended + max(LOOK_SECONDS, LOOK_SHARE * (ended - begun))

    def _take(self, path: Path, identity: Identity) -> Frame | None:
        frame, reason = None, ""
        try:
            frame = read_frame(path, self._root, self._top)
        except BadImage as error:
            reason = str(error)
        if _identity(path) != identity:
            return None  # it is being written after all, or gone
        self._taken[path] = identity
        if frame is None:
            self._refuse(path, reason)
        return frame

    def _refuse_once(self, path: Path, reason: str) -> None:
        if path not in self._refused:
            self._refused.add(path)
            self._refuse(path, reason)

    def _doing(self) -> tuple[str, str]:
        if not self._there:
            return "reconnecting", f"reconnecting: the folder {self.name} has disappeared, waiting for it"
        return "live", self._progress()

    def _progress(self) -> str:
        return f"live, {self._frames} images so far"


def _identity(path: Path) -> Identity | None:
    """None if there is nothing, or a link that leads nowhere."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
