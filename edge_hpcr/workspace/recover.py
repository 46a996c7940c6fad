"""A damaged journal: back to the backup, then forward again with every event that the damaged file still gives.

Nothing is thrown away: what was damaged is kept in `damaged-<time>`, and the report says what was lost.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import flush_to_disk
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.database import (
    JournalDamaged,
    as_user_errors,
    has_tables,
    open_for_writing,
    open_read_only,
    upgrade,
)
from edge_hpcr.workspace.fold import BrokenChain, differences, fold_events
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries
from edge_hpcr.workspace.salvage import queue_files_without_row, salvage_events, skip_used_ids
from edge_hpcr.workspace.sample_files import SampleFiles

# A check reads the whole file, at some 200 MB/s. A larger journal is only checked by `verify`.
QUICK_CHECK_BYTES = 64_000_000


def recover(layout: Layout) -> list[str]:
    """Mend the journal if it is damaged or missing, and say in sentences what happened; nothing to say: no sentence."""
    restored = layout.path / "journal.restored.sqlite"
    if restored.exists() and not layout.journal.exists():
        restored.rename(layout.journal)  # a recovery that was cut short at its very end
        return ["a recovery of the journal that had been interrupted was finished"]
    damage = _damage(layout)
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


def _damage(layout: Layout) -> str | None:
    backup_seq = _last_seq(layout.backup)
    if not layout.journal.exists():
        return None if backup_seq is None else "the file is missing"
    try:
        with closing(open_read_only(layout.journal)) as db, as_user_errors(layout.journal):
            if not has_tables(db):
                return "it holds no tables" if _has_life(layout) else None
            if layout.journal.stat().st_size <= QUICK_CHECK_BYTES:
                (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
                if answer != "ok":
                    return str(answer)
    except JournalDamaged as error:
        return str(error.__cause__)
    last = _last_seq(layout.journal) or 0
    if backup_seq is not None and backup_seq > last:
        return f"it ends with event {last}, but its backup with event {backup_seq}"
    return None


def _has_life(layout: Layout) -> bool:
    return (
        layout.backup.exists() or bool(layout.checkpoint_folders()) or any(SampleFiles(layout.images).names())
    )


def _last_seq(path: Path) -> int | None:
    """The last event of a journal; None if there is none that can be read."""
    if not path.exists():
        return None
    try:
        with closing(open_read_only(path)) as db, as_user_errors(path):
            if has_tables(db):
                return Queries(db, path).last_seq
    except JournalDamaged:
        pass  # the same as none
    return None


def _restore(layout: Layout, place: Path) -> list[str]:
    """Build a whole journal at another place; the damaged one is only read."""
    start = _start_from_backup(layout.backup, place)
    upgraded = upgrade(place)
    files = SampleFiles(layout.images)
    with closing(open_for_writing(place)) as db:
        begun = Queries(db, place).last_seq
        damaged = _open_damaged(layout.journal)
        try:
            with as_user_errors(place):
                db.execute("BEGIN IMMEDIATE")
                salvaged = salvage_events(damaged, db, files, _newest_applied(layout))
                skip_used_ids(damaged, db, files)
                queued = queue_files_without_row(damaged, db, files)
                db.execute("COMMIT")
        finally:
            if damaged is not None:
                damaged.close()
    report = [f"{start} with {begun} events; {salvaged.events} more were read from the damaged file"]
    report += upgraded
    if salvaged.lost == 0:
        report.append("no event was lost" if salvaged.certain else "as far as can be told, no event was lost")
    else:
        least = "" if salvaged.certain else "at least "
        last = begun + salvaged.events
        report.append(
            f"{least}{salvaged.lost} events after event {last} were lost: labels or changes of classes"
        )
    if queued:
        report.append(f"{queued} images whose entries were lost are in the queue again")
    _forget_missing_images(place, files)
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


def _forget_missing_images(place: Path, files: SampleFiles) -> None:
    there = set(files.names())
    journal = Journal(place)
    try:
        missing = [row.id for row in journal.all_samples() if row.has_image and row.file not in there]
        journal.drop_queued(missing)
        journal.forget_images(missing)
    finally:
        journal.close()


def _put_in_place(layout: Layout, restored: Path) -> list[str]:
    kept = _new_folder(layout.path)
    for part in _parts(layout.journal):
        if part.exists():
            part.rename(kept / part.name)
    report = [f"what was damaged is kept in {kept}"]
    with closing(
        open_for_writing(restored)
    ) as db:  # and not to read only: its end removes the write-ahead log
        last = Queries(db, restored).last_seq
    for folder in layout.checkpoint_folders():
        # Its knowledge includes events that are lost, and the numbers of those will be given again.
        if applied_by(folder) > last:
            folder.rename(kept / folder.name)
            report.append(f"checkpoint {folder.name} knew of lost events, and is kept there as well")
    restored.rename(layout.journal)
    flush_to_disk(layout.path)
    return report


def applied_by(folder: Path) -> int:
    """The last event that a checkpoint's learner had learned; 0 if the checkpoint cannot be read."""
    try:
        return int(checkpoint.facts(folder)["notes"]["applied"])
    except (UserError, KeyError, TypeError, ValueError):
        return 0


def _newest_applied(layout: Layout) -> int:
    return max((applied_by(folder) for folder in layout.checkpoint_folders()), default=0)


def _new_folder(parent: Path) -> Path:
    name = time.strftime("damaged-%Y%m%d-%H%M%S")
    for number in range(1000):
        folder = parent / (name if number == 0 else f"{name}-{number}")
        if not folder.exists():
            folder.mkdir()
            return folder
    raise UserError(f"{parent} holds too many folders named damaged-…: remove those you do not need")


def _parts(database: Path) -> list[Path]:
    return [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def backup_journal(journal: Path, path: Path) -> None:
    """A whole copy of the journal as it is now, while others write to it; it replaces the last one when it is good."""
    temporary = path.with_name(path.name + ".writing")
    try:
        temporary.unlink(missing_ok=True)
        with (
            closing(open_read_only(journal)) as source,
            closing(sqlite3.connect(temporary)) as copy,
            as_user_errors(path),
        ):
            source.backup(copy)
            copy.execute(
                "PRAGMA journal_mode = DELETE"
            )  # one file alone, readable also where nothing can be written
            if temporary.stat().st_size <= QUICK_CHECK_BYTES:
                (answer,) = copy.execute("PRAGMA quick_check(1)").fetchone()
                if answer != "ok":
                    raise JournalDamaged(f"journal {journal}: damaged ({answer}); its last backup was kept")
        flush_to_disk(temporary)
        temporary.replace(path)
        flush_to_disk(path.parent)
    except OSError as error:
        raise UserError(f"cannot write the journal's backup {path}: {error.strerror}") from error
