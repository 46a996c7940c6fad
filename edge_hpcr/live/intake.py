"""From a stream into the workspace: a frame is predicted and passes the gate, or brings its own label."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_hpcr import label_queue
from edge_hpcr.errors import UserError
from edge_hpcr.gate import Gate, perceptual_hash
from edge_hpcr.live.housekeeping import trim_queue
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer
from edge_hpcr.streams import Frame
from edge_hpcr.workspace.folder import Taken, Workspace

LABELS_AT_ONCE = 10  # of a labelled source: one flush to disk for all of them
MOST_WAITING = 200  # labels; beyond it a labelled source waits for the learner
COUNTS_SECONDS = 5.0  # between two writings of the gate's counts
ROOM = 20  # samples that leave a full queue at once, since ranking it takes time
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
    """Takes in the frames of one source. One thread feeds it."""

    def __init__(self, workspace: Workspace, live: LiveLearner) -> None:
        settings = workspace.settings
        self.workspace = workspace
        self.live = live
        self.gate = Gate(
            settings.gate_distance, settings.gate_sure, settings.gate_stable, settings.gate_per_second
        )
        shown = (row.hash64 for row in workspace.journal.all_samples() if row.state in ("queued", "labelled"))
        for hash64 in deque(shown, maxlen=REMEMBERED):
            self.gate.admit(hash64)
        self._labelled: list[tuple[Frame, int]] = []
        self._counts_kept = time.monotonic()
        self._extra_counts: dict[str, int] = {}

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
        hash64 = perceptual_hash(frame.image)
        verdict = self.gate.judge(hash64, None if answer.unknown else answer.best, frame.at)
        if verdict != "queue":
            return Seen(answer, verdict)
        if self._disk_is_full():
            return self._skipped(answer, "disk")
        scores = np.array([[confidence for _, confidence in answer.top]])
        priority = float(label_queue.uncertainty(scores, np.array([answer.unknown]))[0])
        self._make_room()
        sample_id = self.workspace.take(frame.image, frame.origin, frame.digest, hash64, priority)
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
        return self.workspace.journal.counts().image_bytes >= self.workspace.settings.disk_bytes

    def _labelled_frame(self, frame: Frame, answer: Answer) -> Seen:
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
        labelled, self._labelled = self._labelled, []
        if not labelled:
            return
        ids = self.workspace.take_many(
            [Taken(f.image, f.origin, f.digest, perceptual_hash(f.image)) for f, _ in labelled]
        )
        by_class: dict[int, list[int]] = {}
        for (_, class_id), sample_id in zip(labelled, ids, strict=True):
            by_class.setdefault(class_id, []).append(sample_id)
        for class_id, members in by_class.items():
            self.workspace.journal.label(members, class_id)
        self.live.notify()

    def _class_of(self, name: str) -> int:
        found = self.workspace.journal.class_id(name)
        return self.workspace.journal.create_class(name) if found is None else found

    @property
    def must_wait(self) -> bool:
        """The learner is far behind with labels."""
        return self.workspace.journal.last_seq - self.live.follower.applied > MOST_WAITING // LABELS_AT_ONCE

    def keep_counts(self) -> None:
        """What was skipped and why, for ever."""
        counts, self._extra_counts = self.gate.take_counts() | self._extra_counts, {}
        if counts:
            self.workspace.journal.add_counts(counts)
        self._counts_kept = time.monotonic()

    def close(self) -> None:
        self.flush()
        self.keep_counts()
