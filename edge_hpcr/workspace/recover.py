"""A damaged journal: back to the backup, then forward again with every event that the damaged file still gives.

Nothing is thrown away: what was damaged is kept in `damaged-<time>`, and the report says what was lost.
"""

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING, disk_errors, flush_to_disk, sha256
from edge_hpcr.workspace import database
from edge_hpcr.workspace.database import (
    JournalDamaged,
    apply,
    as_user_errors,
    note_action,
    open_for_writing,
    open_read_only,
)
from edge_hpcr.workspace.fold import BrokenChain, differences, fold_events
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import COLUMNS, SAMPLE_FIELDS, Queries, reading
from edge_hpcr.workspace.records import Body, SampleRow
from edge_hpcr.workspace.sample_files import SampleFiles, decode, sample_id_of
from edge_hpcr.workspace.set_aside import applied_by, bring_back, forget_missing_images, new_folder

# A check reads the whole file, at some 200 MB/s. A larger journal is only checked by `verify`.
QUICK_CHECK_BYTES = 64_000_000
# A damaged page may give a row whose values are of other types.
_TYPES = {
    name: {float: float | int, bool: int}.get(kind, kind) for name, kind in get_type_hints(SampleRow).items()
}
# Ids that were given in events now lost must not be given again; nobody gives so many between two backups.
_ID_GAP = 1000


def recover(layout: Layout, anew: bool = False) -> list[str]:
    """Mend the journal if it is damaged or missing; returns sentences that say what happened, or none.

    Where nothing is left of the journal of a workspace that has learned, a new one is begun only with `anew`: its owner
    may still have a copy.
    """
    restored = layout.path / "journal.restored.sqlite"
    if restored.exists() and not layout.journal.exists():
        restored.rename(layout.journal)
        return ["a recovery of the journal that had been interrupted was finished"]
    damage = _damage(layout, anew)
    if damage is None:
        return []
    unfinished = layout.path / "journal.restoring.sqlite"
    for leftover in (*_parts(unfinished), *_parts(restored)):
        leftover.unlink(missing_ok=True)
    report = [f"the journal is damaged: {damage}", *_restore(layout, unfinished)]
    flush_to_disk(unfinished)
    unfinished.rename(restored)
    report += _put_in_place(layout, restored)
    return [" ".join(sentence.split()) for sentence in report]  # SQLite's own words may be several lines


def _damage(layout: Layout, anew: bool) -> str | None:
    backup_seq = _last_seq(layout.backup)
    empty = "the file is missing" if not layout.journal.exists() else None
    try:
        if empty is None:
            with reading(layout.journal) as journal:
                if layout.journal.stat().st_size <= QUICK_CHECK_BYTES and (damage := journal.damage(1, True)):
                    return damage[0]
                last = journal.last_seq
                if backup_seq is not None and backup_seq > last and _continues(layout.backup, journal):
                    return f"it ends with event {last}, but its backup with event {backup_seq}"
    except JournalDamaged as error:
        if error.what != database.EMPTY:
            return error.what
        empty = error.what
    if empty is None:
        return None
    if backup_seq is None and not anew:
        _refuse_new_life(layout, empty)
    return empty if backup_seq is not None or layout.has_life() else None


def _refuse_new_life(layout: Layout, empty: str) -> None:
    images, learned = sum(1 for _ in SampleFiles(layout.images).names()), len(layout.checkpoint_folders())
    if layout.has_life():
        raise UserError(
            f"{layout.path} has lost its journal ({empty}, and there is no backup that can be read), but has {images:,} "
            f"images and {learned} checkpoints: put {layout.journal.name} or a copy of the workspace back, or begin anew "
            f"with these images, unlabelled: `python -m edge_hpcr recover {layout.path}`"
        )


def _continues(path: Path, journal: Queries) -> bool:
    """Whether a copy holds the same events as the journal, and more: else the two have gone different ways."""
    with reading(path) as copy:
        return copy.fingerprint(journal.last_seq) == journal.fingerprint(journal.last_seq)


def _last_seq(path: Path) -> int | None:
    """The last event of a journal; None if there is none that can be read."""
    if not path.exists():
        return None
    try:
        with reading(path) as journal:
            return journal.last_seq
    except JournalDamaged:
        return None


def _restore(layout: Layout, place: Path) -> list[str]:
    """Build a whole journal at another place; the damaged one is only read."""
    start = _start_from_backup(layout.backup, place)
    upgraded = database.upgrade_journal(place)
    files = SampleFiles(layout.images)
    with closing(open_for_writing(place)) as db:
        begun = Queries(db, place).last_seq
        damaged = _open_damaged(layout.journal)
        try:
            with as_user_errors(place):
                db.execute("BEGIN IMMEDIATE")
                salvaged = _salvage_events(damaged, db, files, _newest_applied(layout))
                _skip_used_ids(damaged, db, files)
                queued = _queue_files_without_row(damaged, db, files)
                db.execute("COMMIT")
        finally:
            if damaged is not None:
                damaged.close()
    report = [
        f"{start} with {begun} events; {salvaged.events} more were read from the damaged file",
        *upgraded,
    ]
    if begun + salvaged.events == 0:
        report.append("all labels and classes were lost")
    elif salvaged.lost == 0:
        report.append("no event was lost" if salvaged.certain else "as far as can be told, no event was lost")
    else:
        least = "" if salvaged.certain else "at least "
        after = f"{least}{salvaged.lost} events after event {begun + salvaged.events}"
        report.append(f"{after} were lost: labels or changes of classes")
    if queued:
        report.append(f"{queued} images whose entries were lost are in the queue again")
    with closing(Journal(place)) as journal:
        report += bring_back(layout, journal)
        forget_missing_images(journal, files)
    return report


def _start_from_backup(backup: Path, place: Path) -> str:
    if _last_seq(backup) is not None:
        with closing(open_read_only(backup)) as source, closing(sqlite3.connect(place)) as copy:
            source.backup(copy)
            whole = _is_whole(copy, backup)
        if whole:
            return "restored from the backup"
        for leftover in _parts(place):
            leftover.unlink(missing_ok=True)
        return "the backup is damaged too: a new journal was begun"
    return "there is no backup that can be read: a new journal was begun"


def _is_whole(db: sqlite3.Connection, path: Path) -> bool:
    try:
        journal = Queries(db, path)
        return not journal.damage(1) and not differences(fold_events(journal), journal)
    except (JournalDamaged, sqlite3.DatabaseError, BrokenChain):
        return False


def _open_damaged(path: Path) -> sqlite3.Connection | None:
    try:
        return open_read_only(path) if path.exists() else None
    except JournalDamaged:
        return None


def _put_in_place(layout: Layout, restored: Path) -> list[str]:
    report = []
    if parts := [part for part in _parts(layout.journal) if part.exists()]:
        kept = new_folder(layout.path / time.strftime("damaged-%Y%m%d-%H%M%S"))
        for part in parts:
            part.rename(kept / part.name)
        report = [f"what was damaged is kept in {kept}"]
    # Not opened to read only: closing it removes the write-ahead log.
    open_for_writing(restored).close()
    restored.rename(layout.journal)
    flush_to_disk(layout.path)
    return report


def _newest_applied(layout: Layout) -> int:
    return max((applied_by(folder)[0] for folder in layout.checkpoint_folders()), default=0)


def _parts(database: Path) -> list[Path]:
    return [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def backup_journal(journal: Path, path: Path) -> None:
    """Copy the journal as it is now, while others write to it; a good copy replaces the last one."""
    temporary = path.with_name(path.name + WRITING)
    with disk_errors(f"cannot write the journal's backup {path}"):
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600)  # a backup may lie in a folder that others can read
        with (
            closing(open_read_only(journal)) as source,
            closing(sqlite3.connect(temporary)) as copy,
            as_user_errors(path),
        ):
            source.backup(copy)
            copy.execute(
                "PRAGMA journal_mode = DELETE"
            )  # one file, readable also where nothing can be written
            if temporary.stat().st_size <= QUICK_CHECK_BYTES:
                for damage in Queries(copy, path).damage(1, quick=True):
                    raise JournalDamaged(journal, damage)
        flush_to_disk(temporary)
        temporary.replace(path)
        flush_to_disk(path.parent)


# Salvage ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Salvaged:
    events: int
    lost: int
    certain: bool  # the damaged file still says how many events it held


def _salvage_events(
    damaged: sqlite3.Connection | None, db: sqlite3.Connection, files: SampleFiles, known_seq: int
) -> _Salvaged:
    """Carry events over from the damaged journal, from the first that `db` does not have; `known_seq` did exist."""
    fold = fold_events(Queries(db, files.folder))
    begun = fold.last_seq
    while damaged is not None and (found := _event(damaged, fold.last_seq + 1)) is not None:
        try:
            fold.add(fold.last_seq + 1, found[1], found[3])
        except BrokenChain:
            break
        _carry_over(damaged, db, files, fold.last_seq, *found)
    last = _number(damaged, "SELECT seq FROM sqlite_sequence WHERE name = 'events'")
    return _Salvaged(
        fold.last_seq - begun, max(0, max(last or 0, known_seq) - fold.last_seq), last is not None
    )


def _event(damaged: sqlite3.Connection, seq: int) -> tuple[float, str, str, Body] | None:
    try:
        row = damaged.execute("SELECT at, kind, body FROM events WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else (*row, Body.from_json(row[2]))
    except (sqlite3.DatabaseError, ValueError):
        return None  # not whole


def _carry_over(
    damaged: sqlite3.Connection,
    db: sqlite3.Connection,
    files: SampleFiles,
    seq: int,
    at: float,
    kind: str,
    text: str,
    body: Body,
) -> None:
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


def _queue_files_without_row(
    damaged: sqlite3.Connection | None, db: sqlite3.Connection, files: SampleFiles
) -> int:
    """Put images whose rows are lost back into the queue; returns how many."""
    known = {sample_id for (sample_id,) in db.execute("SELECT id FROM samples")}
    there = {sample_id for name in files.names() if (sample_id := sample_id_of(name)) is not None}
    rows = [_row(damaged, sample_id, files) for sample_id in sorted(there - known)]
    lost = [row for row in rows if row["has_image"]]
    for row in lost:
        _insert(db, row)
    return len(lost)


def _skip_used_ids(damaged: sqlite3.Connection | None, db: sqlite3.Connection, files: SampleFiles) -> None:
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
    query = f"SELECT {COLUMNS} FROM samples WHERE id = ?"
    try:
        row = damaged and damaged.execute(query, (sample_id,)).fetchone()
    except sqlite3.DatabaseError:
        row = None
    values = dict(zip(SAMPLE_FIELDS, row, strict=True)) if row else {}
    if not values or not all(isinstance(values[name], kind) for name, kind in _TYPES.items()):
        values = _row_of_file(sample_id, files)
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
