"""Trouble with the disk while a process works, as far as this machine allows it."""

import ctypes
import errno
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

DISK = "64m"
MOST_LEFT = 300_000  # bytes, so that it becomes full now here, now there
_BLOCK = 1 << 20
_CAPABILITIES_3, _OVERRIDES = 0x20080522, 0b111  # CHOWN, DAC_OVERRIDE and DAC_READ_SEARCH


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a disk of 64 MB here; False where that is not allowed, which needs root."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(folder)]
    mounted = (
        shutil.which("mount") is not None and not subprocess.run(command, capture_output=True).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


@contextmanager
def full_disk(folder: Path, rng: np.random.Generator) -> Iterator[None]:
    """Fill the small disk that the workspace is on; a few pages may be left."""
    filler = folder.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(_BLOCK))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        if rng.random() < 0.5:
            file.truncate(max(0, file.tell() - int(rng.integers(MOST_LEFT))))
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def read_only(folder: Path, rng: np.random.Generator) -> Iterator[None]:
    """Take away the right to write to the workspace's folders, or to some of them."""
    folders = [folder, *(entry for entry in folder.iterdir() if entry.is_dir())]
    chosen = [each for each in folders if rng.random() < 0.7] or folders
    before = {each: each.stat().st_mode for each in chosen}
    try:
        for each in chosen:
            each.chmod(0o500)
        yield
    finally:
        for each, mode in before.items():
            with suppress(FileNotFoundError):
                each.chmod(mode)


def lose_overrides() -> None:
    """Let rights count for root, too; of no effect for others. Only on Linux."""
    if platform.system() != "Linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    data = (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    data[0] &= ~_OVERRIDES  # effective
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
