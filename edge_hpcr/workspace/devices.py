"""The devices that use a workspace's models, as each of them last reported: `devices.sqlite`.

Nothing that was learned depends on it, and devices report again within a minute, so that a damaged one is made anew.
Any process may write. Times are this machine's: the clock of a device may say 1970.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from edge_hpcr.common.errors import UserError, first_of

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_DEVICES = 10_000  # of more, those that have been silent for longest are forgotten
SILENT_SECONDS = 300.0  # after which a device counts as silent
LONGEST_TEXT = 300
BUSY_SECONDS = 5.0

# Damaged, or of another version.
_ANOTHER = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_TABLE = """
CREATE TABLE IF NOT EXISTS reports (
    id TEXT PRIMARY KEY, first_seen REAL NOT NULL, last_seen REAL NOT NULL, since REAL NOT NULL, facts TEXT NOT NULL
) WITHOUT ROWID
"""
_REPORTED = """
INSERT INTO reports VALUES (:id, :at, :at, :at, :facts) ON CONFLICT (id) DO UPDATE SET
    since = iif(json_extract(facts, '$.version') IS json_extract(:facts, '$.version'), since, :at),
    last_seen = :at, facts = :facts
"""


def check_id(device: str) -> str:
    """The id, or a `UserError` that says how one is written."""
    if ID.fullmatch(device) is None:
        written = "an id has 1 to 64 letters, digits, points, lines and underscores"
        raise UserError(f"device {device[:80]!r}: {written}")
    return device


def _printable(text: Any) -> Any:
    """It is shown on pages and in terminals: one line, and not too long."""
    if not isinstance(text, str):
        return text
    return "".join(each if each.isprintable() else " " for each in text)[:LONGEST_TEXT]


Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, BeforeValidator(_printable)]


class Facts(BaseModel):
    """What a device says of itself and is kept; further fields of a newer one are let pass."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    version: Count | None  # None: it has no model yet
    frames: Count  # since its start
    unknown: Count  # of these
    unsure_waiting: Count  # frames that wait on the device for the way here
    unsure_dropped: Count  # frames for which it had no room
    problem: Text | None


class Report(Facts):
    """What a device sends."""

    device: str

    @classmethod
    def parse(cls, data: bytes) -> Report:
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise UserError(first_of(error)) from None


class Device(Facts):
    """What is known of a device."""

    id: str
    first_seen: float
    last_seen: float
    since: float  # that it reports this version

    @property
    def unknown_share(self) -> float | None:
        return min(1.0, self.unknown / self.frames) if self.frames else None

    def silent_for(self, now: float) -> float:
        return max(0.0, now - self.last_seen)

    def is_silent(self, now: float) -> bool:
        return self.silent_for(now) > SILENT_SECONDS


def note_report(path: Path, device: str, report: Report, at: float | None = None) -> None:
    """Note what a device says; a `UserError` if it cannot be stored."""
    at = time.time() if at is None else at
    facts = report.model_dump_json(include=set(Facts.model_fields))
    row = {"id": check_id(device), "at": at, "facts": facts}
    try:
        _store(path, row)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in _ANOTHER:
            raise UserError(f"{path} cannot be written: {error}") from error
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink(missing_ok=True)
        _store(path, row)


def _store(path: Path, row: dict[str, Any]) -> None:
    with closing(sqlite3.connect(path, BUSY_SECONDS)) as db:
        # A power cut may take the last reports, and never the file.
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL"):
            db.execute(f"PRAGMA {pragma}")
        with db:
            db.execute(_TABLE)
            db.execute(_REPORTED, row)
            newest = "SELECT id FROM reports ORDER BY last_seen DESC LIMIT ?"
            db.execute(f"DELETE FROM reports WHERE id NOT IN ({newest})", (MOST_DEVICES,))


def devices(path: Path) -> list[Device]:
    """All that have reported, by id."""
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=ro", BUSY_SECONDS, uri=True)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'reports'").fetchone():
                return []
            rows = db.execute("SELECT id, first_seen, last_seen, since, facts FROM reports ORDER BY id")
            names = ("id", "first_seen", "last_seen", "since")
            return [Device(**dict(zip(names, row, strict=False)), **json.loads(row[-1])) for row in rows]
    except (sqlite3.DatabaseError, ValueError) as error:
        anew = "the next report of a device makes it anew"
        raise UserError(f"{path} cannot be read ({error}): {anew}") from error
