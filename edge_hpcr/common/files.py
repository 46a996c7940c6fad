"""Files that survive a power cut, locks between processes, and the hash that tells whether a file is the right one."""

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from edge_hpcr.common.errors import UserError

WRITING = ".writing"  # ends the name of a file that is not finished
LOOK_SECONDS = 0.5  # far longer than `is_locked` takes


class Locked(UserError):
    """Another process holds the lock."""


def cache_folder() -> Path:
    """Where what takes long to make is kept: `$EDGE_HPCR_CACHE`, or the user's cache."""
    if chosen := os.environ.get("EDGE_HPCR_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edge-hpcr"


def weights_file(name: str) -> Path:
    """Where `weights get` puts the weights of a backbone."""
    return cache_folder() / "weights" / f"{name}.safetensors"


def sha256(content: Path | bytes) -> str:
    """The SHA-256 of a file or of bytes, in hexadecimal.

    >>> sha256(b"")[:8]
    'e3b0c442'
    """
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_regular(path: Path, limit: int, refuse: Callable[[str], Exception], follow: bool = True) -> bytes:
    """The contents of a regular file of at most `limit` bytes; `refuse` makes the error to raise out of the reason.

    What is checked and what is read are one file, whatever happens to its name.
    """
    # Not blocking: opening a named pipe would wait for somebody to write into it.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:  # a ValueError: a zero byte in the name
        raise refuse(reason_of(error)) from error
    state = os.fstat(descriptor)
    problem = "" if stat.S_ISREG(state.st_mode) else "not a regular file but a directory, a pipe or a device"
    if state.st_size > limit:
        problem = f"it has more than {limit:,} bytes"
    if problem:
        # Before it is a Python file: of a folder, none can be made, and nobody would close it.
        os.close(descriptor)
        raise refuse(problem)
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(state.st_size + 1)
        except OSError as error:
            raise refuse(reason_of(error)) from error
    if len(data) != state.st_size:
        raise refuse("it changed while it was read")
    return data


def reason_of(error: Exception) -> str:
    """Why a file operation failed, without the path that the caller names anyway."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def disk_errors(what: str, advice: str = "") -> Iterator[None]:
    """Turn what the disk refuses into one clear line: what was done, the system's reason, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {reason_of(error)}{'; ' if advice else ''}{advice}") from error


def flush_to_disk(path: Path) -> None:
    """fsync a file or a folder: a rename alone may reach the disk before the contents do."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_through(path: Path, data: bytes | str, mode: int = 0o666) -> None:
    """Write a file that is on the disk when this returns; a crash may leave half of it."""
    path.unlink(missing_ok=True)  # what a crash left, or a link that leads elsewhere
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes | str, *, durable: bool = True, mode: int = 0o666) -> None:
    """Replace a file: readers, and whoever comes after a crash, see the old contents or the new ones.

    With `durable` the new ones are on the disk when this returns. Without it a power cut may bring back the old ones,
    or an empty file; that is enough, and much cheaper, for a report that is replaced every second.
    """
    temporary = path.with_name(path.name + WRITING)
    try:
        if durable:
            write_through(temporary, data, mode)
        else:
            temporary.unlink(missing_ok=True)
            temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        flush_to_disk(path.parent)


@contextmanager
def locked(path: Path, refusal: str, wait_seconds: float = 0.0, remove: bool = False) -> Iterator[None]:
    """Hold a lock between processes by a file, which the system frees with the process, however that ends.

    `Locked(refusal)` when another process still holds it after so many seconds; {owner} in it becomes that process's
    number. With `remove` the file goes with the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # `is_locked` in another process holds it for a moment: that is no reason to refuse.
    deadline = time.monotonic() + max(wait_seconds, LOOK_SECONDS)
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    owner = file.read().strip() or "unknown"
                    raise Locked(refusal.replace("{owner}", owner)) from None
                time.sleep(0.02)
                continue
            if not _is_at(path, file):
                continue  # its last holder removed it between our opening and our locking: this lock locks nothing
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def is_locked(path: Path) -> bool:
    """Whether some process, in whichever container, holds the lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
