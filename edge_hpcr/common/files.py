"""Files that survive a power cut."""

import hashlib
import os
from pathlib import Path


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
