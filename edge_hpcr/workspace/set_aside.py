"""What does not belong to a workspace's journal is set aside and said, never deleted; it returns with its journal.

    set-aside/20261117-043000/images/23/000123.png
    set-aside/20261117-043000/checkpoints/step-…

Such things are there when somebody copied an older journal back, or mixed two copies of a workspace. Event numbers alone do
not tell: after an older journal was copied back they are given once more. So a checkpoint also carries the fingerprint
of the last event that it has learned.
"""

import itertools
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import WRITING, disk_errors, flush_to_disk, sha256
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.database import JournalDamaged
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.sample_files import SampleFiles, sample_id_of

# A killed process leaves the images of one action, for which nobody has had an answer. More are not from a crash.
HANDFUL = 20


def put_in_order(layout: Layout, journal: Journal) -> list[str]:
    """Bring back what the journal knows, set aside what it does not; sentences that say so. Only under the lock."""
    with disk_errors(f"cannot put {layout.path} in order", "is there room, and a right to write?"):
        report = bring_back(layout, journal)
        foreign = {f: why for f in layout.checkpoint_folders() if (why := why_foreign(f, journal))}
        reasons = [
            f"checkpoint {folder.name} {why}: it was set aside, and all that came after an older one is learned again"
            for folder, why in foreign.items()
        ]
        moved = [(folder, f"checkpoints/{folder.name}") for folder in foreign]
        if _went_another_way(layout.backup, journal):
            moved.append((layout.backup, layout.backup.name))
            reasons.append(
                "the journal's backup holds other events than the journal: it was set aside; if those are the right "
                "ones, put it in the journal's place"
            )
        strangers = _strange_images(layout, journal, bool(moved) or layout.set_aside.exists())
        if strangers:
            moved += [(layout.images / name, f"images/{name}") for name in strangers]
            reasons.append(
                f"{len(strangers):,} files in {layout.images.name} are unknown to the journal: they were set aside, and "
                "return with a journal that knows them"
            )
        if not moved:
            return report
        # Before the checkpoints go, whose being here is the only sign of it: a kill may come in between.
        if foreign and (gone := forget_missing_images(journal, SampleFiles(layout.images))):
            reasons.append(
                f"{gone:,} images that the journal names were dropped after it had been copied: labels stay, but cannot be "
                "learned anew"
            )
        place = new_folder(layout.set_aside / time.strftime("%Y%m%d-%H%M%S"))
        _move([(source, place / name) for source, name in moved])
        _skip_ids(journal, strangers)
        return [*report, *reasons, f"what was set aside is in {place}"]


def forget_missing_images(journal: Journal, files: SampleFiles) -> int:
    """Note in the journal which of its images are not there; returns how many."""
    there = set(files.names())
    missing = [row.id for row in journal.all_samples(has_image=True) if row.file not in there]
    journal.drop_queued(missing)
    journal.forget_images(missing)
    return len(missing)


def bring_back(layout: Layout, journal: Journal) -> list[str]:
    """Put back the images and checkpoints that were set aside under another journal, and that this one knows."""
    known = journal.image_files() if layout.set_aside.is_dir() else {}
    returning: list[tuple[Path, Path]] = []
    away: list[str] = []
    for place in _entries(layout.set_aside):
        images = SampleFiles(place / "images")
        for name in images.names():
            away.append(name)
            there = layout.images / name
            if name in known and not there.exists() and sha256(images.folder / name) == known[name]:
                returning.append((images.folder / name, there))
        for folder in _entries(place / "checkpoints"):
            if applied_by(folder)[1] and not why_foreign(folder, journal):
                returning.append((folder, layout.checkpoints / folder.name))
    _skip_ids(journal, away)
    returning = [(source, target) for source, target in returning if not target.exists()]
    _move(returning)
    for place in _entries(layout.set_aside):
        _remove_empty(place)
    back = f"{len(returning):,} images and checkpoints that had been set aside belong to the journal, and are back"
    return [back] if returning else []


def applied_by(folder: Path) -> tuple[int, str | None]:
    """The last event that a checkpoint's learner had learned, and its fingerprint; 0 if the checkpoint cannot be read."""
    try:
        notes = checkpoint.facts(folder)["notes"]
        return int(notes["applied"]), notes.get("fingerprint")
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return 0, None


def why_foreign(folder: Path, journal: Queries) -> str:
    """Why a checkpoint is of another journal: it has learned what this one does not say; empty if it is of this one."""
    applied, fingerprint = applied_by(folder)
    last = journal.last_seq
    if applied > last:
        return f"has learned event {applied}, and the journal ends with {last}"
    own = journal.fingerprint(applied)
    if applied and fingerprint not in (None, own):  # none: an earlier version wrote it
        return f"has learned another event {applied} than the journal's"
    return ""


def _went_another_way(backup: Path, journal: Queries) -> bool:
    """Whether a copy of the journal holds an event that the journal does not have."""
    if not backup.exists():
        return False
    try:
        with reading(backup) as copy:
            last = copy.last_seq
            return last > 0 and copy.fingerprint(last) != journal.fingerprint(last)
    except JournalDamaged:
        return False  # the next checkpoint replaces it


def _strange_images(layout: Layout, journal: Journal, mixed: bool) -> list[str]:
    """The files that the journal does not know. A handful that a crash explains is removed instead, unless other things
    show that two journals were `mixed`."""
    files = SampleFiles(layout.images)
    unknown = files.orphans(journal.image_files())
    if not unknown:
        return []
    # Where a journal was mended or replaced, an image that was noted as gone may have been put back since.
    may_be_back = mixed or any(layout.path.glob("damaged-*"))
    dropped = set() if may_be_back else journal.dropped_files()
    leftovers = [name for name in unknown if name in dropped or name.endswith(WRITING)]
    files.remove(leftovers)
    strangers = sorted(set(unknown).difference(leftovers))
    given = range(1, journal.next_id)  # with ids that the journal gave, each before its file was written
    if mixed or len(strangers) > HANDFUL or any(sample_id_of(name) not in given for name in strangers):
        return strangers
    files.remove(strangers)
    return []


def _skip_ids(journal: Journal, names: Collection[str]) -> None:
    """See to it that no new image takes the name of one that is away."""
    if ids := [sample_id for name in names if (sample_id := sample_id_of(name)) is not None]:
        journal.skip_ids(max(ids))


def new_folder(wanted: Path) -> Path:
    """Make a folder of this name, with a number behind it if there is one already."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(1))
    folder = next(each for each in itertools.chain([wanted], numbered) if not each.exists())
    folder.mkdir(parents=True)
    return folder


def _move(moves: Collection[tuple[Path, Path]]) -> None:
    for folder in {target.parent for _, target in moves}:
        folder.mkdir(parents=True, exist_ok=True)
    for source, target in moves:
        shutil.move(source, target)
    for folder in {path.parent for move in moves for path in move}:
        flush_to_disk(folder)


def _entries(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.iterdir()) if folder.is_dir() else ())


def _remove_empty(place: Path) -> None:
    folders = [*place.glob("*/*"), *place.glob("*"), place, place.parent]
    for folder in folders:
        with suppress(OSError):  # a file, or not empty
            folder.rmdir()
