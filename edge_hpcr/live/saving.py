"""How the live learner saves itself: checkpoints, copies of the journal, and the room that both make free."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING

from edge_hpcr.common.errors import UserError
from edge_hpcr.live import checkpoints
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.workspace import label_queue
from edge_hpcr.workspace.recover import backup_journal

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner
    from edge_hpcr.workspace.folder import Workspace
    from edge_hpcr.workspace.settings import Settings

LARGEST_IMAGE = 1_000_000  # bytes; a stored image has 512 pixels a side at most
ROOM = 20  # samples that leave a full queue at once, since ranking it takes time
FILLED_AGAIN_TO = 0.9  # of the disk budget, so that the frames until the next checkpoint find room


class Saving:
    """Saves a live learner, in the thread that learns."""

    def __init__(self, live: LiveLearner) -> None:
        self._live = live
        self._saved_step, self._saved_seq = live.learner.step, live.follower.applied
        self._demanded = False

    def is_due(self, idle: bool) -> bool:
        if not self._live.follower.whole:
            return False  # half an event would be learned twice after a restart
        steps = self._live.learner.step - self._saved_step
        changed = steps > 0 or self._demanded or self._live.follower.applied != self._saved_seq
        return steps >= self._live.workspace.settings.checkpoint_steps or (idle and changed)

    def demand(self) -> None:
        """Something else than weights and labels changed that the next checkpoint should keep."""
        self._demanded = True

    def save(self) -> None:
        self._demanded = False
        """A checkpoint, a copy of the journal, and then the room that both make free."""
        layout = self._live.workspace.layout
        notes = {
            **self._live.self_test.notes(),
            "calibration": asdict(self._live.predictor.calibration),
            "memory": self._live.memory_facts(),
        }
        applied = self._live.follower.applied
        try:
            fingerprint = self._live.workspace.journal.fingerprint(applied)
            checkpoints.save(layout, self._live.learner, applied, notes, fingerprint)
            backup_journal(layout.journal, layout.backup)
            checkpoints.prune(layout, self._live.workspace.settings.checkpoints_kept)
            tidy(self._live.workspace, self._live.learner.memory.ids(), held_out_ids(self._live.workspace))
        except UserError as error:
            self._live.report(str(error))  # a full disk: learning goes on, and the next time may have room
        self._saved_step, self._saved_seq = self._live.learner.step, self._live.follower.applied


def tidy(workspace: Workspace, in_memory: Collection[int], held_out: Collection[int]) -> int:
    """Drop images that nobody needs, oldest first, when the disk budget is nearly used up; returns how many."""
    trim_queue(workspace)
    settings = workspace.settings
    excess = workspace.journal.counts().image_bytes - int(FILLED_AGAIN_TO * settings.disk_bytes)
    if excess <= 0 or settings.archive:
        return 0
    needed = {int(i) for i in in_memory} | set(held_out)
    # If the newest checkpoint turns out damaged, an older one is loaded, and everything behind it is learned again.
    covered = checkpoints.oldest_applied(workspace.layout)
    dropped: list[int] = []
    for row in workspace.journal.all_samples(has_image=True):
        if excess <= 0:
            break
        if row.state != "queued" and row.id not in needed and (row.labelled_seq or 0) <= covered:
            dropped.append(row.id)
            excess -= row.bytes
    return len(workspace.forget_images(dropped, covered))


def make_room(workspace: Workspace) -> None:
    """Let the least informative samples leave a queue that another one would fill."""
    settings, counts = workspace.settings, workspace.journal.counts()
    largest = settings.queue_bytes // 10
    if counts.queued >= settings.queue_samples or counts.queued_bytes + largest > settings.queue_bytes:
        trim_queue(workspace, min(ROOM, 1 + settings.queue_samples // 10), 2 * largest)


def is_disk_full(settings: Settings, image_bytes: int) -> bool:
    """Whether so many bytes of images leave no room for another frame without a label."""
    return image_bytes + min(LARGEST_IMAGE, settings.disk_bytes // 10) > settings.disk_bytes


def trim_queue(workspace: Workspace, room: int = 0, room_bytes: int = 0) -> int:
    """Remove the least informative samples until there is this much room in the queue; returns how many."""
    settings = workspace.settings
    most, most_bytes = max(0, settings.queue_samples - room), max(0, settings.queue_bytes - room_bytes)
    counts = workspace.journal.counts()
    if counts.queued <= most and counts.queued_bytes <= most_bytes:
        return 0
    rows = workspace.journal.queued(limit=counts.queued)
    ids, priorities = [row.id for row in rows], [row.priority for row in rows]
    hashes, sizes = [row.hash64 for row in rows], [row.bytes for row in rows]
    leaving = label_queue.overflow(ids, priorities, hashes, sizes, most, most_bytes)
    return len(workspace.drop_queued(leaving))
