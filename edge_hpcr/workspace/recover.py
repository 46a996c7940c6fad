"""A journal that is damaged, missing or older than its backup, and what lies about that no journal knows; and `verify`.

A damaged or older journal is replaced by the last good backup; without one, opening the workspace is refused in a sentence.
Nothing is deleted: the damaged file, and what the journal does not know, are set aside under the names that they had:

    set-aside/20261117-043000-x2/journal.sqlite
    set-aside/20261117-043000-x2/images/23/000123.png

Such things are there after a journal went back to its backup, when somebody copied an older one back, and after a crash
between an image and its row. Event numbers alone do not tell: after an older journal was copied back they are given once
more. So a checkpoint also carries the fingerprint of the last event that it has learned.
"""

import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING, disk_errors, flush_to_disk, sha256
from edge_hpcr.common.text import many
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.database import RESTORE, JournalDamaged, as_user_errors, open_read_only
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.sample_files import SampleFiles

# A check reads the whole file, at some 200 MB/s. A larger journal is only checked by `verify`.
QUICK_CHECK_BYTES = 64_000_000


def backup_journal(journal: Path, path: Path) -> None:
    """Copy the journal as it is now, while others write to it; a good copy replaces the last one."""
    temporary = path.with_name(path.name + WRITING)
    with disk_errors(f"cannot write the journal's backup {path}"):
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600)  # a backup may lie in a folder that others can read
        with (
            closing(open_read_only(journal)) as source,
            closing(sqlite3.connect(temporary)) as copy,
            as_user_errors(journal),
        ):
            source.backup(copy)
            # One file, readable on a disk that cannot be written.
            copy.execute("PRAGMA journal_mode = DELETE")
            if temporary.stat().st_size <= QUICK_CHECK_BYTES:
                Queries(copy, journal).check(quick=True)
        flush_to_disk(temporary)
        temporary.replace(path)
        flush_to_disk(path.parent)


def recover(layout: Layout) -> list[str]:
    """Put the last good backup in the place of a journal that is damaged or missing; sentences that say so, or none.

    Without a good backup it refuses: the owner may still have a copy. Killed at any moment, it is done again at the next
    opening: the backup stays.
    """
    if (damage := _damage(layout)) is None:
        return []
    end = _end_of(layout.backup, checked=True)
    if end is None:
        raise UserError(
            f"{layout.path} has lost its journal ({damage}, and there is no good backup): put {layout.journal.name} or a "
            f"copy of the workspace back, or use its pictures anew: `learn --workspace NEW --source {layout.images}`",
            code="no-journal",
        )
    restored = layout.path / "journal.restored.sqlite"
    for leftover in _parts(restored):
        leftover.unlink(missing_ok=True)
    backup_journal(layout.backup, restored)
    learned = max((_learned_by(folder)[0] for folder in layout.checkpoint_folders()), default=0)
    lost = f"; at least {learned - end} events after it were lost: labels or changes of classes"
    answer = f"it went back to its backup, which ends with event {end}{lost if learned > end else ''}"
    kept = set_aside(layout, [part for part in _parts(layout.journal) if part.exists()])
    restored.rename(layout.journal)
    flush_to_disk(layout.path)
    return [f"the journal is damaged: {damage}", answer, f"as it was, it is kept in {kept}"]


def _damage(layout: Layout) -> str | None:
    """What is wrong with the journal; None also for one that is yet to be made."""
    size = layout.journal.stat().st_size if layout.journal.exists() else 0
    if not size:
        lost = layout.backup.exists() or layout.has_data()
        return "the file is missing or empty" if lost else None
    try:
        with reading(layout.journal) as journal:
            if size <= QUICK_CHECK_BYTES:
                journal.check(quick=True)
            last, end = journal.last_seq, _end_of(layout.backup) or 0
            if (
                end > last
                and _end_of(layout.backup, checked=True)
                and not _differ(layout.backup, journal, last)
            ):
                return f"it ends with event {last}, but its backup with event {end}"
    except JournalDamaged as error:
        return error.what
    return None


def _end_of(backup: Path, checked: bool = False) -> int | None:
    """The last event of a backup; None if there is none, or it is damaged."""
    with suppress(JournalDamaged):
        if backup.exists():
            with reading(backup) as copy:
                if checked:
                    copy.check()
                return copy.last_seq
    return None


def _differ(backup: Path, journal: Queries, seq: int) -> bool:
    """Whether the two say different things by this number: one of them was copied back, and went its own way."""
    with suppress(JournalDamaged), reading(backup) as copy:
        return copy.fingerprint(seq) != journal.fingerprint(seq)
    return False


def _parts(database: Path) -> list[Path]:
    return [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


# What the journal does not know -------------------------------------------------------------------------------------


def put_in_order(layout: Layout, journal: Journal, another: bool) -> list[str]:
    """Set aside what the journal does not know; sentences that say so. Only under the lock.

    With `another` journal than before, images that it names may have been dropped since: it forgets those.
    """
    moved, report, files = list[Path](), list[str](), SampleFiles(layout.images)
    with disk_errors(f"cannot put {layout.path} in order", "check free space and permissions"):
        for folder in layout.checkpoint_folders():
            if why := why_foreign(folder, journal):
                moved.append(folder)
                report.append(
                    f"checkpoint {folder.name} {why}: what came after an older one is learned again"
                )
        there = set(files.names())
        if moved or another:
            missing = [row.id for row in journal.all_samples(has_image=True) if row.file not in there]
            journal.drop_queued(missing)
            journal.forget_images(missing)  # labels stay, but cannot be learned anew
        known, dropped = journal.image_files(), journal.image_files(False)
        unknown = {name for name in there - known.keys() if "/." not in name}  # a file manager hides its own
        # Killed between a row and its file. Another journal may have given the same name to another picture.
        found = {name: layout.images / name for name in unknown & dropped.keys()}
        unfinished = {n for n, p in found.items() if not p.is_symlink() and sha256(p) == dropped[n]}
        files.remove(unfinished)
        if strange := sorted(unknown - unfinished):
            moved += [layout.images / name for name in strange]
            lost = f"the journal does not know {many(len(strange), 'file')} in images"
            report.append(f"{lost}: to label them again, choose their folder as a source")
        end = _end_of(layout.backup)
        if end and _differ(layout.backup, journal, end):
            moved.append(layout.backup)
            report.append("the journal's backup holds other events than the journal")
        return [*report, f"all this was set aside in {set_aside(layout, moved)}"] if moved else []


def why_foreign(folder: Path, journal: Queries) -> str:
    """Why a checkpoint is of another journal: it has learned what this one does not say; empty if it is of this one."""
    learned, fingerprint = _learned_by(folder)
    last = journal.last_seq
    if learned > last:
        return f"has learned event {learned}, and the journal ends with {last}"
    # An earlier version noted no fingerprint.
    if learned and fingerprint is not None and fingerprint != journal.fingerprint(learned):
        return f"has learned another event {learned} than the journal's"
    return ""


def _learned_by(folder: Path) -> tuple[int, str | None]:
    """The last event that a checkpoint's learner had learned, and its fingerprint; 0 if the checkpoint cannot be read."""
    try:
        notes = checkpoint.facts(folder)["notes"]
        return int(notes["applied"]), notes.get("fingerprint")
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return 0, None


def set_aside(layout: Layout, paths: list[Path]) -> Path:
    """Move parts of a workspace out of the way; nothing is deleted. Returns where they are now."""
    layout.set_aside.mkdir(exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=layout.set_aside))
    for path in paths:
        target = place / path.relative_to(layout.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
    os.sync()
    return place


# Is it whole? -----------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    what: str
    where: str
    what_to_do: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.what_to_do}"


def verify_workspace(path: Path | str) -> list[Problem]:
    """Find everything that is wrong: it reads all, changes nothing, and works beside a process that learns."""
    layout = Layout(path)
    layout.check_exists()
    problems, saved = list[Problem](), list[Path]()
    # Checkpoints first: what they have applied must be in a journal that is read later.
    for folder in layout.checkpoint_folders():
        try:
            checkpoint.read(folder)
            saved.append(folder)
        except UserError as error:
            if folder.exists():  # the learner removes old ones
                remove = "remove the folder: the learner uses the newest whole one"
                problems.append(Problem(f"it cannot be used ({error})", str(folder), remove))
    try:
        with reading(layout.journal) as journal:
            problems += _check_images(journal, layout)
            tidy = "`learn` sets it aside when it starts"
            foreign = {folder: why for folder in saved if (why := why_foreign(folder, journal))}
            problems += [Problem(f"it {why}", str(folder), tidy) for folder, why in foreign.items()]
            journal.check()
    except UserError as error:  # damaged, missing, or of a newer version
        problems.append(Problem(str(error), str(layout.journal), RESTORE))
    return problems


def _check_images(journal: Queries, layout: Layout) -> list[Problem]:
    files, bad = SampleFiles(layout.images), []
    for row in journal.all_samples(has_image=True):
        try:
            files.content(row)
        except UserError:
            bad.append(row)
    with reading(layout.journal) as now:  # a sample may have left the queue meanwhile, and its file with it
        here = now.image_files()
    return [
        Problem(
            f"the image of sample {row.id} ({row.state}) is missing or damaged",
            str(layout.images / row.file),
            f"delete sample {row.id}",
        )
        for row in bad
        if row.file in here
    ]
