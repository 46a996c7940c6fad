"""The files of a folder or a zip that holds a folder for each class: listed, and read without trusting any of them."""

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors
from edge_hpcr.common.text import as_text, natural_order
from edge_hpcr.stream.contract import BadFile
from edge_hpcr.stream.decode import MAX_BYTES, BadImage, read_bytes
from edge_hpcr.stream.folder import require_folder, walk

MOST_ENTRIES = 200_000  # in a zip
MOST_BYTES = 20_000_000_000  # of a zip, unpacked
MAC_EXTRAS = "__MACOSX"
_LONGEST_ENTRY, _LONGEST_PART = 1000, 255
_PIECE = 1 << 20
# What `zipfile` raises on archives that are damaged, or made to look so.
ZIP_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error)


@dataclass(frozen=True)
class SourceFile:
    parts: tuple[str, ...]  # folders and name below the top, as text
    path: Path  # for people; inside a zip, the zip's path and then the name
    read: Callable[[], bytes]  # `BadImage` says why not


def check_source(source: Path, called: Path | None = None) -> None:
    """Refuse what can be no source of an import, without reading all of it."""
    name = called or source
    with disk_errors(f"{name} cannot be read"):
        if not source.exists():
            raise UserError(f"{name}: there is no such folder or zip file")
        if source.is_dir():
            require_folder(source)  # refuses those of the system, which are endless
            return
        if source.is_file() and zipfile.is_zipfile(source):
            return
    raise UserError(f"{name} is no folder and no whole zip file: name one with a folder for each class")


@contextmanager
def open_source(source: Path, refuse: BadFile, called: Path | None = None) -> Iterator[list[SourceFile]]:
    """List the files of a folder or a zip, in natural order, without hidden ones; `called` replaces a zip's path."""
    name = called or source
    if source.is_dir():
        with disk_errors(f"{source} cannot be listed"):
            paths = list(walk(source, refuse))
        names = [tuple(map(as_text, path.relative_to(source).parts)) for path in paths]
        reads = [partial(read_bytes, path, follow=False) for path in paths]
        yield list(map(SourceFile, names, paths, reads))
        return
    try:
        with disk_errors(f"{name} cannot be read"):
            bundle = zipfile.ZipFile(source)
    except ZIP_DAMAGE as error:
        raise UserError(f"{name} is damaged, no whole zip ({error}): copy or make it again") from error
    with bundle:
        yield _zip_files(name, bundle)


def _zip_files(source: Path, bundle: zipfile.ZipFile) -> list[SourceFile]:
    entries = bundle.infolist()
    if len(entries) > MOST_ENTRIES:
        many = f"{len(entries):,} entries, more than {MOST_ENTRIES:,}"
        raise UserError(f"{source} holds {many}: unpack it and import the folder")
    meter = _Meter(source)
    files = []
    for entry in entries:
        name = entry.filename.replace("\\", "/")  # as some programs for Windows write it
        _check_entry(source, entry, name)
        parts = PurePosixPath(name).parts
        if name.endswith("/") or parts[0] == MAC_EXTRAS or any(part.startswith(".") for part in parts):
            continue
        path = source.joinpath(*parts)
        files.append(SourceFile(parts, path, partial(_read_entry, bundle, entry, path, meter)))
    return sorted(files, key=lambda file: [natural_order(part) for part in file.parts])


def _check_entry(source: Path, entry: zipfile.ZipInfo, name: str) -> None:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or PureWindowsPath(name).drive or ".." in parts:
        raise UserError(f"{source} is refused: {entry.filename[:100]!r} in it leads out of the archive")
    longest = max((len(part.encode(errors="replace")) for part in parts), default=0)
    if not parts or longest > _LONGEST_PART or len(name) > _LONGEST_ENTRY:
        raise UserError(f"{source} is refused: {entry.filename[:100]!r} in it is no name of a file")
    if entry.flag_bits & 1:
        raise UserError(f"{source} is encrypted: unpack it with its password and import the folder")
    # Python unpacks the other methods without a limit, so that a small file could fill the memory.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{source} is packed in an unusual way: unpack it and import the folder")


@dataclass
class _Meter:
    """What has really been unpacked; the sizes that an archive states are its own."""

    source: Path
    bytes: int = 0

    def add(self, count: int) -> None:
        self.bytes += count
        if self.bytes > MOST_BYTES:
            large = f"{self.source} unpacks to more than {MOST_BYTES:,} bytes"
            raise UserError(f"{large}: unpack it and import the folder")


def _read_entry(bundle: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, meter: _Meter) -> bytes:
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise BadImage(f"{path} is a link: links are not followed")
    content = bytearray()
    try:
        with bundle.open(entry) as file:
            while piece := file.read(_PIECE):
                meter.add(len(piece))
                content += piece
                if len(content) > MAX_BYTES:
                    raise BadImage(f"{path} cannot be used as an image: it has more than {MAX_BYTES:,} bytes")
    except (*ZIP_DAMAGE, OSError) as error:
        raise BadImage(f"{path} cannot be used as an image: it is damaged in the zip ({error})") from error
    return bytes(content)
