"""The image files of a folder: in which order they come, which class they belong to, and how one becomes a frame."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from edge_hpcr.common.files import sha256
from edge_hpcr.common.text import as_text, natural_order
from edge_hpcr.stream.contract import BadFile, Frame
from edge_hpcr.stream.decode import BadImage, decode_image, read_bytes


def walk(root: Path, on_bad_file: BadFile) -> Iterator[Path]:
    """Every file below the folder in natural order, hidden ones left out; an `OSError` if the folder is not there.

    A link to a folder is not followed, because it may lead out or round in circles.
    """
    levels = [iter(_listed(root))]
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
        elif entry.is_dir(follow_symlinks=False):
            try:
                levels.append(iter(_listed(Path(entry.path))))
            except OSError as error:
                on_bad_file(Path(entry.path), f"this folder cannot be listed: {error.strerror}")
        elif entry.is_symlink() and Path(entry.path).is_dir():
            on_bad_file(Path(entry.path), "a link to a folder is not followed")
        else:
            yield Path(entry.path)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(shown, key=lambda entry: natural_order(entry.name))


def class_of(path: Path, root: Path, labels: str) -> str | None:
    """The name of the first folder on the way to the file, if that is where labels come from."""
    parts = path.relative_to(root).parts
    return as_text(parts[0]) if labels == "folders" and len(parts) > 1 else None


def read_frame(path: Path, root: Path, labels: str) -> Frame:
    """The image in a file below `root`; `BadImage` says why it cannot be used."""
    # Asked here and not when the folder was listed: a link may have changed in between.
    inside = os.path.realpath(root)
    if os.path.commonpath([inside, os.path.realpath(path)]) != inside:
        raise BadImage(f"{as_text(path)} leads out of the folder: such a link is not followed")
    data = read_bytes(path)
    return Frame(
        image=decode_image(data, str(path)),
        origin=as_text(path),
        label=class_of(path, root, labels),
        digest=sha256(data),
        at=time.time(),
    )
