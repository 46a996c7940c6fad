"""Files that survive a power cut."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_hpcr.common.errors import UserError


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_to_disk(path: Path) -> None:
    """fsync a file or a folder: a rename alone may reach the disk before the contents do."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file, which the system frees with the process; UserError(refusal) while another one holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(refusal) from None
            try:
                if not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    continue
            except FileNotFoundError:
                continue  # its last holder removed it between our opening and our locking: this lock locks nothing
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
