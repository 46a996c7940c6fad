"""The learner of a workspace, in a thread of its own: it follows the journal, and uses idle time for more replay.

Labels go to the journal first, from whatever process; this thread reads them there in their order, so that a restart
is the newest checkpoint and the journal behind it. Nothing else changes the learner.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from edge_hpcr.common.allocator import keep_freed_memory
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite, resolve_device
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.live import checkpoints
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.live.calibration import Calibration, calibrate
from edge_hpcr.live.following import Close, Follower, Forget, Relabel, Teach
from edge_hpcr.live.housekeeping import tidy
from edge_hpcr.live.measuring import held_out_ids
from edge_hpcr.live.predictor import Answer, Predictor
from edge_hpcr.live.status import write_status
from edge_hpcr.live.suspicious import Suspicion, suspicious
from edge_hpcr.stream import Stream
from edge_hpcr.stream.resize import prepare
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.recover import backup_journal
from edge_hpcr.workspace.settings import Settings

LOG = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 0.5  # how soon a label from another process is noticed
STATUS_SECONDS, STATUS_FILE_SECONDS = 0.2, 1.0
TEST_EVERY_STEPS = 50  # on held-out samples, when nothing waits
TEST_AT_LEAST_EVERY_STEPS = 1000  # even when labels wait
TEST_SHARE = 0.1  # of the time, at most
TEST_BATCH = 64
MOST_SUSPECTS, SUSPICIONS_KEPT = 1000, 50
PROBLEMS_KEPT = 20
FEWEST_CLASSES = 2  # that a memory must have room for


@dataclass(frozen=True)
class Learned:
    """The learner's reply to one label."""

    seq: int
    sample_id: int
    class_id: int
    before: Answer  # what it said before it learned the label
    after: Answer
    held_out: bool
    seconds: float  # since the label was acknowledged


def learner_config(settings: Settings) -> LearnerConfig:
    return LearnerConfig(
        height=settings.image_size,
        width=settings.image_size,
        method=settings.method,
        memory=MemoryConfig(bytes=settings.memory_bytes, codec=settings.codec),
        # Labels come one at a time: statistics of a single image and its view would be no statistics.
        batch_norm="joint",
        ema_decay=LearnerConfig.ema_decay if settings.averaged else None,
    )


class LiveLearner:
    """Learns what the journal says, until it is stopped. Any thread may ask for answers and for the status."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        settings = workspace.settings
        self.device = resolve_device(settings.device)
        restored = checkpoints.load_newest(workspace.layout, self.device)
        self.problems: deque[str] = deque([*workspace.report, *restored.losses], maxlen=PROBLEMS_KEPT)
        self.learner = restored.learner or Learner(learner_config(settings), self.device)
        self._check_settings(settings)
        notes = restored.notes
        self.follower = Follower(notes.get("applied", 0))
        self.test_then_train = (
            TestThenTrain.from_state(notes["test_then_train"]) if notes else TestThenTrain()
        )
        self.held_out = HeldOut.from_state(notes["held_out"]) if notes else HeldOut()
        self.predictor = Predictor(self.learner, settings.averaged)
        if notes:
            self.predictor.calibration = Calibration(**notes["calibration"])
        self.recent: deque[Learned] = deque(maxlen=100)
        self.suspicions: list[Suspicion] = []
        self.stream: Stream | None = None  # whatever feeds it now, for the status
        self.phase = "starting"
        self.idle_steps_left = 0
        self.hurries = False  # rehearse without pauses: nobody else needs the machine
        self._held_out_images: dict[int, np.ndarray] = {}
        self._tested_step, self._tested_seq, self._next_test = -1, -1, 0.0
        self._asked_again = 0  # the last queued sample whose priority was refreshed
        self._saved_step, self._saved_seq = self.learner.step, self.follower.applied
        self._status_made = self._status_written = 0.0
        self._wake = threading.Condition()
        self._requests: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._notified = False
        self._stopping = False
        self._status = self._make_status()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def _check_settings(self, settings: Settings) -> None:
        made = self.learner.config
        if (made.height, made.method) != (settings.image_size, settings.method):
            raise UserError(
                f"workspace {self.workspace.path} learned {made.height} pixels with {made.method}, its settings now "
                f"say {settings.image_size} with {settings.method}: set them back, or export the labelled images and "
                "import them into a new workspace"
            )
        wanted = MemoryConfig(bytes=settings.memory_bytes, codec=settings.codec)
        if self.learner.memory.config != wanted:
            self.learner.memory.resize(wanted)
        self.learner.average_weights(learner_config(settings).ema_decay)

    @property
    def untaught(self) -> bool:
        """Whether nothing has been learned yet, not even that there is a class."""
        return self.learner.step == 0 and self.follower.applied == 0

    def make_anew(self) -> None:
        """With the image size and the method that the settings say now; by `call`, before anything has been learned."""
        settings = self.workspace.settings
        made = self.learner.config
        if (made.height, made.method) == (settings.image_size, settings.method):
            return
        if not self.untaught:
            raise UserError(
                f"this workspace has learned {made.height} pixels with {made.method}, which stays so: for another image "
                "size or method, export the labelled images and import them into a new workspace"
            )
        learner = Learner(learner_config(settings), self.device)
        learner.memory.check_holds(FEWEST_CLASSES)
        self.predictor = Predictor(learner, settings.averaged)
        self.learner = learner

    # For other threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the step under way, save, and end. Labels that wait are in the journal for the next start."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def report(self, problem: str) -> None:
        """Something that a person should know; the last few are in the status."""
        if problem not in self.problems:
            LOG.warning("%s", problem)
            self.problems.append(problem)

    def clear_problem(self, problem: str) -> None:
        """It is no more."""
        with suppress(ValueError, IndexError):  # it was not there, or others report and clear meanwhile
            self.problems.remove(problem)

    def notify(self) -> None:
        """The journal has something new; without this it is noticed within half a second."""
        with self._wake:
            self._notified = True
            self._wake.notify_all()

    @property
    def failed(self) -> bool:
        return self.phase == "failed"

    @property
    def caught_up(self) -> bool:
        return self.follower.applied >= self.workspace.journal.last_seq

    def wait_until_caught_up(self, seconds: float) -> bool:
        """Until every label so far has been learned."""
        self.notify()
        deadline = time.monotonic() + seconds
        with self._wake:
            while not self.caught_up and not self.failed and time.monotonic() < deadline:
                self._wake.wait(0.05)
        return self.caught_up

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Let the learning thread do something between two steps."""
        future: Future[T] = Future()
        with self._wake:
            if self.phase in ("stopped", "failed"):
                raise UserError("the learner has been stopped: start it first")
            self._requests.append((work, future))
            self._wake.notify_all()
        return future

    def resize_memory(self, memory_bytes: int, codec: str) -> Future[tuple[int, int]]:
        """Another budget and encoding, between two steps and for good; the answer is what it held and what it holds."""
        config = MemoryConfig(bytes=memory_bytes, codec=codec)

        def resize() -> tuple[int, int]:
            memory = self.learner.memory
            held, before = len(memory), memory.config
            memory.resize(config)  # first: settings that the memory cannot follow would not open again
            try:
                self.workspace.change_settings(memory_bytes=memory_bytes, codec=codec)
            except UserError:
                memory.resize(before)
                raise
            self._write_status(force=True)
            return held, len(memory)

        return self.call(resize)

    def prepare(self, frame: np.ndarray) -> np.ndarray:
        """A frame as the learner sees it."""
        size = self.learner.config.height
        return prepare(frame, (size, size))

    def answer(self, frames: list[np.ndarray]) -> list[Answer]:
        return self.predictor.answer(np.stack([self.prepare(frame) for frame in frames]))

    def status(self) -> dict[str, Any]:
        """As of a moment ago: made by the learning thread, since nobody else may look into a learner that learns."""
        return self._status

    def _make_status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "at": time.time(),
            "phase": self.phase,
            "device": str(self.device),
            "step": self.learner.step,
            "applied": self.follower.applied,
            "labels_waiting": self.follower.labels_waiting,
            "memory": self._memory_facts(),
            "test_then_train": self.test_then_train.summary(),
            "held_out": self.held_out.summary(),
            "calibration": asdict(self.predictor.calibration),
            "suspicious": [asdict(suspicion) for suspicion in self.suspicions],
            "stream": None
            if self.stream is None
            else {"name": self.stream.name} | asdict(self.stream.state()),
            "problems": list(self.problems),
        }

    def _memory_facts(self) -> dict[str, Any]:
        memory = self.learner.memory
        return {
            "samples": len(memory),
            "bytes": memory.byte_breakdown(),
            "budget": memory.config.bytes,
            "overhead": memory.overhead(),
        }

    # The learning thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        cores = os.cpu_count() or 1
        torch.get_num_threads()  # a thread's first use of PyTorch would otherwise set the number once more
        torch.set_num_threads(self.workspace.settings.threads or max(1, cores - 1))
        keep_freed_memory()
        try:
            while not self._stopping:
                self._answer_requests()
                self._turn()
            if self._save_is_due(idle=True):
                self._save()
            self._finish("stopped")
        except Exception as error:
            # The thread's end must be seen: labels still go to the journal, and nothing of them is lost.
            self.problems.append(f"learning stopped: {error}; labels are kept, restart to learn them")
            self._finish("failed")
            if not isinstance(error, UserError):
                raise

    def _finish(self, phase: str) -> None:
        self.phase = phase
        with self._wake:
            for _, future in self._requests:
                future.set_exception(UserError("the learner has been stopped"))
            self._requests.clear()
            self._wake.notify_all()
        self._write_status(force=True)

    def _turn(self) -> None:
        """One step of whatever is most urgent."""
        self._read_journal()
        work = self.follower.next(self.workspace.settings.micro_batch)
        if work is not None:
            self.phase = "learning"
            self._do(work)
            self.follower.done()
        elif self.idle_steps_left and len(self.learner.memory):
            self.phase = "rehearsing"
            self._rehearse()
        else:
            self.phase = "idle"
        self._test_if_due(idle=work is None)
        if self._save_is_due(idle=work is None and not self.idle_steps_left):
            self._save()
        self._write_status()
        with self._wake:
            self._wake.notify_all()  # whoever waits for labels to be learned
        if self.phase == "idle":
            self._wait(POLL_SECONDS)

    def _read_journal(self) -> None:
        self._notified = False
        if self.follower.labels_waiting < 10 * self.workspace.settings.micro_batch:
            self.follower.put(self.workspace.journal.events_after(self.follower.read, limit=200))

    def _wait(self, seconds: float) -> None:
        with self._wake:
            if not (self._stopping or self._notified or self._requests):
                self._wake.wait(seconds)

    def _answer_requests(self) -> None:
        while self._requests:
            work, future = self._requests.popleft()
            try:
                future.set_result(work())
            except Exception as error:  # belongs to whoever asked
                future.set_exception(error)

    def _do(self, work: list[Teach] | Relabel | Forget | Close) -> None:
        try:
            if isinstance(work, list):
                self._teach(work)
            elif isinstance(work, Relabel):
                self.learner.relabel(work.sample_id, work.class_id)
            elif isinstance(work, Forget):
                self.learner.forget(work.sample_id)
                self._held_out_images.pop(work.sample_id, None)
            elif work.class_id in self.learner.class_ids:
                self.learner.drop_class(work.class_id)
                self.held_out.drop(work.class_id)
                self.predictor.refresh()
        except UserError as error:
            # One label that cannot be learned (an image that is gone, a class too many for the budget) must not
            # stop all others. It stays in the journal.
            self.report(str(error))

    def _teach(self, batch: list[Teach]) -> None:
        """Test on the labels, then train on those that are not held out."""
        images = {}
        for teach in batch:
            try:
                images[teach.sample_id] = self.prepare(self.workspace.image(teach.sample_id))
            except UserError as error:
                self.report(f"a label could not be learned: {error}")
        batch = [teach for teach in batch if teach.sample_id in images]
        if not batch:
            return
        before = self._answers([images[teach.sample_id] for teach in batch])
        for teach, answer in zip(batch, before, strict=True):
            if teach.fresh:
                self.test_then_train.record(teach.class_id, answer.best[0] if answer.best else None)
        for corrected in (False, True):
            chosen = [t for t in batch if not t.held_out and t.corrected == corrected]
            if chosen:
                self._observe(chosen, images)
                self.predictor.refresh()
        self.idle_steps_left = self.workspace.settings.idle_steps
        now = time.time()
        after = self._answers([images[teach.sample_id] for teach in batch])
        self.recent += [
            Learned(t.seq, t.sample_id, t.class_id, said, says, t.held_out, now - t.at)
            for t, said, says in zip(batch, before, after, strict=True)
        ]

    def _observe(self, chosen: list[Teach], images: dict[int, np.ndarray]) -> None:
        """One step on all of them; if that cannot be done, one at a time, so that only those are left out that fail."""
        try:
            self.learner.observe(
                np.stack([images[teach.sample_id] for teach in chosen]),
                [teach.class_id for teach in chosen],
                np.array([teach.sample_id for teach in chosen]),
                remember=not chosen[0].corrected,
            )
        except UserError as error:
            if len(chosen) == 1:
                self.report(f"the label of sample {chosen[0].sample_id} could not be learned: {error}")
            else:
                for teach in chosen:
                    self._observe([teach], images)

    def _answers(self, images: list[np.ndarray]) -> list[Answer]:
        return self.predictor.answer(np.stack(images))

    def _rehearse(self) -> None:
        begun = time.monotonic()
        self.idle_steps_left -= 1
        try:
            self.learner.rehearse()
        except LossNotFinite as error:
            self.report(str(error))
            self.idle_steps_left = 0
        self.predictor.refresh()
        share = 1.0 if self.hurries else self.workspace.settings.idle_share
        if share > 0:
            self._wait((time.monotonic() - begun) * (1 - share) / share)
        else:
            self.idle_steps_left = 0

    # Honest accuracy --------------------------------------------------------------------------------------------------

    def _test_if_due(self, idle: bool) -> None:
        steps = self.learner.step - self._tested_step
        labelled = self._tested_seq != self.follower.applied
        due = idle and (labelled or steps >= TEST_EVERY_STEPS or (steps > 0 and not self.idle_steps_left))
        if (due or steps >= TEST_AT_LEAST_EVERY_STEPS) and time.monotonic() >= self._next_test:
            begun = time.monotonic()
            self.test()
            if idle:
                self._look_for_wrong_labels()
                self._refresh_queue()
            self._next_test = time.monotonic() + (time.monotonic() - begun) * (1 - TEST_SHARE) / TEST_SHARE

    def test(self) -> None:
        """Test on the held-out samples, and calibrate on the same: a threshold more or less is no training."""
        self._tested_step, self._tested_seq = self.learner.step, self.follower.applied
        truth = self._load_held_out()
        ids = list(truth)
        if not ids or not self.learner.class_ids:
            self.held_out.record(self.learner.step, np.empty(0, np.int64), np.empty(0, np.int64))
            return
        parts = [
            self.predictor.predict(
                np.stack([self._held_out_images[i] for i in ids[start : start + TEST_BATCH]])
            )
            for start in range(0, len(ids), TEST_BATCH)
        ]
        scores = np.concatenate([part.scores for part in parts])
        similarity = np.concatenate([part.similarity for part in parts])
        class_ids = parts[0].class_ids
        labels = np.array([truth[i] for i in ids])
        self.held_out.record(self.learner.step, labels, class_ids[scores.argmax(1)])
        known = np.isin(labels, class_ids)
        columns = np.array([int(np.flatnonzero(class_ids == c)[0]) for c in labels[known]], dtype=np.int64)
        self.predictor.calibration = calibrate(
            scores[known], similarity[known], columns, self.workspace.settings.unknown_share
        )

    def _look_for_wrong_labels(self) -> None:
        """Among what the memory holds; of a large memory, the same part each time is enough to point at some."""
        memory = self.learner.memory
        if not len(memory):
            return
        replay = memory.at(np.arange(min(len(memory), MOST_SUSPECTS)))
        features = np.concatenate(
            [
                self.predictor.features(replay.images[start : start + TEST_BATCH])
                for start in range(0, len(replay.ids), TEST_BATCH)
            ]
        )
        classes = np.array(self.learner.class_ids)[replay.labels]
        self.suspicions = suspicious(replay.ids, classes, features)[:SUSPICIONS_KEPT]

    def _refresh_queue(self) -> None:
        """Ask again about some of the samples that wait: what was news yesterday may be well known today."""
        rows = self.workspace.journal.samples(state="queued", after_id=self._asked_again, limit=TEST_BATCH)
        self._asked_again = rows[-1].id if len(rows) == TEST_BATCH else 0
        found = {}
        for row in rows:
            try:
                found[row.id] = self.prepare(self.workspace.image(row.id))
            except UserError:
                continue  # somebody has just labelled or dismissed it, or its image is damaged: `verify` says which
        if found:
            answers = self._answers(list(found.values()))
            self.workspace.journal.set_priorities(
                {i: answer.priority for i, answer in zip(found, answers, strict=True)}
            )

    def _load_held_out(self) -> dict[int, int]:
        wanted = held_out_ids(self.workspace)
        kept = {i: image for i, image in self._held_out_images.items() if i in wanted}
        for sample_id in wanted.keys() - kept.keys():
            try:
                kept[sample_id] = self.prepare(self.workspace.image(sample_id))
            except UserError as error:
                self.report(f"a held-out sample is missing: {error}")
        self._held_out_images = kept
        return {i: class_id for i, class_id in wanted.items() if i in kept}

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def _save_is_due(self, idle: bool) -> bool:
        if not self.follower.whole:
            return False  # half an event would be learned twice after a restart
        steps = self.learner.step - self._saved_step
        changed = steps > 0 or self.follower.applied != self._saved_seq
        return steps >= self.workspace.settings.checkpoint_steps or (idle and changed)

    def _save(self) -> None:
        """A checkpoint, a copy of the journal, and then the room that both make free."""
        layout = self.workspace.layout
        notes = {
            "test_then_train": self.test_then_train.state(),
            "held_out": self.held_out.state(),
            "calibration": asdict(self.predictor.calibration),
            "memory": self._memory_facts(),
            "suspicious": [asdict(suspicion) for suspicion in self.suspicions],
        }
        try:
            checkpoints.save(layout, self.learner, self.follower.applied, notes)
            backup_journal(layout.journal, layout.backup)
            checkpoints.prune(layout, self.workspace.settings.checkpoints_kept)
            tidy(self.workspace, self.learner.memory.ids(), held_out_ids(self.workspace))
        except UserError as error:
            self.report(str(error))  # a full disk: learning goes on, and the next time may have room
        self._saved_step, self._saved_seq = self.learner.step, self.follower.applied

    def _write_status(self, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._status_made < STATUS_SECONDS:
            return
        self._status_made = now
        self._status = self._make_status()
        if force or now - self._status_written >= STATUS_FILE_SECONDS:
            self._status_written = now
            try:
                write_status(self.workspace.layout.status, self._status)
            except OSError as error:
                self.report(f"{self.workspace.layout.status}: {error.strerror}")
