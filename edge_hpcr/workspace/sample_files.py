"""The samples' images: one file each, named by the sample's id, whole or absent.

    images/23/000123.png

A file is flushed to disk before the journal gets its row. What a crash leaves in between belongs to no row, and is
removed when the workspace is next opened for learning (`set_aside.py`).
"""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING, disk_errors, flush_to_disk, sha256, write_through
from edge_hpcr.workspace.records import SampleRow

LONGEST_SIDE = 512
LARGEST_PNG_SIDE = 128
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]


@dataclass(frozen=True)
class StoredFile:
    file: str  # relative to the images' folder
    digest: str  # SHA-256 of the file
    bytes: int
    width: int
    height: int


class SampleFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def write(self, sample_id: int, image: np.ndarray) -> StoredFile:
        """Keep an RGB image under the sample's id; it is on disk when this returns."""
        return self.write_many([(sample_id, image)])[0]

    def write_many(self, images: Sequence[tuple[int, np.ndarray]]) -> list[StoredFile]:
        """As `write`, with one flush of each folder for all of them. If one fails, none is left."""
        written: list[StoredFile] = []
        with disk_errors(f"cannot keep an image in {self.folder}", "is there room, and a right to write?"):
            try:
                folders = self._make_folders({_folder_of(sample_id) for sample_id, _ in images})
                for sample_id, image in images:
                    written.append(self._write_file(sample_id, image))
                for folder in folders:
                    flush_to_disk(folder)
            except BaseException:
                self.remove(stored.file for stored in written)
                raise
        return written

    def _make_folders(self, names: Iterable[str]) -> list[Path]:
        folders = [self.folder / name for name in names]
        missing = [folder for folder in folders if not folder.is_dir()]
        for folder in missing:
            folder.mkdir(parents=True, exist_ok=True)
        if missing:
            flush_to_disk(self.folder)
        return folders

    def _write_file(self, sample_id: int, image: np.ndarray) -> StoredFile:
        image = shrink(image)
        encoded, suffix = _encode(image)
        name = f"{_folder_of(sample_id)}/{sample_id:06d}{suffix}"
        path = self.folder / name
        temporary = path.with_name(path.name + WRITING)
        try:
            write_through(temporary, encoded)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        height, width = image.shape[:2]
        return StoredFile(name, sha256(encoded), len(encoded), width, height)

    def read(self, sample: SampleRow) -> np.ndarray:
        """The sample's image as it was stored, RGB; a damaged or missing file is an error that names the sample."""
        path = self.folder / sample.file
        if not sample.has_image:
            why = (
                "it was removed from the queue"
                if sample.state == "deleted"
                else "it was dropped to make room"
            )
            raise UserError(f"sample {sample.id} has no image any more: {why}")
        with disk_errors(f"image of sample {sample.id}, {path}", "delete the sample"):
            content = path.read_bytes()
        if sha256(content) != sample.digest:
            raise UserError(f"image of sample {sample.id}, {path}: damaged; delete the sample")
        return decode(content)

    def file_of(self, sample_id: int) -> str | None:
        """The name of a sample's file, if there is one, when no row tells it."""
        names = [f"{_folder_of(sample_id)}/{sample_id:06d}{suffix}" for suffix in (".png", ".jpg")]
        return next((name for name in names if (self.folder / name).is_file()), None)

    def matches(self, sample: SampleRow) -> bool:
        """Whether the file is there with the content that was stored."""
        try:
            return sha256(self.folder / sample.file) == sample.digest
        except OSError:
            return False

    def remove(self, files: Iterable[str]) -> None:
        """Remove files, unflushed: one that a power cut brings back has no row, and goes at the next opening."""
        for file in files:
            (self.folder / file).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """Every file there, unfinished ones among them."""
        for folder in self._entries(self.folder):
            if folder.is_dir(follow_symlinks=False):
                for entry in self._entries(Path(folder.path)):
                    yield f"{folder.name}/{entry.name}"

    @staticmethod
    def _entries(folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def orphans(self, known: Collection[str]) -> list[str]:
        """The files there that are not among the known, without those that a file manager hides."""
        return [name for name in self.names() if name not in known and "/." not in name]


def sample_id_of(file: str) -> int | None:
    """The sample that a file's name speaks of; None for a file that is unfinished or not ours.

    >>> sample_id_of("23/000123.png"), sample_id_of("23/000123.png.writing")
    (123, None)
    """
    path = Path(file)
    return int(path.stem) if path.suffix in (".png", ".jpg") and path.stem.isdecimal() else None


def shrink(image: np.ndarray) -> np.ndarray:
    """Scale an image down until its longer side is at most LONGEST_SIDE; area averaging avoids moiré."""
    height, width = image.shape[:2]
    scale = LONGEST_SIDE / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def decode(content: bytes) -> np.ndarray:
    decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    if decoded is None:
        raise UserError("an image that this version of OpenCV cannot read: reinstall the requirements")
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def _folder_of(sample_id: int) -> str:
    return f"{sample_id % 100:02d}"


def _encode(image: np.ndarray) -> tuple[bytes, str]:
    small = max(image.shape[:2]) <= LARGEST_PNG_SIDE
    suffix, options = (".png", []) if small else (".jpg", _JPEG)
    try:
        _, encoded = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    except cv2.error:
        given = f"an image of shape {image.shape} and type {image.dtype}"
        raise UserError(f"{given} cannot be encoded: give uint8 RGB [H, W, 3]") from None
    return encoded.tobytes(), suffix
