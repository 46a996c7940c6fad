"""The samples' images: one file each, named by the sample's id, whole or absent.

    images/23/000123.png

A file is flushed to disk before the journal gets its row. What a crash leaves in between belongs to no row, and is
set aside when the workspace is next opened for learning (`recover.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, flush_to_disk, sha256, write_atomically
from edge_hpcr.stream.base import Frame
from edge_hpcr.stream.gate import perceptual_hash
from edge_hpcr.workspace.records import SampleRow, is_sample_name

LONGEST_SIDE = 512
LARGEST_PNG_SIDE = 128
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]


class SampleFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def write(self, images: Sequence[tuple[int, np.ndarray]]) -> list[SampleRow]:
        """Keep RGB images under their samples' ids; they are on disk when this returns. If one fails, none is left."""
        written: list[SampleRow] = []
        with disk_errors(f"cannot keep an image in {self.folder}", "check free space and permissions"):
            try:
                for sample_id, image in images:
                    written.append(self._write_file(sample_id, image))
            except BaseException:
                self.remove(stored.file for stored in written)
                raise
        return written

    def _write_file(self, sample_id: int, image: np.ndarray) -> SampleRow:
        image = shrink(image)
        encoded, suffix = _encode(image)
        name = f"{sample_id % 100:02d}/{sample_id:06d}{suffix}"
        path = sample_path(self.folder, name)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            flush_to_disk(self.folder)
        write_atomically(path, encoded)
        height, width = image.shape[:2]
        digest, size = sha256(encoded), len(encoded)
        return SampleRow(sample_id, name, digest, size, width=width, height=height)

    def read(self, sample: SampleRow) -> np.ndarray:
        """The sample's image as it was stored, RGB; a damaged or missing file is an error that names the sample."""
        return decode(self.content(sample))

    def content(self, sample: SampleRow) -> bytes:
        """The file as it was stored."""
        if not sample.has_image:
            removed, dropped = "it was removed from the queue", "it was dropped to make room"
            why = removed if sample.state == "deleted" else dropped
            raise UserError(f"sample {sample.id} has no image any more: {why}")
        path = sample_path(self.folder, sample.file)
        with disk_errors(f"image of sample {sample.id}, {path}", "delete the sample"):
            content = path.read_bytes()
        if sha256(content) != sample.digest:
            raise UserError(f"image of sample {sample.id}, {path}: damaged; delete the sample")
        return content

    def remove(self, files: Iterable[str]) -> None:
        """Remove files, unflushed: one that a power cut brings back has no row, and goes at the next opening."""
        for file in files:
            sample_path(self.folder, file).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """Every file there, unfinished ones among them."""
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if folder.is_dir() and not folder.is_symlink():
                yield from (f"{folder.name}/{file.name}" for file in folder.iterdir())


def sample_path(folder: Path, file: str) -> Path:
    """Where a sample's file lies: the one place in which a name that a journal gives becomes a path.

    A name of any other form is refused, and so is a link, which may lead out of the workspace.
    """
    if not is_sample_name(file):
        raise UserError(f"{file[:100]!r} is no name of a sample's image", code="sample-path")
    path = folder / file
    if path.is_symlink() or path.parent.is_symlink():
        raise UserError(f"{path} is a link, and links are not followed here", code="sample-path")
    return path


def shrink(image: np.ndarray) -> np.ndarray:
    """Scale an image down until its longer side is at most LONGEST_SIDE; area averaging avoids moiré."""
    height, width = image.shape[:2]
    scale = LONGEST_SIDE / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def looked_at(frame: Frame) -> Frame:
    """The frame as it would be stored, and what the gate wants to know of it."""
    return replace(frame, image=shrink(frame.image), hash64=perceptual_hash(frame.image))


def decode(content: bytes) -> np.ndarray:
    decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    if decoded is None:
        raise UserError("an image that this version of OpenCV cannot read: reinstall the requirements")
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def _encode(image: np.ndarray) -> tuple[bytes, str]:
    small = max(image.shape[:2]) <= LARGEST_PNG_SIDE
    suffix, options = (".png", []) if small else (".jpg", _JPEG)
    try:
        _, encoded = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    except cv2.error:
        given = f"an image of shape {image.shape} and type {image.dtype}"
        raise UserError(f"{given} cannot be encoded: give uint8 RGB [H, W, 3]") from None
    return encoded.tobytes(), suffix
