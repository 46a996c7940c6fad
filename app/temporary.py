"""Temporary folders of this process, readable for its user alone; what a killed process left is removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "edge-hpcr-"  # then what it is for, and the process's number


def own_folder(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """A new folder, which goes with this process if nobody removes it before."""
    prefix = f"{PREFIX}{purpose}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        number = left.name.removeprefix(prefix).partition("-")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", ignore_cleanup_errors=True)
