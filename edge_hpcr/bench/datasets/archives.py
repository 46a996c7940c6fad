"""Unpack an archive from outside: files and folders below the target, and nothing else."""

import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from edge_hpcr.common.errors import UserError

MOST_BYTES = 8 << 30  # far above any dataset here; stops an archive made to fill the disk
_UNIX_TYPE_BITS, _UNIX_LINK = 0o170000, 0o120000


def extract(archive: Path, target: Path, most_bytes: int = MOST_BYTES) -> Path:
    """Unpack a .zip or a (compressed) tar file into a folder; refused as a whole if one member is unsafe."""
    target.mkdir(parents=True, exist_ok=True)
    try:
        if archive.suffix == ".zip":
            _extract_zip(archive, target, most_bytes)
        else:
            _extract_tar(archive, target, most_bytes)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise UserError(f"{archive}: damaged: not a whole archive ({error})") from error
    except OSError as error:  # gzip's "not a gzipped file" is one too
        raise UserError(f"{archive}: cannot be unpacked: {error}") from error
    return target


def _extract_tar(archive: Path, target: Path, most_bytes: int) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            if not (member.isfile() or member.isdir()):
                raise UserError(f"{archive}: refused: {member.name!r} is a link or a device")
            _check_name(archive, member.name)
        _check_size(archive, sum(member.size for member in members), most_bytes)
        tar.extractall(target, members=members, filter="data")


def _extract_zip(archive: Path, target: Path, most_bytes: int) -> None:
    with zipfile.ZipFile(archive) as bundle:
        members = bundle.infolist()
        for member in members:
            if (member.external_attr >> 16) & _UNIX_TYPE_BITS == _UNIX_LINK:
                raise UserError(f"{archive}: refused: {member.filename!r} is a link")
            _check_name(archive, member.filename)
        _check_size(archive, sum(member.file_size for member in members), most_bytes)
        bundle.extractall(target)


def _check_name(archive: Path, name: str) -> None:
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.is_absolute() or windows.drive or ".." in windows.parts:
        raise UserError(f"{archive}: refused: {name!r} would be written outside the target folder")


def _check_size(archive: Path, size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise UserError(f"{archive}: refused: unpacked it would be {size:,} bytes, more than {most_bytes:,}")
