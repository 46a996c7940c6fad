"""The journal's SQLite file: its tables, how it is opened, how an event changes them, and its errors as sentences."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.formats import JOURNAL
from edge_hpcr.workspace import records
from edge_hpcr.workspace.records import Body

BUSY_SECONDS = 20.0
RESTORE = "start `learn` on the workspace, which goes back to the last good backup"
# Rebuilding a large write-ahead log takes time at the next opening; beyond this it is cut after a checkpoint.
_LOG_BYTES = 8_000_000

# `events` is only ever appended to and is the truth; the other tables are what the events add up to, except for the
# rows of samples (which exist before anything is said about them). `counters` are of earlier versions.
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
_DAMAGE_WITHOUT_CODE = (
    "unsupported file format",
    "Could not decode to UTF-8",
    "no such table",
    "no such column",
)


class JournalDamaged(UserError):
    """The file itself is broken, or lacks a part; `recover.py` knows what to do about it."""

    def __init__(self, path: Path, what: str, advice: str = RESTORE) -> None:
        super().__init__(f"journal {path}: the file is damaged ({what}): {advice}")
        self.what = what


class JournalGone(UserError):
    """The file was deleted or replaced while it was in use: what is written to it is lost with the process."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was deleted or replaced while it was in use: nothing more is saved; end the program, put the workspace "
            "back and start it again"
        )


@contextmanager
def as_user_errors(path: Path) -> Iterator[None]:
    """Turn what the disk and other processes do to a database into one clear line; other errors pass."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest its details
        if code in _DAMAGE or any(words in str(error) for words in _DAMAGE_WITHOUT_CODE):
            raise JournalDamaged(path, " ".join(str(error).split())) from error
        if code not in _REASONS:
            raise
        raise UserError(f"journal {path}: {_REASONS[code]} ({error})") from error
    except UnicodeDecodeError as error:  # of SQLite's own message, which quotes the damaged place
        raise JournalDamaged(path, "it holds what is no text") from error


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The journal, made if it is missing; every commit is on the disk when it returns."""
    with as_user_errors(path), ExitStack() as failed:
        connection = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        failed.callback(connection.close)
        durable = ("journal_mode = WAL", "synchronous = FULL")
        for pragma in (*durable, "foreign_keys = ON", f"journal_size_limit = {_LOG_BYTES}"):
            connection.execute(f"PRAGMA {pragma}")
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            # In one transaction, as two processes may open a new journal.
            connection.executescript(
                f"BEGIN IMMEDIATE; {SCHEMA} INSERT OR IGNORE INTO meta VALUES"
                f" ('format', {JOURNAL.current}), ('version', '{__version__}'), ('next_sample', 1); COMMIT;"
            )
        if check_journal(connection, path) is not None:
            raise UserError(f"journal {path} is of an older version: open its workspace with `learn`")
        failed.pop_all()
    return connection


def check_journal(db: sqlite3.Connection, path: Path) -> int | None:
    """The format of a journal that needs an upgrade, None for a current one.

    Refuses one of a newer version, and what is no journal.
    """
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if "format" not in meta:
        raise JournalDamaged(path, "it does not say its format")
    return int(meta["format"]) if JOURNAL.is_old(meta["format"], path, meta.get("version")) else None


def upgrade_journal(path: Path, written: int) -> list[str]:
    """Bring a journal to the current format in one transaction: killed at any moment, it is the old or the new one."""
    with closing(sqlite3.connect(path, BUSY_SECONDS, isolation_level=None)) as db, as_user_errors(path):
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")  # closing without a commit takes everything back
        report = JOURNAL.upgrade(db, written)
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (JOURNAL.current,))
        db.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (__version__,))
        db.execute("COMMIT")
    return [f"the journal was upgraded from format {written} to {JOURNAL.current}", *report]


def open_read_only(path: Path) -> sqlite3.Connection:
    """The journal as it is now, also beside a process that writes it."""
    if not path.exists():
        raise UserError(
            f"journal {path} is missing: start `learn` on the workspace, which restores it if it can"
        )
    with as_user_errors(path):
        address = f"{path.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(address, BUSY_SECONDS, isolation_level=None, uri=True)


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
