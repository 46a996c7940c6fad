"""A workspace on disk: its layout, its lock, and what needs more than one of its parts at once."""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, flush_to_disk, locked
from edge_hpcr.stream.base import Frame
from edge_hpcr.workspace.database import as_user_errors, check_journal, open_read_only, upgrade_journal
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.records import SampleRow
from edge_hpcr.workspace.recover import backup_journal, put_in_order, recover
from edge_hpcr.workspace.sample_files import SampleFiles
from edge_hpcr.workspace.settings import Regions, Settings

LOG = logging.getLogger(__name__)
LARGEST_IMAGE = 1_000_000  # bytes; a stored image has 512 pixels a side at most
QUEUE_TRIMMED_TO = 0.9  # of its limit, when it is full
TAKING_SECONDS = 20.0
LOCK_SECONDS = 0.5  # `status` holds the lock for a moment, to see whether somebody else does


def warn_of_bad_file(path: Path, reason: str) -> None:
    """Say that a file could not be used, and why."""
    LOG.warning("%s", reason if str(path) in reason else f"{path}: {reason}")


class Workspace:
    """One learner's folder, opened; close it, or use it in a `with`."""

    def __init__(self, layout: Layout, settings: Settings, lock: ExitStack | None, report: list[str]) -> None:
        self.layout, self.path, self.settings = layout, layout.path, settings
        self.journal = Journal(layout.journal, held_out_share=settings.held_out_share)
        self.files = SampleFiles(layout.images)
        self.regions = Regions(layout.regions)
        self.report = report  # what was damaged, upgraded or unknown at the opening
        self._lock = lock
        self._changing = threading.Lock()

    @classmethod
    def open(cls, path: Path | str, create: bool = True, learning: bool = True) -> "Workspace":
        """Open a workspace; with `learning` as the one process that learns in it, otherwise to label and to look."""
        layout = Layout(path)
        # Settings may hold a camera's password: what this process writes from now on is for this user alone.
        os.umask(os.umask(0o077) | 0o077)
        _check_place(layout, create and learning)
        if not learning:
            settings, report = Settings.load(layout.settings), []
            # A journal that is missing, damaged or of a newer version is refused.
            if _old_format(layout) is not None:
                with _take_lock(layout):
                    report = _upgrade(layout)
            return cls(layout, settings, None, report)
        with _take_lock(layout) as lock:
            settings = _own_settings(layout)
            with _taking_alone(layout):
                report = recover(layout)
                recovered = bool(report)
                report += _upgrade(layout)
                workspace = cls(layout, settings, lock, report)
                workspace.report += put_in_order(layout, workspace.journal, recovered)
            workspace._lock = lock.pop_all()  # nothing failed: held until `close`
        return workspace

    def close(self) -> None:
        self.journal.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def change_settings(self, **changes: object) -> Settings:
        """Change and save settings; learner and journal use at once what they can."""
        with self._changing:
            changed = self.settings.replace(**{**self._written_by_others(), **changes})
            changed.save(self.layout.settings)
            self.settings, self.journal.held_out_share = changed, changed.held_out_share
            return changed

    def _written_by_others(self) -> dict[str, object]:
        """The setting that `export --sign` writes beside a running learner: it is not in the settings read at the start."""
        with suppress(UserError):  # a file that is gone or damaged is written anew
            return {"publish_key": Settings.load(self.layout.settings).publish_key}
        return {}

    # Samples ------------------------------------------------------------------------------------------------------

    def take(self, image: np.ndarray, origin: str) -> int:
        """Queue an image: first the file, then the row."""
        return self.take_many([Frame(image, origin)])[0]

    def take_many(self, taken: Sequence[Frame]) -> list[int]:
        """As `take`, for many images with few flushes."""
        with self.taking(taken) as ids:
            return ids

    @contextmanager
    def taking(self, taken: Sequence[Frame]) -> Iterator[list[int]]:
        """Queue images and do something with their ids, such as label them, in one journal transaction.

        An image whose source file is known already has the id of the known sample. If anything fails, nothing is left.
        """
        self.journal.check_here()  # before anything is made at a place from which the workspace was moved away
        # A process that opens the workspace to learn removes images without a row. Who learns here is alone anyway.
        with _taking_alone(self.layout) if self._lock is None else nullcontext():
            ids = self.journal.reserve_ids(len(taken))
            stored = self.files.write([(i, item.image) for i, item in zip(ids, taken, strict=True)])
            rows = [
                replace(
                    file,
                    origin=item.origin,
                    source_digest=item.digest,
                    hash64=item.hash64,
                    priority=item.priority,
                )
                for item, file in zip(taken, stored, strict=True)
            ]
            unused = [row.file for row in rows]
            try:
                with self.journal.transaction():
                    added = self.journal.add_samples(rows)
                    yield added
                unused = [row.file for row, i in zip(rows, added, strict=True) if row.id != i]
            finally:
                self.files.remove(unused)

    def image(self, sample_id: int) -> np.ndarray:
        return self.files.read(self.journal.sample(sample_id))

    def drop_queued(self, ids: Iterable[int]) -> list[SampleRow]:
        """Remove samples and their images from the queue; returns those that were still in it."""
        return self._remove_files(self.journal.drop_queued(ids))

    def make_room(self) -> None:
        """Let the least informative and oldest samples leave a queue that is full: several at once, as looking at all
        takes time.
        """
        if self.journal.counts().queued >= self.settings.queue_samples:
            rows = sorted(self.journal.queued(), key=lambda row: (-row.priority, -row.id))
            self.drop_queued(row.id for row in rows[int(QUEUE_TRIMMED_TO * self.settings.queue_samples) :])

    def is_full(self, image_bytes: int) -> bool:
        """Whether so many bytes of images leave no room for another frame without a label."""
        return image_bytes + min(LARGEST_IMAGE, self.settings.disk_bytes // 10) > self.settings.disk_bytes

    def forget_images(self, ids: Iterable[int], covered: int | None = None) -> list[SampleRow]:
        """Drop images, except of samples that are queued or changed after event `covered`; returns the dropped."""
        return self._remove_files(self.journal.forget_images(ids, covered))

    def _remove_files(self, rows: list[SampleRow]) -> list[SampleRow]:
        # The row first: a crash in between leaves a file that nobody needs, and no row without its file.
        self.files.remove(row.file for row in rows)
        return rows


def _check_place(layout: Layout, create: bool) -> None:
    path = layout.path
    with disk_errors(f"workspace {path}", "name a folder that can be written"):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file: name a folder for the workspace")
        layout.check_links()
        if layout.is_workspace():
            return
        if not create:
            layout.check_exists()
        if path.exists() and (strange := layout.foreign_files()):
            other = f"{path} is not a workspace: it holds {strange[0]}"
            raise UserError(f"{other}: name an empty or a new folder")
        path.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # an empty folder of somebody else's
            path.chmod(0o700)
        flush_to_disk(path.parent)


def _take_lock(layout: Layout) -> ExitStack:
    lock = ExitStack()
    busy = f"workspace {layout.path} is in use by process {{owner}}: end that first, or use another workspace"
    with disk_errors(f"workspace {layout.path} cannot be written", "learning needs a writable folder"):
        lock.enter_context(locked(layout.lock, busy, LOCK_SECONDS))
    return lock


def _taking_alone(layout: Layout) -> AbstractContextManager[None]:
    """Between an image's file and its row: no other process stores images, or puts the workspace in order."""
    busy = f"workspace {layout.path}: process {{owner}} has been storing images for {TAKING_SECONDS:.0f} s: try again"
    return locked(layout.taking, busy, TAKING_SECONDS)


def _upgrade(layout: Layout) -> list[str]:
    """Bring the journal to the current format, with a copy of the old one beside it. Only under the lock."""
    made = layout.journal.exists() and layout.journal.stat().st_size
    if not made or (written := _old_format(layout)) is None:
        return []
    kept = layout.path / f"journal.format-{written}.sqlite"
    backup_journal(layout.journal, kept)
    return [*upgrade_journal(layout.journal, written), f"the journal as it was is kept in {kept}"]


def _old_format(layout: Layout) -> int | None:
    with closing(open_read_only(layout.journal)) as db, as_user_errors(layout.journal):
        return check_journal(db, layout.journal)


def _own_settings(layout: Layout) -> Settings:
    with disk_errors(f"workspace {layout.path} cannot be written"):
        for folder in (layout.images, layout.checkpoints, layout.exports):
            folder.mkdir(exist_ok=True)
    if not layout.settings.exists():
        lost = layout.journal.exists()
        (Settings() if lost else Settings.of_new_workspace()).save(layout.settings)
    with suppress(PermissionError):  # the first edition let everybody read them
        layout.path.chmod(0o700)
        layout.settings.chmod(0o600)
    return Settings.load(layout.settings)
