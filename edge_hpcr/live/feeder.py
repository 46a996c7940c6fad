"""From a source into the workspace: each frame passes the gate and is queued, or brings its own label."""

from __future__ import annotations

import math
import random
import threading
import time
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import EndOfStream, Frame, Stream
from edge_hpcr.stream.gate import Gate
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.records import clean_name
from edge_hpcr.workspace.sample_files import looked_at
from edge_hpcr.workspace.selection import DRAWN, DRAWN_EVERY
from edge_hpcr.workspace.workspace import Workspace, warn_of_bad_file

LABELS_AT_ONCE = 10  # of a labelled source: one flush to disk for all of them
MOST_WAITING = 200  # labels that are not learned yet; beyond it a labelled source waits for the learner
STABLE_FRAMES = 5  # of which the learner is sure, all of one class: after them such frames are skipped
DISK_SECONDS = 1.0  # between two looks at how much is stored
REMEMBERED = 512  # hashes of what was queued or labelled before this source
STORING = "storing"  # the trouble that the disk gives
DISK_IS_FULL = "the disk budget is full of needed images: new frames are no longer queued; raise disk_bytes or delete samples"


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
        self.region: Region | None = None  # of the source's picture that is looked at; None: all of it
        self._waits = False  # whether the source waits for the learner
        self._unstored: list[Frame] = []  # with labels
        self._chance = random.Random()
        self._last: Frame | None = None  # of the source, as it came
        self._ask_disk_at, self._image_bytes = 0.0, 0

    def _new_gate(self, per_second: float) -> Gate:
        settings = self.workspace.settings
        gate = Gate(settings.gate_distance, settings.gate_sure, STABLE_FRAMES, per_second, REMEMBERED)
        for hash64 in self.workspace.journal.newest_hashes(REMEMBERED):
            gate.admit(hash64)
        return gate

    def use(self, stream: Stream, brings_labels: bool = False) -> None:
        """Change to this source. Frames of one that is not live are not skipped for coming fast: they come once."""
        with self._lock:
            gate = self._new_gate(self.workspace.settings.gate_per_second if stream.live else math.inf)
            region = self.workspace.regions.use(stream.name)
            self.leave()
            self._gate, self.region = gate, region
            self._waits = brings_labels or not stream.live
            self.ended, self._last = False, None
            self.stream = self.live.stream = stream

    def leave(self) -> None:
        """Close the source and store what it has brought, as far as that is possible now."""
        with self._lock:
            if self.stream is not None:
                self.stream.close()
            self.stream = self.live.stream = None
            self.finish()

    def set_region(self, region: Region | None) -> None:
        """Look at this part of the source's picture from now on, also the next time; and at that of its last frame."""
        with self._lock:
            if self.stream is None:
                raise UserError("there is no source to look at a part of: choose a source first")
            self.workspace.regions.put(self.stream.name, region)
            self.region = region
            if self._last is not None and self._last.label is None:
                self._take_next(self.stream, self._last)

    def turn(self, seconds: float) -> Frame | None:
        """Take one frame in, or wait for one about so long; returns it with what became of it.

        What the disk refuses is reported and tried again: a disk that is full for an hour must not end a run of months.
        """
        stream = self.stream
        try:
            if stream is None or self.ended:
                self.flush()
                self.stopping.wait(seconds)
            elif self._waits and self.must_wait:
                self.flush()
                self.live.wait_until_caught_up(seconds)
            else:
                frame = stream.read(seconds)
                with self._lock:
                    return self._take_next(stream, frame) if stream is self.stream else None
        except EndOfStream:
            with self._lock:
                if stream is self.stream:
                    self.finish()
                    self.ended = True
        except UserError as error:
            self.live.trouble(STORING, str(error))
            self.stopping.wait(seconds)
        return None

    def _take_next(self, stream: Stream, frame: Frame | None) -> Frame | None:
        if frame is None:
            self.flush()  # labels that no further frame would carry along
            return None
        self._last = frame
        taken = self.take(self.region.of_frame(frame) if self.region else frame)
        if len(self._unstored) >= LABELS_AT_ONCE:
            self.flush()
        return taken

    def take(self, frame: Frame) -> Frame:
        """Queue a frame or not; or keep it with its label, which `flush` stores. It comes back with what became of it.

        That is its verdict: queue or label; or why not: duplicate, sure, rate, disk, known (seen before), bad (its name).
        """
        with self._lock:
            taken = looked_at(frame)
            try:
                if taken.label is None:
                    self._judge(taken)
                else:
                    self._label(taken, taken.label)
            except UserError as error:
                self.live.trouble(STORING, str(error))
                taken.verdict = "disk"
            return taken

    # Frames without a label -------------------------------------------------------------------------------------------

    def _judge(self, frame: Frame) -> None:
        if frame.digest is not None and self.workspace.journal.known_source(frame.digest) is not None:
            frame.verdict = "known"
        elif self._disk_is_full():
            frame.verdict = "disk"
        elif self._gate.is_duplicate(frame.hash64):  # before the learner is asked, which takes far longer
            frame.verdict = "duplicate"
        else:
            frame.answer = answer = self.live.predictor.look(frame)
            frame.priority = answer.priority
            # With a single class it is sure of everything, which means nothing.
            sure = answer.best if len(answer.top) > 1 and not answer.unknown else None
            if drawn := self._is_drawn():
                frame.priority = DRAWN
            verdict = self._gate.judge(frame.hash64, sure, frame.at, drawn)
            if verdict == "queue":
                self._queue(frame)
            frame.verdict = verdict

    def _is_drawn(self) -> bool:
        """Whether the next frame is for measuring, by chance and whatever was said of it: those that somebody picks
        from the queue are harder than what comes.
        """
        settings, journal = self.workspace.settings, self.workspace.journal
        most = settings.queue_samples // DRAWN_EVERY
        return (
            self._chance.random() < settings.held_out_share
            and len(journal.samples(state="queued", priority=DRAWN, limit=most)) < most
        )

    def _queue(self, frame: Frame) -> None:
        self.workspace.make_room()
        with self.workspace.taking([frame]) as (sample_id,):
            # Before anybody can see it in the queue: the learner, asking about it anew, would send it through the
            # trunk once more.
            self.live.predictor.encoder.name(sample_id, frame)
        self._gate.admit(frame.hash64)
        frame.sample_id = sample_id
        self.live.trouble(STORING)
        self._ask_disk_at = 0.0

    def _disk_is_full(self) -> bool:
        """Unlabelled frames are not worth dropping anything else for."""
        # Asked of every frame, so the journal is asked only when something has been taken since, or now and then.
        if time.monotonic() >= self._ask_disk_at:
            self._ask_disk_at = time.monotonic() + DISK_SECONDS
            self._image_bytes = self.workspace.journal.counts().image_bytes
        full = self.workspace.is_full(self._image_bytes)
        self.live.trouble("the disk budget", DISK_IS_FULL if full else "")
        return full

    # Frames that bring a label ----------------------------------------------------------------------------------------

    def _label(self, frame: Frame, name: str) -> None:
        try:
            frame.label = clean_name(name)
        except UserError as error:
            warn_of_bad_file(Path(frame.origin), str(error))
            frame.verdict = "bad"
            return
        if frame.digest is not None:
            journal = self.workspace.journal
            frame.sample_id = known = journal.known_source(frame.digest)
            # A queued one came earlier from a source without labels.
            labelled = known is not None and journal.sample(known).state != "queued"
            if labelled or any(other.digest == frame.digest for other in self._unstored):
                frame.verdict = "known"
                return
        self._unstored.append(frame)
        frame.verdict = "label"

    def flush(self) -> None:
        """Store the labelled frames: images first, then samples, classes and labels in one transaction."""
        with self._lock:
            if not self._unstored:
                return
            journal = self.workspace.journal
            with self.workspace.taking(self._unstored) as ids:
                for sample_id, frame in zip(ids, self._unstored, strict=True):
                    # An import may have labelled the same file since, or a person deleted it.
                    if frame.label is not None and journal.sample(sample_id).state == "queued":
                        journal.label([sample_id], journal.class_named(frame.label))
            self._unstored.clear()
            self.live.trouble(STORING)
        self.live.notify()

    @property
    def must_wait(self) -> bool:
        """Whether the learner is far behind with labels, or a full disk keeps them from it."""
        if len(self._unstored) >= LABELS_AT_ONCE:
            return True
        if self.live.failed:
            return False  # nobody learns them now, and they are safe in the journal
        return self.workspace.journal.last_seq - self.live.follower.applied > MOST_WAITING

    def finish(self) -> int:
        """Store what waits; returns how many labels could not be stored."""
        with self._lock:
            try:
                self.flush()
            except UserError as error:
                self.live.trouble(STORING, str(error))
            return len(self._unstored)
