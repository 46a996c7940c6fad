"""A small disk of a test's own that can be filled, as far as this machine allows it."""

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK = 1 << 20


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a disk of 64 MB here; False where that is not allowed, which needs root."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    mounted = (
        shutil.which("mount") is not None and not subprocess.run(command, capture_output=True).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Fill the small disk that this folder is on, to the last page."""
    filler = folder.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(_BLOCK))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    try:
        yield
    finally:
        filler.unlink()
