"""Where a measurement is kept: a JSON file, and beside it a page with its tables."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import write_atomically


def check_writable(out: Path) -> None:
    """Before the measurement and not after it: minutes would be lost."""
    if out.suffix != ".json":
        raise UserError(f"--out {out}: name a .json file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
        if out.is_dir():
            raise IsADirectoryError(None, "it is a folder")
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): give another file to --out") from None


def keep(out: Path, result: dict[str, Any]) -> None:
    write_atomically(out, json.dumps(result, indent=1, allow_nan=False) + "\n")


def keep_with_page(out: Path, result: dict[str, Any], tables: str, command: str) -> None:
    """Keep it, and its tables beside it and on the screen."""
    page = out.with_suffix(".md")
    keep(out, result)
    write_atomically(page, f"Made by `{command}` from `{out.name}`.\n\n{tables}\n")
    print(f"{tables}\n\nkept in {out} and {page}")


def table(header: list[str], rows: list[list[str]]) -> str:
    """In Markdown: the first column to the left, numbers to the right."""
    sides = ["left", *["right"] * (len(header) - 1)]
    return tabulate(rows, header, tablefmt="pipe", colalign=sides, disable_numparse=True)
