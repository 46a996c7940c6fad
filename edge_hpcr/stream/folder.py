"""A folder of images: in which order they come, which class they belong to, and how each becomes a frame."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.common.text import as_text, natural_order
from edge_hpcr.stream.class_folders import ClassFolders, find_class_folders
from edge_hpcr.stream.contract import BadFile, FileStream, Frame
from edge_hpcr.stream.decode import BadImage, decode_image, read_bytes

SYSTEM_FOLDERS = ("/proc", "/sys", "/dev")  # endless to list, and what lies in them is no picture


def require_folder(path: Path) -> None:
    try:
        found = path.is_dir()
    except OSError as error:  # a name that is too long, or a folder above it that may not be read
        raise UserError(f"{as_text(path)} cannot be read: {error.strerror}") from error
    if not found:
        raise UserError(f"{as_text(path)}: there is no such folder")
    real = Path(os.path.realpath(path))
    system = any(real.is_relative_to(place) for place in SYSTEM_FOLDERS) and not real.is_relative_to(
        "/dev/shm"
    )
    if system or real == Path(real.anchor):
        raise UserError(f"{as_text(path)} is a folder of the system's: name one that holds pictures")


def walk(root: Path, on_bad_file: BadFile) -> Iterator[Path]:
    """Every file below the folder in natural order, hidden ones left out; an `OSError` if the folder is not there.

    A link to a folder is not followed, because it may lead out or round in circles.
    """
    levels = [iter(_listed(root))]
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            try:
                levels.append(iter(_listed(path)))
            except OSError as error:
                on_bad_file(path, f"{as_text(path)}: this folder cannot be listed: {error.strerror}")
        elif entry.is_symlink() and path.is_dir():
            on_bad_file(path, f"{as_text(path)}: a link to a folder is not followed")
        else:
            yield path


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(shown, key=lambda entry: natural_order(entry.name))


def class_of(path: Path, root: Path, labels: str, folders: ClassFolders | None = None) -> str | None:
    """The folder that names the file's class, if that is where labels come from; the first one unless it is known better."""
    if labels != "folders":
        return None
    return (folders or ClassFolders()).class_of(tuple(map(as_text, path.relative_to(root).parts)))


def read_frame(path: Path, root: Path, labels: str, folders: ClassFolders | None = None) -> Frame:
    """The image in a file below `root`; `BadImage` says why it cannot be used."""
    # Asked here and not when the folder was listed: a link may have changed in between.
    inside = os.path.realpath(root)
    if os.path.commonpath([inside, os.path.realpath(path)]) != inside:
        raise BadImage(f"{as_text(path)} leads out of the folder: such a link is not followed")
    data = read_bytes(path)
    return Frame(
        image=decode_image(data, str(path)),
        origin=as_text(path),
        label=class_of(path, root, labels, folders),
        digest=sha256(data),
        at=time.time(),
    )


class Folder(FileStream):
    """All images below a folder; with `labels="folders"`, the folders name the classes as `class_folders` says."""

    def __init__(
        self, path: Path, labels: str = "none", on_bad_file: BadFile | None = None, fps: float | None = None
    ) -> None:
        require_folder(path)
        super().__init__(as_text(path), fps)
        self._root = path
        self._labels = labels
        self._on_bad_file = on_bad_file
        self._folders: ClassFolders | None = None  # which name the classes
        self._files = self._listed() if labels == "folders" else walk(path, self._refuse)

    def _listed(self) -> Iterator[Path]:
        """The files whose folders name a class, all listed first: only together they show which folders do."""
        paths = [*walk(self._root, self._refuse)]
        names = {path: tuple(map(as_text, path.relative_to(self._root).parts)) for path in paths}
        folders = self._folders = find_class_folders([*names.values()])
        yield from (path for path in paths if not folders.leaves_out(names[path]))

    def _next(self) -> Frame | None:
        try:
            path = next(self._files, None)
        except OSError as error:
            self._stop(f": the folder {self.name} cannot be listed: {error.strerror}")
            return None
        if path is None:
            self._stop()
            return None
        try:
            return read_frame(path, self._root, self._labels, self._folders)
        except BadImage as error:
            # When the whole folder is gone, that is the one thing to say, and not each of its files.
            if self._root.is_dir():
                self._refuse(path, str(error))
            else:
                self._stop()
        return None

    def _stop(self, problem: str = "") -> None:
        if not self._root.is_dir():
            problem = f": the folder {self.name} has disappeared: is its disk still connected?"
        self._end = f"ended after {self._frames} images{self._note}{problem}"

    def _refuse(self, path: Path, reason: str) -> None:
        self._bad += 1
        if self._on_bad_file is not None:
            self._on_bad_file(path, reason)

    def _progress(self) -> str:
        return f"live, {self._frames} images so far{self._note}"

    @property
    def _note(self) -> str:
        return f" ({self._folders.note})" if self._folders and self._folders.note else ""
