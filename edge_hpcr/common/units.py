"""Sizes and settings as people write them."""

import ast
import re
from typing import Any

from edge_hpcr.common.errors import UserError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_WORDS = {"true": True, "false": False}


def parse_bytes(text: str) -> int:
    """`2MB` is 2,000,000 and `2MiB` 2,097,152.

    >>> parse_bytes("2.5 MB")
    2500000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UserError(f"{text!r} is not a size in bytes: write it like 500KB, 2MB or 1MiB")
    size = round(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise UserError(f"{text!r} must be at least 1 byte: write a size like 500KB, 2MB or 1MiB")
    return size


def format_bytes(size: float) -> str:
    """
    >>> format_bytes(2593600)
    '2.59 MB'
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{int(size)} B"


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(40), format_duration(400), format_duration(40000), format_duration(400000)
    ('40 s', '7 min', '11 h', '5 days')
    """
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 72)):
        if seconds / size < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def parse_setting(text: str) -> tuple[str, Any]:
    """`alpha=0.1`: numbers, True, False and None as Python writes them, anything else as text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UserError(f"--set {text}: write it as KEY=VALUE")
    if value.casefold() in _WORDS:
        return key, _WORDS[value.casefold()]
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
