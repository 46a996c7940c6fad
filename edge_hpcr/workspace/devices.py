"""The devices that use a workspace's models, as each of them last reported: `devices.sqlite`.

Nothing that was learned depends on it, and devices report again within a minute, so that a damaged one is made anew.
Any process may write. Times are this machine's: the clock of a device may say 1970.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.formats import DEVICES

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_DEVICES = 10_000  # of more, those that have been silent for longest are forgotten
SILENT_SECONDS = 300.0  # after which a device counts as silent
LONGEST_TEXT = 300
BUSY_SECONDS = 5.0
PLAUSIBLE_SECONDS = 366 * 86_400.0  # that something on a device may be ago, by its own clock

_TABLE = """
CREATE TABLE IF NOT EXISTS devices (
    id TEXT PRIMARY KEY, first_seen REAL NOT NULL, last_seen REAL NOT NULL, version INTEGER, since REAL NOT NULL,
    frames INTEGER NOT NULL, unknown INTEGER NOT NULL, unsure_waiting INTEGER NOT NULL, unsure_dropped INTEGER NOT NULL,
    problem TEXT, software TEXT NOT NULL) WITHOUT ROWID
"""
_REPORTED = """
INSERT INTO devices VALUES (:id, :at, :at, :version, :since, :frames, :unknown, :waiting, :dropped, :problem, :software)
ON CONFLICT (id) DO UPDATE SET last_seen = :at, since = iif(version IS :version, since, :since), version = :version,
    frames = :frames, unknown = :unknown, unsure_waiting = :waiting, unsure_dropped = :dropped, problem = :problem,
    software = :software
"""


def check_id(device: str) -> str:
    """The id, or a `UserError` that says how one is written."""
    if ID.fullmatch(device) is None:
        raise UserError(
            f"device {device[:80]!r}: an id has 1 to 64 letters, digits, points, lines and underscores"
        )
    return device


def _printable(text: Any) -> Any:
    """It is shown on pages and in terminals: one line, and not too long."""
    if not isinstance(text, str):
        return text
    return "".join(each if each.isprintable() else " " for each in text)[:LONGEST_TEXT]


Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, BeforeValidator(_printable)]


class Report(BaseModel):
    """What a device sends; further fields of a newer one are let pass."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    device: str
    version: Count | None
    since: float  # when it began to use the version; this and the next two by the device's own clock
    started: float
    now: float
    frames: Count
    unknown: Count
    unsure_waiting: Count
    unsure_dropped: Count
    problem: Text | None
    software: Text

    @classmethod
    def parse(cls, data: bytes) -> Report:
        try:
            return cls.model_validate(json.loads(data, parse_constant=_refuse_constant))
        except ValidationError as error:
            wrong = error.errors()[0]
            raise UserError(f"{'.'.join(map(str, wrong['loc'])) or 'report'}: {wrong['msg']}") from None
        except (ValueError, RecursionError):
            raise UserError("the report is not valid JSON") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


@dataclass(frozen=True)
class Device:
    """What is known of a device."""

    id: str
    first_seen: float
    last_seen: float
    version: int | None  # None: it has no model yet
    since: float  # that it runs the version
    frames: int  # since its start
    unknown: int  # of these
    unsure_waiting: int  # frames that wait on the device for the way here
    unsure_dropped: int  # frames for which it had no room
    problem: str | None
    software: str

    @property
    def unknown_share(self) -> float | None:
        return self.unknown / self.frames if self.frames else None

    def silent_for(self, now: float) -> float:
        return max(0.0, now - self.last_seen)

    def is_silent(self, now: float) -> bool:
        return self.silent_for(now) > SILENT_SECONDS


class Registry:
    """Writes reports into a workspace's list of devices. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    def report(self, device: str, report: Report, at: float | None = None) -> None:
        """Note what a device says; a `UserError` if it cannot be stored."""
        at = time.time() if at is None else at
        # Its own clock is good for how long ago something was, unless it was set meanwhile.
        age = report.now - report.since
        facts = {
            "id": check_id(device),
            "at": at,
            "version": report.version,
            "since": at - age if 0 <= age <= PLAUSIBLE_SECONDS else at,
            "frames": report.frames,
            "unknown": min(report.unknown, report.frames),
            "waiting": report.unsure_waiting,
            "dropped": report.unsure_dropped,
            "problem": report.problem,
            "software": report.software,
        }
        with self._lock:
            try:
                self._store(facts)
            except sqlite3.DatabaseError as error:
                self._close()
                if not _is_damage(error):
                    raise UserError(f"{self.path} cannot be written: {error}") from error
                for left in self.path.parent.glob(f"{self.path.name}*"):
                    left.unlink(missing_ok=True)
                self._store(facts)

    def _store(self, facts: dict[str, Any]) -> None:
        if self._db is None:
            self._db = _open(self.path)
        with self._db:
            self._db.execute(_REPORTED, facts)
            ((held,),) = self._db.execute("SELECT count(*) FROM devices")
            if held > MOST_DEVICES:
                oldest = "SELECT id FROM devices ORDER BY last_seen LIMIT ?"
                self._db.execute(f"DELETE FROM devices WHERE id IN ({oldest})", (held - MOST_DEVICES,))

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, BUSY_SECONDS, check_same_thread=False)
    try:
        # A power cut may take the last reports, and never the file.
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL"):
            db.execute(f"PRAGMA {pragma}")
        _check_format(db, path)
        db.execute(_TABLE)
        db.execute(f"PRAGMA user_version = {DEVICES.current}")
        db.commit()
    except BaseException:
        db.close()
        raise
    return db


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    ((written,),) = db.execute("PRAGMA user_version")
    if written and DEVICES.is_old(written, path):
        DEVICES.upgrade(db, written)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=ro", BUSY_SECONDS, uri=True)) as db:
            _check_format(db, path)
            yield db
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{path} cannot be read ({error}): the next report of a device makes it anew"
        ) from error


def devices(path: Path) -> list[Device]:
    """All that have reported, by id."""
    if not path.exists():
        return []
    with _reading(path) as db:
        return [Device(*row) for row in db.execute("SELECT * FROM devices ORDER BY id")]
