"""A staged roll-out: a version goes to named devices first, and to all of them once it is released.

    exports/staged.json      the version on trial, its devices, and the latest.json that they are given

Whatever makes a version current for everybody ends the trial: a release, a rollback, publishing by hand. Publishing by
itself waits meanwhile: what is tried must stay the same, and the others must not get what nobody has tried.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import write_atomically
from edge_hpcr.common.formats import STAGED
from edge_hpcr.workspace.devices import ID, check_id

FILE = "staged.json"
LARGEST = 2_000_000
MOST_DEVICES = 10_000


@dataclass(frozen=True)
class Staged:
    """A version on trial."""

    version: int
    devices: tuple[str, ...]
    since: float  # Unix time
    latest: str  # the contents of the latest.json for these devices


def check_devices(text: str) -> tuple[str, ...]:
    """The devices of a list like `cam-1,cam-2`."""
    devices = tuple(dict.fromkeys(check_id(each.strip()) for each in text.split(",") if each.strip()))
    if not 1 <= len(devices) <= MOST_DEVICES:
        raise UserError(f"--devices: name 1 to {MOST_DEVICES:,} devices, with commas between them")
    return devices


def staged(exports: Path) -> Staged | None:
    """The trial that is under way; None when there is none, or when its file is damaged."""
    try:
        facts = json.loads((exports / FILE).read_bytes()[: LARGEST + 1])
        STAGED.is_old(facts["format"], exports / FILE)
        version, devices, latest = int(facts["version"]), tuple(facts["devices"]), str(facts["latest"])
        if not all(isinstance(each, str) and ID.fullmatch(each) for each in devices):
            return None
        return Staged(version, devices, float(facts["since"]), latest)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def write_staged(exports: Path, version: int, devices: Sequence[str], latest: bytes) -> None:
    """Begin a trial, or change it; under the folder's lock."""
    facts = {"version": version, "devices": list(devices), "since": time.time(), "latest": latest.decode()}
    write_atomically(exports / FILE, json.dumps({"format": STAGED.current, **facts}))


def end_staging(exports: Path) -> None:
    """Give everybody the current version; under the folder's lock."""
    (exports / FILE).unlink(missing_ok=True)
