"""The learner of a workspace, in its thread: it follows the journal, and uses idle time for more replay.

Labels go to the journal first, from any process, and are read there in their order: a restart is the newest checkpoint
and the journal after it. Nothing else changes the learner.
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
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np
import torch

from edge_hpcr.common.allocator import keep_freed_memory
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.backbones import NoBackbone, backbone_class
from edge_hpcr.learner.calibration import Calibration
from edge_hpcr.learner.config import memory_options
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite, resolve_device
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.live import checkpoints
from edge_hpcr.live.health import Alarm, alarms
from edge_hpcr.live.predictor import Answer, Predictor
from edge_hpcr.live.saving import Saving
from edge_hpcr.live.self_test import SelfTest
from edge_hpcr.live.status import write_status
from edge_hpcr.live.teaching import Follower, Learned, Teaching
from edge_hpcr.stream import Stream
from edge_hpcr.stream.resize import prepare
from edge_hpcr.workspace.database import JournalDamaged
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import AUTO, Settings

LOG = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 0.5  # how soon a label from another process is noticed
STATUS_SECONDS, STATUS_FILE_SECONDS = 0.2, 1.0
PROBLEMS_KEPT = 20
FEWEST_CLASSES = 2  # that a memory must have room for
# Samples in memory. In idle time so few are rehearsed so often that light views of them are learned by heart: docs/edge.md
STRONG_BELOW = 2000
EDGE = "edge"  # the method of workspaces that learn from scratch
STAND_IN = LearnerConfig(height=8, width=8, nf=1, method="er")


def learner_config(settings: Settings) -> LearnerConfig:
    """What a workspace's learner is made from."""
    kind = backbone_class(settings.backbone)
    suited = LearnerConfig.recommended(settings.backbone, method=method_name(settings))
    size = settings.image_size or suited.height
    if not kind.smallest_side <= size <= kind.largest_side:
        limits = f"{kind.smallest_side} to {kind.largest_side}"
        raise UserError(
            f"setting image_size {size}: with the backbone {settings.backbone} give {limits}, or 0 for its own size"
        )
    return replace(
        suited,
        height=size,
        width=size,
        weights=settings.weights or None,
        memory=memory_config(settings),
        strong_below=0 if suited.plain else STRONG_BELOW,
        # Labels come one at a time: statistics of a single image and its view would be no statistics.
        batch_norm="joint",
        ema_decay=suited.ema_decay if settings.averaged else None,
    )


def method_name(settings: Settings) -> str:
    if settings.method != AUTO:
        return settings.method
    return "hpcr" if backbone_class(settings.backbone).has_trunk else EDGE


def memory_config(settings: Settings) -> MemoryConfig:
    """The budget, and how a sample is kept: with a trunk always as a latent."""
    if settings.codec != AUTO and backbone_class(settings.backbone).has_trunk:
        raise UserError(
            f"setting codec {settings.codec}: with the backbone {settings.backbone} the memory keeps latents: give {AUTO}"
        )
    method = method_name(settings)
    options = memory_options(settings.backbone, method)
    if method == EDGE and not backbone_class(settings.backbone).has_trunk:
        options["keep"] = "balanced"  # people label some classes far more often than others
    if settings.codec != AUTO:
        options["codec"] = settings.codec
    return MemoryConfig(bytes=settings.memory_bytes, **options)


def _identity(config: LearnerConfig) -> str:
    """What a learner cannot change once it has learned, in words."""
    return f"{config.height} pixels with {config.backbone} and {config.method}"


class LiveLearner:
    """Learns what the journal says, until it is stopped. Any thread may ask for answers and for the status."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        settings = workspace.settings
        self.device = resolve_device(settings.device)
        self.problems: deque[str] = deque(workspace.report, maxlen=PROBLEMS_KEPT)
        self.unable: str | None = None  # why it cannot learn here; labels are kept all the same
        try:
            found, losses = checkpoints.load_newest(workspace.layout, self.device, settings.weights or None)
            self.problems += losses
            self.learner, notes = found or (Learner(learner_config(settings), self.device), {})
            self._check_settings(settings)
        except NoBackbone as error:
            if not workspace.journal.last_seq:
                raise  # nothing has been labelled: there is nothing to keep open for
            self.unable = (
                f"this workspace cannot learn or answer here: {error}; labels are kept, and learned later"
            )
            self.problems.append(self.unable)
            self.learner, notes = self._stand_in()
        self._notes = notes  # of the checkpoint that it started from
        self.follower = Follower(notes.get("applied", 0))
        self.self_test = SelfTest(self, notes)
        self.saving = Saving(self)
        self._teaching = Teaching(self)
        self.predictor = Predictor(self.learner, settings.averaged)
        if notes:
            self.predictor.calibration = Calibration(**notes["calibration"])
        self.recent: deque[Learned] = deque(maxlen=100)
        self.stream: Stream | None = None  # the present source, for the status
        self.source_problem: str | None = None  # why there is none, say
        self.phase = "starting"
        self._next_turn_at = time.monotonic()  # at the latest, as long as nothing hangs
        self.idle_steps_left = 0
        self.hurries = False  # rehearse without pauses: nobody else needs the machine
        self._status_made = self._status_written = 0.0
        self._wake = threading.Condition()
        self._requests: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._notified = False
        self._stopping = False
        self._status = self._make_status()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def _stand_in(self) -> tuple[Learner, dict[str, Any]]:
        """In the place of a learner that cannot be made here one that knows no class, and what the newest checkpoint says."""
        saved, _ = checkpoints.newest(self.workspace.layout, checkpoint.facts)
        learner = Learner(
            replace(STAND_IN, memory=MemoryConfig(bytes=self.workspace.settings.memory_bytes)), "cpu"
        )
        learner.step = saved["step"] if saved else 0
        return learner, saved["notes"] if saved else {}

    def _check_settings(self, settings: Settings) -> None:
        made, wanted = self.learner.config, learner_config(settings)
        if _identity(made) != _identity(wanted):
            raise UserError(
                f"workspace {self.workspace.path} learned {_identity(made)}, its settings now say {_identity(wanted)}: "
                "set them back, or export the labelled images and import them into a new workspace"
            )
        if self.learner.memory.config != wanted.memory:
            self.learner.resize_memory(wanted.memory)
        # As a new workspace shows images; the first goes with how the memory draws, which follows the settings, too.
        self.learner.config = replace(
            self.learner.config, as_kept=wanted.as_kept, strong_below=wanted.strong_below
        )
        self.learner.average_weights(wanted.ema_decay)

    @property
    def untaught(self) -> bool:
        """Whether nothing has been learned yet, not even that there is a class."""
        return self.learner.step == 0 and self.follower.applied == 0 and not self.unable

    def make_anew(self) -> None:
        """Replace a learner that has learned nothing, for another backbone, size or method in the settings; by `call`."""
        settings = self.workspace.settings
        made, wanted = self.learner.config, learner_config(settings)
        if (_identity(made), made.weights) == (_identity(wanted), wanted.weights):
            return
        if not self.untaught:
            raise UserError(
                f"this workspace has learned {_identity(made)}, which stays so: for another backbone, image size or "
                "method, export the labelled images and import them into a new workspace"
            )
        learner = Learner(wanted, self.device)
        learner.memory.check_holds(FEWEST_CLASSES)
        self.predictor = Predictor(learner, settings.averaged)
        self.learner = learner
        self.self_test.forget_inputs()

    # For other threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.unable:
            self._finish("failed")
        else:
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
        """Take a problem that is over out of the status."""
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
                raise UserError(self.unable or "the learner has been stopped: start it first")
            self._requests.append((work, future))
            self._wake.notify_all()
        return future

    def resize_memory(self, memory_bytes: int, codec: str) -> Future[tuple[int, int]]:
        """Change and save the memory's budget and encoding; the answer is how many samples it held and holds."""
        settings = self.workspace.settings
        # What `auto` came to is no choice of anybody's.
        kept = settings.codec if codec == self.learner.memory.config.codec else codec
        changes = {"memory_bytes": memory_bytes, "codec": kept}
        config = learner_config(settings.replace(**changes)).memory

        def resize() -> tuple[int, int]:
            memory = self.learner.memory
            held, before = len(memory), memory.config
            # First: settings that the memory cannot follow would not open again.
            self.learner.resize_memory(config)
            try:
                self.workspace.change_settings(**changes)
            except UserError:
                self.learner.resize_memory(before)
                raise
            self._write_status(force=True)
            return held, len(memory)

        return self.call(resize)

    def prepare(self, frame: np.ndarray) -> np.ndarray:
        """A frame as the learner sees it."""
        size = self.learner.config.height
        return prepare(frame, (size, size))

    def inputs_of(self, sample_id: int) -> np.ndarray:
        """A stored sample as the trainable part sees it."""
        image = self.prepare(self.workspace.image(sample_id))
        return self.predictor.encoder.encode_sample(sample_id, image)

    def name_sample(self, sample_id: int, frame: np.ndarray) -> None:
        """A frame that was asked about has become a sample: its trunk need not see it again."""
        self.predictor.encoder.name(sample_id, self.prepare(frame))

    def answer(self, frames: list[np.ndarray]) -> list[Answer]:
        predictor = self.predictor  # `make_anew` may replace it meanwhile, for another size
        size = (predictor.image_size, predictor.image_size)
        return predictor.answer(np.stack([prepare(frame, size) for frame in frames]))

    def status(self) -> dict[str, Any]:
        """The last status that the learning thread made: no other thread may look into a learner that learns."""
        return self._status

    def alarms(self) -> list[Alarm]:
        """What a person must know now; also of a learning thread that hangs, which makes no status."""
        silent = 0.0 if self._stopping else max(0.0, time.monotonic() - self._next_turn_at)
        now = {**self._status, **self._source_facts(), "phase": self.phase}
        return alarms(self.workspace.path, now, silent)

    def _source_facts(self) -> dict[str, Any]:
        stream = self.stream
        return {
            "stream": {"name": stream.name} | asdict(stream.state()) if stream else None,
            "source_problem": self.source_problem,
        }

    def _make_status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "at": time.time(),
            "phase": self.phase,
            "device": str(self.device),
            "step": self.learner.step,
            "applied": self.follower.applied,
            "labels_waiting": self.follower.labels_waiting,
            "events_waiting": max(0, self.workspace.journal.last_seq - self.follower.applied),
            "oldest_waiting_seconds": self._oldest_waiting_seconds(),
            "memory": self.memory_facts(),
            **self.self_test.summary(),
            "calibration": asdict(self.predictor.calibration),
            **self._source_facts(),
            "problems": list(self.problems),
        }

    def _oldest_waiting_seconds(self) -> float:
        at = self.follower.oldest_waiting
        return 0.0 if at is None else max(0.0, time.time() - at)

    def memory_facts(self) -> dict[str, Any]:
        memory = self.learner.memory
        if self.unable and self._notes:
            return dict(self._notes["memory"])
        return {
            "samples": len(memory),
            "bytes": self.learner.byte_breakdown(),
            "budget": memory.config.bytes,
            "codec": memory.config.codec,
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
            if self.saving.is_due(idle=True):
                self.saving.save()
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
                if future.set_running_or_notify_cancel():
                    future.set_exception(UserError("the learner has been stopped"))
            self._requests.clear()
            self._wake.notify_all()
        self._write_status(force=True)

    def _turn(self) -> None:
        """One step of whatever is most urgent."""
        self._next_turn_at = time.monotonic()
        self._or_report(self._read_journal)
        work = self.follower.next(self.workspace.settings.micro_batch)
        if work is not None:
            self.phase = "learning"
            self._teaching.do(work)
            self.follower.done()
        elif self.idle_steps_left and len(self.learner.memory):
            self.phase = "rehearsing"
            self._rehearse()
        elif self.workspace.settings.idle_share and self._validates():
            self.phase = "rehearsing"
        else:
            self.phase = "idle"
        self._or_report(lambda: self.self_test.test_if_due(idle=work is None))
        if self.saving.is_due(idle=work is None and not self.idle_steps_left):
            self.saving.save()
        self._write_status()
        with self._wake:
            self._wake.notify_all()  # for `wait_until_caught_up`
        if self.phase == "idle":
            self._wait(POLL_SECONDS)

    def _or_report(self, work: Callable[[], None]) -> None:
        """What a full disk refuses now is tried again in a later turn: it must not end the learning."""
        try:
            work()
        except JournalDamaged:
            raise
        except UserError as error:
            self.report(str(error))

    def _read_journal(self) -> None:
        self._notified = False
        if self.follower.labels_waiting < 10 * self.workspace.settings.micro_batch:
            self.follower.put(self.workspace.journal.events_after(self.follower.read, limit=200))

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the learning thread."""
        return self._stopping or self._notified or bool(self._requests)

    def _wait(self, seconds: float) -> None:
        self._next_turn_at = time.monotonic() + seconds
        with self._wake:
            if not self.is_wanted:
                self._wake.wait(seconds)

    def _answer_requests(self) -> None:
        while self._requests:
            work, future = self._requests.popleft()
            if not future.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            try:
                future.set_result(work())
            except Exception as error:  # for the thread that asked
                future.set_exception(error)

    def _rehearse(self) -> None:
        begun = time.monotonic()
        self.idle_steps_left -= 1
        try:
            self.learner.rehearse()
        except LossNotFinite as error:
            self.report(str(error))
            self.idle_steps_left = 0
        self.predictor.refresh()
        self._rest_after(begun)

    @property
    def calibrates(self) -> bool:
        """Whether idle time is still used to find out how sure the answers may be."""
        return bool(self.workspace.settings.idle_share) and self.self_test.is_validating

    @property
    def progress(self) -> float | None:
        """How much of the rehearsal after the last label is done; None when there is nothing left to do."""
        if self.phase in ("failed", "stopped"):
            return None
        if self.phase == "learning" or not self.caught_up:
            return 0.0
        steps = self.workspace.settings.idle_steps
        return 1 - self.idle_steps_left / steps if self.idle_steps_left and steps else None

    def _validates(self) -> bool:
        begun = time.monotonic()
        worked = self.self_test.validate()
        self._rest_after(begun)
        return worked

    def _rest_after(self, begun: float) -> None:
        """Leave the rest of the idle time to others."""
        share = 1.0 if self.hurries else self.workspace.settings.idle_share
        if share > 0:
            self._wait((time.monotonic() - begun) * (1 - share) / share)
        else:
            self.idle_steps_left = 0

    # The status -------------------------------------------------------------------------------------------------------

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
