"""Names and addresses as people read and order them."""

import os
import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

LONGEST_NAME = 100  # of a class


def as_text(path: Path | str) -> str:
    r"""The path as text that can be stored and printed anywhere: bytes that are not UTF-8 as \xNN.

    On Linux a name is bytes. Python keeps odd ones as half characters, which neither SQLite nor a terminal accepts.
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def many(count: int, one: str) -> str:
    """A number with its noun.

    >>> many(1, "label"), many(2000, "class")
    ('1 label', '2,000 classes')
    """
    return f"{count:,} {one if count == 1 else one + ('es' if one.endswith('s') else 's')}"


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """A sorting key by which img9 comes before img10.

    >>> sorted(["img10", "img9", "Img1"], key=natural_order)
    ['Img1', 'img9', 'img10']
    """
    # Text stands at even places and numbers at odd ones, so that like is compared with like.
    parts = re.split(r"([0-9]+)", name.casefold())
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)], name


def is_class_name(name: str) -> bool:
    """Whether a class may have this name, in a workspace and on a device.

    Printable it need not be: emoji and Persian words are held together by characters that `isprintable` refuses.

    >>> is_class_name("mug"), is_class_name("mug\\n")
    (True, False)
    """
    if len(name) > LONGEST_NAME or not name.strip():
        return False
    return not any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in name)


def split_address(url: str, schemes: Collection[str]) -> SplitResult | None:
    """The parts of an address of one of these kinds; None if it is not one, or its host or port cannot be.

    >>> split_address("http://host:8081/models", ("http", "https")).port
    8081
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode(
            "idna"
        )  # as looking it up would; its own failure at that is no OSError
        good = parts.scheme in schemes and host and parts.port != 0
    except ValueError:
        return None
    return parts if good and url.isprintable() and " " not in url else None


def shown_address(url: str, schemes: Collection[str]) -> str | None:
    """The address without what may be secret: user, password, query, `name=value` in the path; None if it is not one.

    >>> shown_address("rtsp://admin:p@ss/word@10.0.0.7:554/cam/1?token=abc", ["rtsp"])
    'rtsp://10.0.0.7:554/cam/1?…'
    """
    scheme, _, rest = url.partition("://")
    # A password with an unescaped @, / or # must not be taken for a host or a path: all before the last @ goes.
    parts = split_address(f"{scheme.lower()}://{rest.rpartition('@')[2]}", schemes)
    if parts is None or not url.isprintable() or " " in url:
        return None
    path = "/".join("…" if "=" in part else part for part in parts.path.split("/"))
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host}{port}{path}{'?…' if parts.query or parts.fragment else ''}"
