"""A workspace on disk: its layout, its lock, and what needs more than one of its parts at once."""

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, flush_to_disk, locked, sha256
from edge_hpcr.learner import checkpoint
from edge_hpcr.stream.decode import BadImage, read_bytes, starts_like_picture
from edge_hpcr.workspace.database import old_format, upgrade_journal
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.queries import reading
from edge_hpcr.workspace.records import NewSample, SampleRow
from edge_hpcr.workspace.recover import backup_journal, recover
from edge_hpcr.workspace.regions import Regions
from edge_hpcr.workspace.sample_files import SampleFiles
from edge_hpcr.workspace.set_aside import put_in_order
from edge_hpcr.workspace.settings import Settings, upgrade_settings

LOG = logging.getLogger(__name__)
QUARANTINE_FILE_BYTES = 5_000_000
QUARANTINE_BYTES = 50_000_000
TAKING_SECONDS = 20.0
LOCK_SECONDS = 0.5  # `status` holds the lock for a moment, to see whether somebody else does


@dataclass(frozen=True)
class Taken:
    """An image on its way into the queue."""

    image: np.ndarray  # uint8 RGB [H, W, 3]
    origin: str
    source_digest: str | None = None
    hash64: int = 0
    priority: float = 0.0


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
    def open(
        cls, path: Path | str, create: bool = True, learning: bool = True, anew: bool = False
    ) -> "Workspace":
        """Open a workspace; with `learning` as the one process that learns in it, otherwise to label and to look.

        `anew` begins a new journal where nothing is left of the old one.
        """
        layout = Layout(path)
        # Settings may hold a camera's password: what this process writes from now on is for this user alone.
        os.umask(os.umask(0o077) | 0o077)
        _check_place(layout, create and learning)
        if not learning:
            settings, report = Settings.load(layout.settings), []
            with reading(layout.journal):
                pass  # refuses one that is missing, damaged or of a newer version
            if old_format(layout.journal) is not None:
                with _take_lock(layout):
                    report = _upgrade(layout)
            return cls(layout, settings, None, report)
        with _take_lock(layout) as lock:
            settings = _own_settings(layout)
            with _taking_alone(layout):
                report = recover(layout, anew) + _upgrade(layout) + settings.report_unknown(layout.settings)
                workspace = cls(layout, settings, lock, report)
                workspace.report += put_in_order(layout, workspace.journal)
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

    def take(
        self,
        image: np.ndarray,
        origin: str,
        source_digest: str | None = None,
        hash64: int = 0,
        priority: float = 0.0,
    ) -> int:
        """Queue an image: first the file, then the row."""
        return self.take_many([Taken(image, origin, source_digest, hash64, priority)])[0]

    def take_many(self, taken: Sequence[Taken]) -> list[int]:
        """As `take`, for many images with few flushes."""
        with self.taking(taken) as ids:
            return ids

    @contextmanager
    def taking(self, taken: Sequence[Taken]) -> Iterator[list[int]]:
        """Queue images and do something with their ids, such as label them, in one journal transaction.

        An image whose source file is known already has the id of the known sample. If anything fails, nothing is left.
        """
        # A process that opens the workspace to learn removes images without a row. Who learns here is alone anyway.
        alone = _taking_alone(self.layout) if self._lock is None else nullcontext()
        with alone, self._taking(taken) as ids:
            yield ids

    @contextmanager
    def _taking(self, taken: Sequence[Taken]) -> Iterator[list[int]]:
        ids = self.journal.reserve_ids(len(taken))
        stored = self.files.write_many([(i, item.image) for i, item in zip(ids, taken, strict=True)])
        rows = [
            NewSample(
                *(file.bytes, file.digest, item.origin, item.hash64, item.priority),
                *(file.width, file.height, file.file, item.source_digest, sample_id),
            )
            for sample_id, item, file in zip(ids, taken, stored, strict=True)
        ]
        unused = [row.file for row in rows]
        try:
            with self.journal.transaction():
                added = self.journal.add_samples(rows)
                yield added
            unused = [row.file for row, sample_id in zip(rows, added, strict=True) if row.id != sample_id]
        finally:
            self.files.remove(unused)

    def image(self, sample_id: int) -> np.ndarray:
        return self.files.read(self.journal.sample(sample_id))

    def drop_queued(self, ids: Iterable[int]) -> list[SampleRow]:
        """Remove samples and their images from the queue; returns those that were still in it."""
        return self._remove_files(self.journal.drop_queued(ids))

    def forget_images(self, ids: Iterable[int], covered: int | None = None) -> list[SampleRow]:
        """Drop images, except of samples that are queued or changed after event `covered`; returns the dropped."""
        return self._remove_files(self.journal.forget_images(ids, covered))

    def _remove_files(self, rows: list[SampleRow]) -> list[SampleRow]:
        # The row first: a crash in between leaves a file that nobody needs, and no row without its file.
        self.files.remove(row.file for row in rows)
        return rows

    # Bad files ----------------------------------------------------------------------------------------------------

    def quarantine(self, path: Path, reason: str) -> None:
        """Note a file that could not be used, and keep a copy of a small one that may be a picture; never fails."""
        notes = self.layout.quarantine / "quarantine.jsonl"
        try:
            self.layout.quarantine.mkdir(exist_ok=True)
            if notes.exists() and notes.stat().st_size > QUARANTINE_FILE_BYTES:
                return  # enough of them are noted
            line = {"path": str(path), "reason": reason, "copy": self._keep_copy(path), "at": time.time()}
            with notes.open("a", encoding="utf-8") as file:
                # Names that are no valid UTF-8 exist; JSON's escapes carry them.
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            LOG.warning("%s: cannot note the bad file %s: %s", notes, path, error.strerror)

    def _keep_copy(self, path: Path) -> str | None:
        try:
            # Links are not followed: what they lead to was not given to us.
            content = read_bytes(path, QUARANTINE_FILE_BYTES, follow=False)
        except BadImage:
            return None
        if not starts_like_picture(content):
            return None  # a source must not be a way to copy any file
        held = sum(entry.stat().st_size for entry in self.layout.quarantine.iterdir())
        if held + len(content) > QUARANTINE_BYTES:
            return None
        copy = self.layout.quarantine / f"{sha256(content)[:16]}{path.suffix[:10]}"
        copy.write_bytes(content)
        return copy.name


def _check_place(layout: Layout, create: bool) -> None:
    path = layout.path
    with disk_errors(f"workspace {path}", "name a folder that can be written"):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file: name a folder for the workspace")
        if layout.is_workspace():
            return
        if not create:
            layout.check_exists()
        if path.exists() and (strange := layout.strangers()):
            other = f"{path} holds something else than a workspace ({strange[0]})"
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
    """Bring settings and journal to the current formats, with copies of the old ones beside. Only under the lock."""
    changed = upgrade_settings(layout.settings)
    written = old_format(layout.journal)
    if written is None:
        return changed
    kept = layout.path / f"journal.format-{written}.sqlite"
    backup_journal(layout.journal, kept)
    return [*changed, *upgrade_journal(layout.journal), f"the journal as it was is kept in {kept}"]


def _own_settings(layout: Layout) -> Settings:
    with disk_errors(f"workspace {layout.path} cannot be written"):
        for folder in (layout.images, layout.checkpoints, layout.quarantine, layout.exports):
            folder.mkdir(exist_ok=True)
    if not layout.settings.exists():
        _first_settings(layout).save(layout.settings)
    with suppress(PermissionError):
        layout.settings.chmod(0o600)  # the first edition let everybody read it
    return Settings.load(layout.settings)


def _first_settings(layout: Layout) -> Settings:
    """The defaults, but for what a learner that has begun was made from, which it cannot change."""
    for folder in reversed(layout.checkpoint_folders()):
        with suppress(UserError):  # a damaged one is reported when it is loaded
            made = checkpoint.facts(folder)["config"]
            backbone, weights = made.get("backbone", "reduced_resnet18"), made.get("weights") or ""
            return Settings(
                backbone=backbone, weights=weights, image_size=made["height"], method=made["method"]
            )
    return Settings()
