"""What a damaged journal still gives: its events one after the other, as long as each follows from the last."""

import sqlite3
import time
from dataclasses import dataclass, fields
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.workspace.fold import BrokenChain, Fold, fold_events
from edge_hpcr.workspace.journal import apply, note_action
from edge_hpcr.workspace.queries import COLUMNS, Queries
from edge_hpcr.workspace.records import Body, SampleRow
from edge_hpcr.workspace.sample_files import SampleFiles, decode, sample_id_of

# Ids that were given in events now lost must not be given again; nobody gives so many between two backups.
_ID_GAP = 1000


@dataclass(frozen=True)
class Salvaged:
    events: int
    lost: int
    certain: bool  # the damaged file still told how many events it held


def salvage_events(
    damaged: sqlite3.Connection | None, db: sqlite3.Connection, files: SampleFiles, known_seq: int
) -> Salvaged:
    """Carry events over from the damaged journal, from the first that `db` does not have; `known_seq` did exist."""
    fold = fold_events(Queries(db, files.folder))
    begun = fold.last_seq
    while damaged is not None and (found := _event(damaged, fold.last_seq + 1)) is not None:
        at, kind, text, body = found
        try:
            fold.add(fold.last_seq + 1, kind, body)
        except BrokenChain:
            break
        _carry_over(damaged, db, files, fold, (at, kind, text, body))
    last = _number(damaged, "SELECT seq FROM sqlite_sequence WHERE name = 'events'")
    return Salvaged(
        fold.last_seq - begun, max(0, max(last or 0, known_seq) - fold.last_seq), last is not None
    )


def _event(damaged: sqlite3.Connection, seq: int) -> tuple[float, str, str, Body] | None:
    try:
        row = damaged.execute("SELECT at, kind, body FROM events WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else (*row, Body.from_json(row[2]))
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError):
        return None  # not whole


def _carry_over(
    damaged: sqlite3.Connection,
    db: sqlite3.Connection,
    files: SampleFiles,
    fold: Fold,
    event: tuple[float, str, str, Body],
) -> None:
    at, kind, text, body = event
    seq = fold.last_seq
    for sample_id, _, _ in body.samples:
        if db.execute("SELECT 1 FROM samples WHERE id = ?", (sample_id,)).fetchone() is None:
            _insert(db, _row(damaged, sample_id, files))
    for class_id, old, _ in body.classes:
        db.execute(
            "INSERT OR IGNORE INTO classes (id, name, folded, state) VALUES (?, ?, '', 'absent')",
            (class_id, old.name),
        )
    db.execute("INSERT INTO events (seq, at, kind, body) VALUES (?, ?, ?, ?)", (seq, at, kind, text))
    apply(db, seq, body)
    note_action(db, seq, kind, body.of)


def queue_files_without_row(
    damaged: sqlite3.Connection | None, db: sqlite3.Connection, files: SampleFiles
) -> int:
    """Images whose rows are lost go back to the queue: better to be asked again than to lose the picture."""
    known = {sample_id for (sample_id,) in db.execute("SELECT id FROM samples")}
    there = {sample_id for name in files.names() if (sample_id := sample_id_of(name)) is not None}
    rows = [_row(damaged, sample_id, files) for sample_id in sorted(there - known)]
    lost = [row for row in rows if row["has_image"]]
    for row in lost:
        _insert(db, row)
    return len(lost)


def skip_used_ids(damaged: sqlite3.Connection | None, db: sqlite3.Connection, files: SampleFiles) -> None:
    """Go on counting behind every id that may have been given."""
    used = [_number(damaged, "SELECT value FROM meta WHERE key = 'next_sample'")]
    used += [_number(db, "SELECT value FROM meta WHERE key = 'next_sample'")]
    used += [_number(db, "SELECT max(id) FROM samples"), *(sample_id_of(name) for name in files.names())]
    highest = max(number for number in used if number is not None)
    db.execute("UPDATE meta SET value = ? WHERE key = 'next_sample'", (highest + _ID_GAP,))
    classes = _number(damaged, "SELECT seq FROM sqlite_sequence WHERE name = 'classes'")
    held = _number(db, "SELECT max(id) FROM classes") or 0
    first = max(held, classes if classes is not None else held + _ID_GAP)
    db.execute("DELETE FROM sqlite_sequence WHERE name = 'classes'")
    db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('classes', ?)", (first,))


def _number(db: sqlite3.Connection | None, query: str) -> int | None:
    """A number from a database that may be damaged."""
    try:
        row = None if db is None else db.execute(query).fetchone()
    except sqlite3.DatabaseError:
        return None
    return None if row is None or not isinstance(row[0], int) else row[0]


def _row(damaged: sqlite3.Connection | None, sample_id: int, files: SampleFiles) -> dict[str, Any]:
    """A sample as it was before any event: from the damaged journal, else from its file."""
    names = [field.name for field in fields(SampleRow)]
    try:
        row = (
            damaged
            and damaged.execute(f"SELECT {COLUMNS} FROM samples WHERE id = ?", (sample_id,)).fetchone()
        )
    except sqlite3.DatabaseError:
        row = None
    values = dict(zip(names, row, strict=True)) if row else _row_of_file(sample_id, files)
    return {**values, "state": "queued", "class_id": None, "held_out": 0, "labelled_seq": None}


def _row_of_file(sample_id: int, files: SampleFiles) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(("bytes", "hash64", "width", "height", "has_image"), 0)
    values |= {"id": sample_id, "file": "", "digest": "", "origin": "recovered", "source_digest": None}
    values |= {"priority": 0.0, "added": time.time()}
    file = files.file_of(sample_id)
    if file is not None:
        path = files.folder / file
        try:
            height, width = decode(path.read_bytes()).shape[:2]
        except UserError:
            return values  # damaged as well
        values |= {"file": file, "digest": sha256(path), "bytes": path.stat().st_size, "has_image": 1}
        values |= {"width": width, "height": height}
    return values


def _insert(db: sqlite3.Connection, values: dict[str, Any]) -> None:
    taken = db.execute("SELECT 1 FROM samples WHERE source_digest = ?", (values["source_digest"],)).fetchone()
    if taken:  # a journal of an older version may hold one file twice
        values = {**values, "source_digest": None}
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    db.execute(f"INSERT INTO samples ({names}, ever_trained) VALUES ({marks}, 0)", values)
