"""From a source into the workspace: each frame passes the gate and is queued, or brings its own label."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer
from edge_hpcr.live.saving import is_disk_full, make_room
from edge_hpcr.stream import EndOfStream, Frame, Stream
from edge_hpcr.stream.gate import Gate, perceptual_hash
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.records import clean_name
from edge_hpcr.workspace.sample_files import shrink

LABELS_AT_ONCE = 10  # of a labelled source: one flush to disk for all of them
MOST_WAITING = 200  # labels that are not learned yet; beyond it a labelled source waits for the learner
DISK_SECONDS = 1.0  # between two looks at how much is stored
COUNTS_SECONDS = 5.0  # between two writings of the gate's counts
REMEMBERED = 512  # hashes of what was queued or labelled before this source
DISK_IS_FULL = "the disk budget is full of needed images: new frames are no longer queued; raise disk_bytes or delete samples"


@dataclass(frozen=True)
class Seen:
    """What became of a frame."""

    frame: Frame
    hash64: int
    verdict: str  # queue or label; or why not: duplicate, sure, rate, disk, known (seen before), bad (name)
    answer: Answer | None = None  # None: the learner was not asked
    sample_id: int | None = None


class Feeder:
    """Feeds one source after another to a workspace and its learner.

    One thread calls `turn`; any thread may call the rest, since one lock guards everything. Labels that cannot be
    stored stay here, even without their source, and each turn tries again.
    """

    def __init__(self, workspace: Workspace, live: LiveLearner) -> None:
        self.workspace, self.live = workspace, live
        self.stream: Stream | None = None
        self.ended = False  # a finite source has shown everything
        self.stopping = threading.Event()  # ends the waits of `turn`
        self._lock = threading.RLock()
        self._gate = self._new_gate(math.inf)
        self._region: Region | None = None  # of the source's picture; None: all of it
        self._waits = False  # whether the source waits for the learner
        self._unstored: list[tuple[Taken, str]] = []  # with their class names
        self._again: Frame | None = None  # could not be taken; its source shows it once
        self._refusals: set[str] = set()  # of the disk, reported and not over yet
        self._counts: Counter[str] = Counter()
        self._counts_stored = time.monotonic()
        self._dropped = 0  # by the present source
        self._ask_disk_at, self._image_bytes = 0.0, 0

    def _new_gate(self, per_second: float) -> Gate:
        settings = self.workspace.settings
        gate = Gate(settings.gate_distance, settings.gate_sure, settings.gate_stable, per_second, REMEMBERED)
        for hash64 in self.workspace.journal.newest_hashes(REMEMBERED):
            gate.admit(hash64)
        return gate

    def use(self, stream: Stream, brings_labels: bool = False) -> None:
        """Change to this source. Frames of one that is not live are not skipped for coming fast: they come once."""
        with self._lock:
            gate = self._new_gate(self.workspace.settings.gate_per_second if stream.live else math.inf)
            region = self.workspace.regions.use(stream.name)
            self.leave()
            self._gate, self._region = gate, region
            self._waits = brings_labels or not stream.live
            self.ended, self._dropped, self._again = False, 0, None
            self.stream = self.live.stream = stream

    def leave(self) -> None:
        """Close the source and store what it has brought, as far as that is possible now."""
        with self._lock:
            if self.stream is not None:
                self.stream.close()
            self.stream = self.live.stream = None
            self.finish()

    @property
    def region(self) -> Region | None:
        """The part of the source's picture that is looked at."""
        return self._region

    def set_region(self, region: Region | None) -> None:
        """Look at this part of the source's picture from now on, also the next time that it is used."""
        with self._lock:
            if self.stream is None:
                raise UserError("there is no source to look at a part of: choose a source first")
            self.workspace.regions.put(self.stream.name, region)
            self._region = region

    def turn(self, seconds: float) -> Seen | None:
        """Take one frame in, or wait for one about so long.

        What the disk refuses is reported and tried again: a disk that is full for an hour must not end a run of months.
        """
        stream = self.stream
        try:
            if stream is None or self.ended:
                self.flush()
                self.stopping.wait(seconds)
                return None
            if self._waits and self.must_wait:
                self.flush()
                self.live.wait_until_caught_up(seconds)
                return None
            if self._again is not None:
                self.stopping.wait(seconds)
            frame = self._again or stream.read(seconds)
            with self._lock:
                return self._take_next(stream, frame) if stream is self.stream else None
        except EndOfStream:
            with self._lock:
                if stream is self.stream:
                    self.finish()
                    self.ended = True
        except UserError as error:
            self._report(error)
            self.stopping.wait(seconds)
        return None

    def _report(self, refusal: UserError) -> None:
        self._refusals.add(str(refusal))
        self.live.report(str(refusal))

    def _clear_refusals(self) -> None:
        """Something could be stored: what the disk refused before is no problem any more."""
        while self._refusals:
            self.live.clear_problem(self._refusals.pop())

    def _take_next(self, stream: Stream, frame: Frame | None) -> Seen | None:
        dropped = stream.state().dropped
        self._counts["dropped"] += max(0, dropped - self._dropped)
        self._dropped = dropped
        if frame is None:
            self.flush()  # labels that no further frame would carry along
            return None
        part = self._region.of_frame(frame) if self._region else frame
        try:
            seen = self.take(part)
            self._again = None
        except UserError as error:
            self._report(error)
            self._again = None if stream.live else frame
            return Seen(part, perceptual_hash(part.image), "disk")
        if len(self._unstored) >= LABELS_AT_ONCE:
            self.flush()
        if time.monotonic() - self._counts_stored > COUNTS_SECONDS:
            self.store_counts()  # after the frame: if this fails, the frame is not to be taken again
        return seen

    def take(self, frame: Frame) -> Seen:
        """Queue the frame or not; or keep it with its label, which `flush` stores."""
        with self._lock:
            hash64 = perceptual_hash(frame.image)
            if frame.label is None:
                return self._judge(frame, hash64)
            return self._label(frame, hash64, frame.label)

    # Frames without a label -------------------------------------------------------------------------------------------

    def _judge(self, frame: Frame, hash64: int) -> Seen:
        if frame.digest is not None and self.workspace.journal.known_source(frame.digest) is not None:
            return self._skipped(frame, hash64, "known")
        if self._disk_is_full():
            self.live.report(DISK_IS_FULL)
            return self._skipped(frame, hash64, "disk")
        self.live.clear_problem(DISK_IS_FULL)
        if self._gate.is_duplicate(hash64):
            return self._skipped(frame, hash64, "duplicate")
        image = shrink(frame.image)  # as it would be stored, and is shown
        (answer,) = self.live.answer([image])
        # With a single class it is sure of everything, which means nothing.
        sure = answer.best if len(answer.top) > 1 and not answer.unknown else None
        verdict = self._gate.judge(hash64, sure, frame.at)
        if verdict != "queue":
            return Seen(frame, hash64, verdict, answer)
        try:
            make_room(self.workspace)
            sample_id = self.workspace.take(image, frame.origin, frame.digest, hash64, answer.priority)
        except UserError:
            self._gate.withdraw()
            raise
        self._clear_refusals()
        self.live.name_sample(sample_id, image)
        self._ask_disk_at = 0.0
        return Seen(frame, hash64, verdict, answer, sample_id)

    def _disk_is_full(self) -> bool:
        """Unlabelled frames are not worth dropping anything else for."""
        # Asked of every frame, so the journal is asked only when something has been taken since, or now and then.
        if time.monotonic() >= self._ask_disk_at:
            self._ask_disk_at = time.monotonic() + DISK_SECONDS
            self._image_bytes = self.workspace.journal.counts().image_bytes
        return is_disk_full(self.workspace.settings, self._image_bytes)

    def _skipped(self, frame: Frame, hash64: int, reason: str) -> Seen:
        self._counts[f"skipped_{reason}"] += 1
        return Seen(frame, hash64, reason)

    # Frames that bring a label ----------------------------------------------------------------------------------------

    def _label(self, frame: Frame, hash64: int, name: str) -> Seen:
        try:
            name = clean_name(name)
        except UserError as error:
            self.workspace.quarantine(Path(frame.origin), str(error))
            return self._skipped(frame, hash64, "bad")
        sample_id = None
        if frame.digest is not None:
            if any(taken.source_digest == frame.digest for taken, _ in self._unstored):
                return self._skipped(frame, hash64, "known")
            sample_id = self.workspace.journal.known_source(frame.digest)
            # A queued one came earlier from a source without labels.
            if sample_id is not None and self.workspace.journal.sample(sample_id).state != "queued":
                return self._skipped(frame, hash64, "known")
        self._unstored.append((Taken(frame.image, frame.origin, frame.digest, hash64), name))
        return Seen(frame, hash64, "label", None, sample_id)

    def flush(self) -> None:
        """Store the labelled frames: images first, then samples, classes and labels in one transaction."""
        with self._lock:
            if not self._unstored:
                return
            journal = self.workspace.journal
            with self.workspace.taking([taken for taken, _ in self._unstored]) as ids:
                for sample_id, (_, name) in zip(ids, self._unstored, strict=True):
                    # An import may have labelled the same file since, or a person deleted it.
                    if journal.sample(sample_id).state == "queued":
                        journal.label([sample_id], journal.class_named(name))
            self._unstored.clear()
            self._clear_refusals()
        self.live.notify()

    @property
    def must_wait(self) -> bool:
        """Whether the learner is far behind with labels, or a full disk keeps them from it."""
        if len(self._unstored) >= LABELS_AT_ONCE:
            return True
        if self.live.failed:
            return False  # nobody learns them now, and they are safe in the journal
        return self.workspace.journal.last_seq - self.live.follower.applied > MOST_WAITING

    def store_counts(self) -> None:
        """Add what was skipped, and why, to the journal's counters."""
        with self._lock:
            self._counts.update(self._gate.take_counts())
            if counts := +self._counts:
                self.workspace.journal.add_counts(counts)
            self._counts.clear()
            self._counts_stored = time.monotonic()

    def finish(self) -> int:
        """Store what waits; returns how many labels could not be stored."""
        with self._lock:
            try:
                self.flush()
                self.store_counts()
            except UserError as error:
                self._report(error)
            return len(self._unstored)
