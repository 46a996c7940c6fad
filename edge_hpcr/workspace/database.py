"""The journal's SQLite file: its tables, how it is opened, how an event changes them, and its errors as sentences."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.formats import JOURNAL
from edge_hpcr.workspace import records
from edge_hpcr.workspace.records import Body

BUSY_SECONDS = 20.0
EMPTY = "it holds no tables"  # the damage of a file that is no journal yet
# Rebuilding a large write-ahead log takes time at the next opening; beyond this it is cut after a checkpoint.
_LOG_BYTES = 8_000_000

# `events` is only ever appended to and is the truth; the other tables are what the events add up to, except for the
# rows of samples (which exist before anything is said about them) and the counters.
# `actions` are the events that can still be undone or redone.
# `samples.labelled_seq` is the last event that changed the sample; null as long as none has.
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS actions (
    seq INTEGER PRIMARY KEY REFERENCES events (seq), undone INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS classes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, folded TEXT NOT NULL, colour TEXT,
    state TEXT NOT NULL CHECK (state IN ('absent', 'live', 'deleted', 'merged')),
    merged_into INTEGER REFERENCES classes (id));
CREATE UNIQUE INDEX IF NOT EXISTS live_names ON classes (folded) WHERE state = 'live';
CREATE TABLE IF NOT EXISTS samples (
    id INTEGER PRIMARY KEY, file TEXT NOT NULL, digest TEXT NOT NULL, bytes INTEGER NOT NULL,
    origin TEXT NOT NULL, source_digest TEXT, hash64 INTEGER NOT NULL, priority REAL NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, added REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'labelled', 'dismissed', 'deleted')),
    class_id INTEGER REFERENCES classes (id) CHECK ((class_id IS NOT NULL) = (state = 'labelled')),
    held_out INTEGER NOT NULL, labelled_seq INTEGER, has_image INTEGER NOT NULL,
    ever_trained INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS samples_by_state ON samples (state, has_image, bytes);
CREATE INDEX IF NOT EXISTS samples_by_class ON samples (class_id, held_out) WHERE class_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS samples_by_priority ON samples (priority DESC, id) WHERE state = 'queued';
CREATE UNIQUE INDEX IF NOT EXISTS samples_by_source ON samples (source_digest) WHERE source_digest IS NOT NULL;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full; nothing was written: make room and try again",
    sqlite3.SQLITE_IOERR: "the disk refused to read or write; is it full or failing? Nothing was acknowledged",
    sqlite3.SQLITE_READONLY: "it cannot be written: make the workspace writable for this user",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: is the folder there, readable and writable?",
    sqlite3.SQLITE_PERM: "it cannot be opened: make the workspace readable and writable for this user",
    sqlite3.SQLITE_BUSY: f"another process kept it locked for {BUSY_SECONDS:.0f} s: try again, or end that process",
}
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class JournalDamaged(UserError):
    """The file itself is broken, or lacks a part; `recover` knows what to do about it."""

    def __init__(self, path: Path, what: str) -> None:
        restores = "start `learn` on the workspace, which restores what can be read"
        super().__init__(f"journal {path}: the file is damaged: {restores} ({what})")
        self.what = what


class UnreadableEvent(JournalDamaged):
    """An event that this version cannot understand; those behind it rest on it."""

    def __init__(self, path: Path, seq: int, why: object) -> None:
        super().__init__(path, f"event {seq} cannot be read ({why})")
        newer = "a newer version wrote it, or it is damaged: use that version, or restore a backup"
        self.args = (f"journal {path}: {self.what}: {newer}",)


@contextmanager
def as_user_errors(path: Path) -> Iterator[None]:
    """Turn what the disk and other processes do to a database into one clear line; other errors pass."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest its details
        if code in _DAMAGE or str(error) == "unsupported file format":  # which has no number of its own
            raise JournalDamaged(path, str(error)) from error
        if code not in _REASONS:
            raise
        raise UserError(f"journal {path}: {_REASONS[code]} ({error})") from error


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The journal, made if it is missing; every commit is on the disk when it returns."""
    with as_user_errors(path):
        connection = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _switch_to_wal(connection)
            for pragma in ("synchronous = FULL", "foreign_keys = ON", f"journal_size_limit = {_LOG_BYTES}"):
                connection.execute(f"PRAGMA {pragma}")
            if not _columns(connection):
                _make_tables(connection)
            check_tables(connection, path)
            if is_old(connection, path):
                raise UserError(f"journal {path} is of an older version: open its workspace with `learn`")
        except BaseException:
            connection.close()
            raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait by itself here when several processes open a new journal at once.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _make_tables(connection: sqlite3.Connection) -> None:
    # One transaction, as two processes may open a new journal at the same time.
    connection.executescript(
        f"BEGIN IMMEDIATE; {SCHEMA} "
        f"INSERT OR IGNORE INTO meta VALUES ('format', {JOURNAL.current}), ('version', '{__version__}'),"
        " ('next_sample', 1); COMMIT;"
    )


def is_old(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the journal needs an upgrade; refuses one of a newer version."""
    meta = _meta(connection)
    return JOURNAL.is_old(meta.get("format"), path, meta.get("version"))


def old_format(path: Path) -> int | None:
    """The format of a journal that needs an upgrade; None for a current one, or if there is none."""
    if not path.exists():
        return None
    with closing(open_read_only(path)) as db, as_user_errors(path):
        if not _columns(db):
            return None
        check_tables(db, path)
        return int(_meta(db)["format"]) if is_old(db, path) else None


def upgrade_journal(path: Path) -> list[str]:
    """Bring a journal to the current format in one transaction: killed at any moment, it is the old or the new one."""
    written = old_format(path)
    if written is None:
        return []
    with closing(sqlite3.connect(path, BUSY_SECONDS, isolation_level=None)) as db, as_user_errors(path):
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")  # closing without a commit takes everything back
        report = JOURNAL.upgrade(db, written)
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (JOURNAL.current,))
        db.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (__version__,))
        db.execute("COMMIT")
    return [f"the journal was upgraded from format {written} to {JOURNAL.current}", *report]


def check_tables(db: sqlite3.Connection, path: Path) -> None:
    """Refuse what is no journal, or one that has lost a part: an empty file, a table, a column, its format."""
    held = _columns(db)
    if not held:
        raise JournalDamaged(path, EMPTY)
    meta = _meta(db) if ("meta", "key") in held else {}
    if "format" not in meta:
        raise JournalDamaged(path, "it does not say its format")
    if meta["format"] != JOURNAL.current:
        return  # of another version, which has columns of its own
    for table, column in _current_columns():
        if (table, column) not in held:
            raise JournalDamaged(path, f"the column {column} of the table {table} is missing")
    if not isinstance(meta.get("next_sample"), int):
        raise JournalDamaged(path, "it does not say which number the next sample gets")


def wrong_types(db: sqlite3.Connection) -> list[str]:
    """Columns that hold something else than what they were declared for, as a damaged page may."""
    allowed = {"INTEGER": "'integer'", "REAL": "'real', 'integer'", "TEXT": "'text'"}
    held = _columns(db)
    found = []
    for (table, column), (kind, required) in _current_columns().items():
        if table == "meta" or (table, column) not in held:
            continue
        types = allowed[kind] if required else f"{allowed[kind]}, 'null'"
        key = "name" if table == "counters" else "rowid"
        query = f"SELECT {key} FROM {table} WHERE typeof({column}) NOT IN ({types}) LIMIT 1"
        found += [f"{column} of row {row} of {table} is no {kind.lower()}" for (row,) in db.execute(query)]
    return found


def _columns(db: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, bool]]:
    """Every column of a database by table and name: its type, and whether it must have a value."""
    rows = db.execute(
        'SELECT t.name, c.name, c.type, c."notnull" OR c.pk FROM sqlite_master t JOIN pragma_table_info(t.name) c'
        " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'"
    )
    return {(table, column): (kind, bool(required)) for table, column, kind, required in rows}


@cache
def _current_columns() -> dict[tuple[str, str], tuple[str, bool]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _columns(db)


def _meta(db: sqlite3.Connection) -> dict[str, Any]:
    return dict(db.execute("SELECT key, value FROM meta"))


def open_read_only(path: Path) -> sqlite3.Connection:
    """The journal as it is now, also beside a process that writes it, and on a disk that cannot be written."""
    if not path.exists():
        raise UserError(
            f"journal {path} is missing: start `learn` on the workspace, which restores it if it can"
        )
    with as_user_errors(path):
        try:
            return _connect_read_only(path, "mode=ro")
        except sqlite3.OperationalError:
            # Where the folder is read-only, SQLite cannot make its shared-memory file. Without a write-ahead log
            # nobody is writing, and the file alone is the whole database.
            log = path.with_name(path.name + "-wal")
            if log.exists() and log.stat().st_size > 0:
                raise
            return _connect_read_only(path, "immutable=1")


def _connect_read_only(path: Path, option: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{option}"
    connection = sqlite3.connect(address, BUSY_SECONDS, isolation_level=None, uri=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def apply(db: sqlite3.Connection, seq: int, body: Body) -> None:
    """Change the rows as an event says."""
    db.executemany(
        "UPDATE samples SET state = ?, class_id = ?, held_out = ?, labelled_seq = ?,"
        " ever_trained = ever_trained OR ? WHERE id = ?",
        [
            (*after, seq, after.state == "labelled" and not after.held_out, sample_id)
            for sample_id, _, after in body.samples
        ],
    )
    db.executemany(
        "UPDATE classes SET name = ?, colour = ?, state = ?, merged_into = ?, folded = ? WHERE id = ?",
        [(*after, records.folded(after.name), class_id) for class_id, _, after in body.classes],
    )


def note_action(db: sqlite3.Connection, seq: int, kind: str, of: int | None) -> None:
    """A new action can be undone, and what was undone before it can no longer be done again."""
    if kind in ("undo", "redo"):
        db.execute("UPDATE actions SET undone = ? WHERE seq = ?", (kind == "undo", of))
    elif kind != "evict":  # the queue's own housekeeping is nothing that a person did
        # Those that are undone are always the last ones; to look at all would make many labels slow.
        done = "SELECT seq FROM actions WHERE undone = 0 ORDER BY seq DESC LIMIT 1"
        db.execute(f"DELETE FROM actions WHERE seq > coalesce(({done}), 0)")
        db.execute("INSERT INTO actions VALUES (?, 0)", (seq,))
