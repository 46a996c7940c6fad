"""From a stream into the workspace: a frame is predicted and passes the gate, or brings its own label."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.housekeeping import trim_queue
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer
from edge_hpcr.stream import Frame
from edge_hpcr.stream.gate import Gate, perceptual_hash
from edge_hpcr.workspace.folder import Taken, Workspace

LABELS_AT_ONCE = 10  # of a labelled source: one flush to disk for all of them
MOST_WAITING = 200  # labels; beyond it a labelled source waits for the learner
LARGEST_IMAGE = 1_000_000  # bytes; a stored image has 512 pixels a side at most
DISK_SECONDS = 1.0
COUNTS_SECONDS = 5.0  # between two writings of the gate's counts
ROOM = 20  # samples that leave a full queue at once, since ranking it takes time
DISK_IS_FULL = (
    "the disk budget is full of images that are needed: new frames are no longer queued; raise disk_bytes, or delete "
    "samples"
)
REMEMBERED = 512  # hashes of what was queued or labelled before a restart


@dataclass(frozen=True)
class Seen:
    """What became of a frame."""

    answer: Answer
    verdict: (
        str  # queue, label; or why not: duplicate, sure, rate, disk, known (seen before), bad (class name)
    )
    sample_id: int | None = None


class Intake:
    """Takes in the frames of one source. One thread feeds it.

    Frames of a source that waits (a folder, a video) are not skipped for coming too fast: they come once.
    """

    def __init__(self, workspace: Workspace, live: LiveLearner, source_waits: bool = False) -> None:
        settings = workspace.settings
        self.workspace = workspace
        self.live = live
        per_second = math.inf if source_waits else settings.gate_per_second
        self.gate = Gate(settings.gate_distance, settings.gate_sure, settings.gate_stable, per_second)
        shown = (row.hash64 for row in workspace.journal.all_samples() if row.state in ("queued", "labelled"))
        for hash64 in deque(shown, maxlen=REMEMBERED):
            self.gate.admit(hash64)
        self._labelled: list[tuple[Frame, int]] = []
        self._counts_kept = time.monotonic()
        self._extra_counts: dict[str, int] = {}
        self._dropped = 0
        self._ask_disk_at, self._image_bytes = 0.0, 0

    def take(self, frame: Frame) -> Seen:
        """Predict; then queue the frame, or not; or label it, if it brings a label."""
        (answer,) = self.live.answer([frame.image])
        seen = self._labelled_frame(frame, answer) if frame.label is not None else self._judged(frame, answer)
        if time.monotonic() - self._counts_kept > COUNTS_SECONDS:
            self.keep_counts()
        return seen

    def _judged(self, frame: Frame, answer: Answer) -> Seen:
        if frame.digest is not None and self.workspace.journal.known_source(frame.digest) is not None:
            return self._skipped(answer, "known")
        if self._disk_is_full():
            self.live.report(DISK_IS_FULL)
            return self._skipped(answer, "disk")
        self.live.clear_problem(DISK_IS_FULL)
        hash64 = perceptual_hash(frame.image)
        # With a single class it is sure of everything, which means nothing.
        sure = answer.best if len(answer.top) > 1 and not answer.unknown else None
        verdict = self.gate.judge(hash64, sure, frame.at)
        if verdict != "queue":
            return Seen(answer, verdict)
        self._make_room()
        sample_id = self.workspace.take(frame.image, frame.origin, frame.digest, hash64, answer.priority)
        self._ask_disk_at = 0.0
        return Seen(answer, verdict, sample_id)

    def _make_room(self) -> None:
        settings = self.workspace.settings
        counts = self.workspace.journal.counts()
        largest = settings.queue_bytes // 10
        if counts.queued >= settings.queue_samples or counts.queued_bytes + largest > settings.queue_bytes:
            trim_queue(self.workspace, min(ROOM, 1 + settings.queue_samples // 10), 2 * largest)

    def _skipped(self, answer: Answer, reason: str) -> Seen:
        name = f"skipped_{reason}"
        self._extra_counts[name] = self._extra_counts.get(name, 0) + 1
        return Seen(answer, reason)

    def _disk_is_full(self) -> bool:
        """Unlabelled frames are not worth dropping anything else for."""
        settings = self.workspace.settings
        # Asked of every frame, so the journal is asked only when something has been taken since, or now and then.
        if time.monotonic() >= self._ask_disk_at:
            self._ask_disk_at = time.monotonic() + DISK_SECONDS
            self._image_bytes = self.workspace.journal.counts().image_bytes
        return self._image_bytes + min(LARGEST_IMAGE, settings.disk_bytes // 10) > settings.disk_bytes

    def _labelled_frame(self, frame: Frame, answer: Answer) -> Seen:
        if frame.digest in {waiting.digest for waiting, _ in self._labelled if waiting.digest is not None}:
            self.flush()  # the same file twice: only what is written is recognised
        known = None if frame.digest is None else self.workspace.journal.known_source(frame.digest)
        # A queued one was cut off from its label by a power cut, or came earlier from a source without labels.
        if known is not None and self.workspace.journal.sample(known).state != "queued":
            return self._skipped(answer, "known")
        try:
            class_id = self._class_of(frame.label or "")
        except UserError as error:
            self.workspace.quarantine(Path(frame.origin), str(error))
            return self._skipped(answer, "bad")
        if known is not None:
            self.workspace.journal.label([known], class_id)
            self.live.notify()
            return Seen(answer, "label", known)
        self._labelled.append((frame, class_id))
        if len(self._labelled) >= LABELS_AT_ONCE:
            self.flush()
        return Seen(answer, "label")

    def flush(self) -> None:
        """Write the labelled frames that were collected: images first, then labels, then the learner hears of it."""
        if not self._labelled:
            return
        labelled = self._labelled[-MOST_WAITING:]
        # If the disk is full they stay, and the next time may have room.
        ids = self.workspace.take_many(
            [Taken(f.image, f.origin, f.digest, perceptual_hash(f.image)) for f, _ in labelled]
        )
        self._labelled = []
        self.workspace.journal.label_each(
            (sample_id, class_id) for (_, class_id), sample_id in zip(labelled, ids, strict=True)
        )
        self.live.notify()

    def _class_of(self, name: str) -> int:
        found = self.workspace.journal.class_id(name)
        return self.workspace.journal.create_class(name) if found is None else found

    @property
    def must_wait(self) -> bool:
        """The learner is far behind with labels, or a full disk keeps them from it."""
        if len(self._labelled) >= LABELS_AT_ONCE:
            return True
        return self.workspace.journal.last_seq - self.live.follower.applied > MOST_WAITING

    def count_dropped(self, dropped: int) -> None:
        """So many frames of a camera were overwritten by newer ones, since it was opened."""
        if dropped > self._dropped:
            self._extra_counts["dropped"] = self._extra_counts.get("dropped", 0) + dropped - self._dropped
        self._dropped = dropped

    def keep_counts(self) -> None:
        """What was skipped and why, for ever."""
        counts, self._extra_counts = self.gate.take_counts() | self._extra_counts, {}
        if counts:
            self.workspace.journal.add_counts(counts)
        self._counts_kept = time.monotonic()

    def close(self) -> None:
        self.flush()
        self.keep_counts()
