"""Names of files as people read and order them."""

import os
import re
from pathlib import Path


def as_text(path: Path | str) -> str:
    r"""The path as text that can be stored and printed anywhere: bytes that are not UTF-8 as \xNN.

    On Linux a name is bytes. Python keeps odd ones as half characters, which neither SQLite nor a terminal accepts.
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """A sorting key by which img9 comes before img10.

    >>> sorted(["img10", "img9", "Img1"], key=natural_order)
    ['Img1', 'img9', 'img10']
    """
    # Text stands at even places and numbers at odd ones, so that like is compared with like.
    parts = re.split(r"([0-9]+)", name.casefold())
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)], name
