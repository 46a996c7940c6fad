"""The learner of a workspace, in its thread: it follows the journal, and uses idle time for more replay.

Labels go to the journal first, from any process, and are read there in their order: a restart is the newest checkpoint
and the journal after it. Nothing else changes the learner.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint, methods
from edge_hpcr.learner.backbones import backbone_class
from edge_hpcr.learner.calibration import Calibration
from edge_hpcr.learner.config import memory_options
from edge_hpcr.learner.device import keep_freed_memory, return_freed_memory
from edge_hpcr.learner.learner import Learner, LearnerConfig, LossNotFinite, resolve_device
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.live.follower import Close, Follower, Operation, Teach, Unlearn
from edge_hpcr.live.latents import LatentFile
from edge_hpcr.live.predictor import Answer, Predictor
from edge_hpcr.live.self_test import SelfTest
from edge_hpcr.live.status import Alarm, alarms, write_status
from edge_hpcr.stream import Stream
from edge_hpcr.workspace.database import JournalDamaged, JournalGone
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.recover import backup_journal, set_aside
from edge_hpcr.workspace.settings import AUTO, Settings
from edge_hpcr.workspace.workspace import Workspace

LOG = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 0.5  # how soon a label from another process is noticed
STATUS_SECONDS, STATUS_FILE_SECONDS = 0.2, 1.0
SAVE_AGAIN_SECONDS = 10.0  # after a disk that refused it
PROBLEMS_KEPT = 20
MICRO_BATCH = 10  # labels learned in one step, at most
# Of a learner that is behind by more, if it takes no steps but counts: most of a small batch's time goes into its answers.
LARGE_BATCH = 100
LATENTS_SHARE = 10  # beside the disk budget for images, one part in so many
FEWEST_CLASSES = 2  # that a memory must have room for
CHECKPOINTS_KEPT = 3
FILLED_AGAIN_TO = 0.9  # of the disk budget, so that the frames until the next checkpoint find room
# Samples in memory. In idle time so few are rehearsed so often that light views of them are learned by heart: docs/edge.md
FEW_SAMPLES = 2000
EDGE = "edge"  # the method of workspaces that learn from scratch


def learner_config(settings: Settings) -> LearnerConfig:
    """What a workspace's learner is made from."""
    kind, method = backbone_class(settings.backbone), settings.method
    if method == AUTO:
        method = kind.suited_method if kind.has_trunk else EDGE
    if methods.method_class(method).needs_boundaries:
        raise UserError(
            f"setting method {method}: it needs to know where a task ends, which a live workspace does not: choose one "
            f"of {', '.join(methods.live_names())}"
        )
    suited = LearnerConfig.recommended(settings.backbone, method=method)
    size = settings.image_size or suited.height
    options = memory_options(settings.backbone, method)
    if settings.codec != AUTO:
        if kind.has_trunk:
            raise UserError(
                f"setting codec {settings.codec}: with the backbone {settings.backbone} the memory keeps latents: "
                f"give {AUTO}"
            )
        options["codec"] = settings.codec
    if method == EDGE and not kind.has_trunk:
        options["keep"] = "balanced"  # people label some classes far more often than others
    return replace(
        suited,
        height=size,
        width=size,
        memory=MemoryConfig(bytes=settings.memory_bytes, **options),
        few_samples=0 if suited.plain else FEW_SAMPLES,
        # Labels come one at a time: statistics of a single image and its view would be no statistics.
        batch_norm="joint",
        ema_decay=suited.ema_decay if settings.averaged else None,
    )


def _newest_learner(
    layout: Layout, device: torch.device
) -> tuple[tuple[Learner, dict[str, Any]] | None, list[str]]:
    """The learner of the newest whole checkpoint, with its notes; and a sentence about each damaged one, set aside.

    A checkpoint of another version is refused and stays.
    """
    for leftover in layout.checkpoints.glob("step-*.*"):  # of a process that was killed while it saved
        whole = leftover.with_suffix("")
        if leftover.suffix == ".previous" and not whole.exists():
            leftover.rename(whole)
        elif not leftover.is_symlink():
            shutil.rmtree(leftover)
    damage = checkpoint.DamagedCheckpoint
    found, damaged = layout.newest_checkpoint(lambda folder: Learner.load(folder, device), damage)
    if not damaged:
        return found, []
    place = set_aside(layout, [folder for folder, _ in damaged])
    again = "what it had learned is learned again from the labels, as far as images are left"
    return found, [f"{error}; it was set aside in {place}, and {again}" for _, error in damaged]


def _identity(config: LearnerConfig) -> str:
    """What a learner cannot change once it has learned, in words."""
    return f"{config.height} pixels with {config.backbone} and {config.method}"


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


class LiveLearner:
    """Learns what the journal says, until it is stopped. Any thread may ask for answers and for the status."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        settings = workspace.settings
        self.device = resolve_device(settings.device)
        found, losses = _newest_learner(workspace.layout, self.device)
        self.problems = deque([*workspace.report, *losses], maxlen=PROBLEMS_KEPT)
        self._troubles: dict[str, str] = {}
        learner, notes = found or (Learner(learner_config(settings), self.device), {})
        if found is None and (lack := settings.lacks_better()):
            self.problems.append(lack)
        self.follower = Follower(notes.get("applied", 0))
        self._use(learner, notes)
        self._follow_settings()
        self.recent: deque[Learned] = deque(maxlen=100)
        self.stream: Stream | None = None  # the present source, for the status
        self.source_problem: str | None = None  # why there is none, say
        self.phase = "starting"
        self._next_turn_at = time.monotonic()  # at the latest, as long as nothing hangs
        self.idle_steps_left = 0
        self.hurries = False  # rehearse without pauses: nobody else needs the machine
        self._saved = self._progress_made()
        self._backed_up = -1  # the last event in the journal's copy
        self._save_again_at = 0.0
        self._status_made = self._status_written = 0.0
        self._wake = threading.Condition()
        self._requests: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._notified = False
        self._stopping = False
        self._status = self._make_status()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def _use(self, learner: Learner, notes: dict[str, Any]) -> None:
        self.learner = learner
        self.predictor = Predictor(learner, self.workspace.image, self._latent_file(learner))
        if notes:
            self.predictor.calibration = Calibration(**notes["calibration"])
        self.self_test = SelfTest(
            self.workspace, self.predictor, self.follower, notes, lambda: self.is_wanted, self.report
        )

    def _latent_file(self, learner: Learner) -> LatentFile | None:
        trunk, layout = learner.network.backbone.trunk, self.workspace.layout
        if trunk is None:
            return None
        journal, made_by = self.workspace.journal, f"{trunk.sha256} {learner.config.height}"
        most = self.workspace.settings.disk_bytes // LATENTS_SHARE
        return LatentFile(
            layout.latents, trunk.latent_shape, lambda i: f"{made_by} {journal.sample(i).digest}", most
        )

    @property
    def untaught(self) -> bool:
        """Whether nothing has been learned yet, not even that there is a class."""
        return self.learner.step == 0 and self.follower.applied == 0

    def change_settings(self, **changes: object) -> Settings:
        """Change settings that the learner follows, by `call`; those that it cannot follow stay as they were."""
        before = self.workspace.settings
        try:
            self.workspace.settings = before.replace(**changes)
            self._follow_settings()
            changed = self.workspace.change_settings(**changes)
        except UserError:
            self.workspace.settings = before
            self._follow_settings()
            raise
        self._write_status(force=True)
        return changed

    def _follow_settings(self) -> None:
        """Let the learner be as the settings say now, as far as one that has learned can."""
        made, wanted = self.learner.config, learner_config(self.workspace.settings)
        same = _identity(made) == _identity(wanted)
        if self.untaught and not same:
            learner = Learner(wanted, self.device)
            learner.memory.check_holds(FEWEST_CLASSES)
            self.predictor.encoder.close()
            self._use(learner, {})
        elif not same:
            raise UserError(
                f"workspace {self.workspace.path} has learned {_identity(made)}, which is fixed now, but its settings say "
                f"{_identity(wanted)}: set them back, or export the labelled images and import them into a new workspace"
            )
        learner = self.learner
        if learner.memory.config != wanted.memory:
            learner.resize_memory(wanted.memory)
        # As a new workspace shows images; the first goes with how the memory draws, which follows the settings, too.
        learner.config = replace(
            learner.config, encode_incoming=wanted.encode_incoming, few_samples=wanted.few_samples
        )
        learner.average_weights(wanted.ema_decay)
        self.predictor.refresh()

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

    def trouble(self, of: str, problem: str = "") -> None:
        """The one problem that this part of the program has at present; without one, it is over."""
        if problem != (before := self._troubles.get(of, "")):
            self._troubles[of] = problem
            self.clear_problem(before)
            if problem:
                self.report(problem)

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
        with self._wake:
            self._wake.wait_for(lambda: self.caught_up or self.failed, seconds)
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

    def wait_until_calibrated(self, seconds: float) -> bool:
        """Wait for a first calibration while one is on its way, as a new version of a model needs; whether there is one."""

        def over() -> bool:
            measured = self.predictor.calibration.is_measured
            return measured or not self.calibrates or self.failed or self._stopping

        with self._wake:
            self._wake.wait_for(over, seconds)
        return self.predictor.calibration.is_measured

    def status(self) -> dict[str, Any]:
        """The last status that the learning thread made: no other thread may look into a learner that learns."""
        return self._status

    def alarms(self) -> list[Alarm]:
        """What a person must know now; also of a learning thread that hangs, which makes no status."""
        silent = 0.0 if self._stopping else max(0.0, time.monotonic() - self._next_turn_at)
        now = {**self._status, **self._source_facts(), "phase": self.phase}
        return alarms(self.workspace.path, now, silent)

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
            if self._is_save_due(idle=True):
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
                if future.set_running_or_notify_cancel():
                    future.set_exception(UserError("the learner has been stopped"))
            self._requests.clear()
            self._wake.notify_all()
        self.predictor.encoder.close()
        self._write_status(force=True)

    def _turn(self) -> None:
        """One step of whatever is most urgent."""
        self._next_turn_at = time.monotonic()
        self._or_report(self._read_journal)
        behind = self.follower.labels_waiting > LARGE_BATCH and self.learner.method.closed_form
        work = self.follower.next(LARGE_BATCH if behind else MICRO_BATCH)
        if work:
            self.phase = "learning"
            self._do(work)
            self.follower.done()
        else:
            self.phase = "rehearsing" if self._use_idle_time() else "idle"
        idle, rehearsing = not work, self.idle_steps_left > 0
        self._or_report(lambda: self.self_test.test_if_due(idle, rehearsing))
        if self._is_save_due(idle and not rehearsing) and time.monotonic() >= self._save_again_at:
            self._save()
        self._write_status()
        with self._wake:
            self._wake.notify_all()  # for `wait_until_caught_up`
        if self.phase == "idle":
            self._wait(POLL_SECONDS)

    def _or_report(self, work: Callable[[], None]) -> None:
        """One refusal must not end the learning: of a full disk, of an image that is gone, of a class too many."""
        try:
            work()
        except (JournalDamaged, JournalGone):
            raise
        except UserError as error:
            self.report(str(error))

    def _read_journal(self) -> None:
        self._notified = False
        self.workspace.journal.check_here()
        if self.follower.labels_waiting < 2 * LARGE_BATCH:
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

    def _use_idle_time(self) -> bool:
        """A step of replay, or else of a cross-validation; whether there was one to do."""
        begun, idle_share = time.monotonic(), self.workspace.settings.idle_share
        share = 1.0 if self.hurries else idle_share
        if self.idle_steps_left and len(self.learner.memory):
            self.phase = "rehearsing"
            self.idle_steps_left = self.idle_steps_left - 1 if share else 0
            try:
                if self.learner.rehearse() is None:  # it learns without
                    self.idle_steps_left = 0
            except LossNotFinite as error:
                self.report(str(error))
                self.idle_steps_left = 0
            self.predictor.refresh()
        elif not idle_share or not self.self_test.validate():
            return False
        if share:  # the rest of the time is for others
            self._wait((time.monotonic() - begun) * (1 - share) / share)
        return True

    # What the journal says ------------------------------------------------------------------------------------------

    def _do(self, work: list[Operation]) -> None:
        """Do operations of one kind."""
        if labels := [each for each in work if isinstance(each, Teach)]:
            self._or_report(lambda: self._teach(labels))
            return
        for each in work:
            if isinstance(each, Unlearn):
                self._or_report(partial(self._unlearn, each))
            elif isinstance(each, Close):
                self._or_report(partial(self._drop, each.class_id))
        self.predictor.refresh()

    def _unlearn(self, work: Unlearn) -> None:
        if work.now is None:
            self.learner.forget(work.sample_id)
            self.self_test.forget(work.sample_id)
        else:
            self.learner.relabel(work.sample_id, work.now)
        self._correct_statistics(work)
        if work.now is None:
            self.predictor.encoder.forget(work.sample_id)
        if work.now is not None and not work.taught_anew:
            # Nobody labels it again, so nothing else would make the learner follow.
            self.idle_steps_left = self.workspace.settings.idle_steps
        self._drop_if_unlearned(work.was)

    def _drop_if_unlearned(self, class_id: int | None) -> None:
        """Nothing that was learned of the class may be left: then the learner must not answer with it.

        The journal is ahead of the learner: what is kept of the class may be about to move to another, as in a merge.
        """
        if class_id not in self.learner.class_ids or self.learner.keeps_any(class_id):
            return
        if not self.workspace.journal.samples(limit=1, class_id=class_id, held_out=False):
            self._drop(class_id)

    def _drop(self, class_id: int) -> None:
        if class_id in self.learner.class_ids:
            self.learner.drop_class(class_id)

    def _correct_statistics(self, work: Unlearn) -> None:
        """Let a method that keeps statistics instead of samples move one to another class, or out."""
        if not self.learner.method.closed_form or work.was not in self.learner.class_ids:
            return
        try:
            inputs = self.predictor.encoder.of_sample(work.sample_id)[None]
        except UserError as error:
            self.report(f"sample {work.sample_id} stays learned as before: {error}")
            return
        self.learner.unlearn(inputs, [work.was])
        if work.now is not None and not work.taught_anew:
            self.learner.observe(inputs, [work.now], remember=False)

    def _teach(self, batch: list[Teach]) -> None:
        """Test on the labels, then train on those that are not held out."""
        inputs = {}
        for teach in batch:
            try:
                inputs[teach.sample_id] = self.predictor.encoder.of_sample(teach.sample_id)
            except UserError as error:
                # After a restart labels are learned again that were undone since: those may have lost their image.
                if self.workspace.journal.labels_of([teach.sample_id]):
                    self.report(f"a label could not be learned: {error}")
        batch = [teach for teach in batch if teach.sample_id in inputs]
        if not batch:
            return
        asked = np.stack([inputs[teach.sample_id] for teach in batch])
        before = self.predictor.answer(asked)
        for teach, answer in zip(batch, before, strict=True):
            # The first labels of a class cannot be right: they would only measure how many classes came together.
            if teach.fresh and teach.class_id in self.learner.class_ids:
                self.self_test.test_then_train.record(teach.class_id, answer.best[0] if answer.best else None)
        for corrected in (False, True):
            chosen = [teach for teach in batch if not teach.held_out and teach.corrected == corrected]
            if chosen:
                self._observe(chosen, inputs)
                self.predictor.refresh()
        self.idle_steps_left = self.workspace.settings.idle_steps
        now = time.time()
        after = self.predictor.answer(asked)
        self.recent += [
            Learned(t.seq, t.sample_id, t.class_id, said, says, t.held_out, now - t.at)
            for t, said, says in zip(batch, before, after, strict=True)
        ]

    def _observe(self, chosen: list[Teach], inputs: dict[int, np.ndarray]) -> None:
        """One step on all of them; if that cannot be done, one at a time, so that only those are left out that fail."""
        ids = [teach.sample_id for teach in chosen]
        seen = np.stack([inputs[i] for i in ids])
        try:
            classes, corrected = [teach.class_id for teach in chosen], chosen[0].corrected
            self.learner.observe(seen, classes, np.array(ids), remember=not corrected)
        except UserError as error:
            if len(chosen) == 1:
                self.report(f"the label of sample {ids[0]} could not be learned: {error}")
            else:
                for teach in chosen:
                    self._observe([teach], inputs)

    # Saving -----------------------------------------------------------------------------------------------------------

    def _progress_made(self) -> tuple[int, int, int]:
        """What a checkpoint should keep."""
        return self.learner.step, self.follower.applied, self.self_test.validations

    def _is_save_due(self, idle: bool) -> bool:
        if not self.follower.whole:
            return False  # half an event would be learned twice after a restart
        steps = self.learner.step - self._saved[0]
        changed = self._progress_made() != self._saved
        return steps >= self.workspace.settings.checkpoint_steps or (idle and changed)

    def _save(self) -> None:
        """A checkpoint, a copy of the journal, and then the room that both make free."""
        workspace, applied = self.workspace, self.follower.applied
        workspace.journal.check_here()  # nothing is made anew where the workspace was
        try:
            fingerprint = workspace.journal.fingerprint(applied)
            name = f"step-{self.learner.step:09d}-event-{applied:09d}"
            notes = {**self._figures(), **self.self_test.notes(), "fingerprint": fingerprint}
            self.learner.save(workspace.layout.checkpoints / name, notes)
            self._back_up_journal()
            self._make_room()
        except UserError as error:  # a full disk: learning goes on, and a later time may have room
            self._save_again_at = time.monotonic() + SAVE_AGAIN_SECONDS
            self.trouble("saving", str(error))
            return
        self.trouble("saving")
        self._saved = self._progress_made()
        return_freed_memory()

    def _make_room(self) -> None:
        """Drop checkpoints beyond those kept, and images that nobody needs when the disk budget is nearly used up."""
        workspace, settings = self.workspace, self.workspace.settings
        for folder in workspace.layout.checkpoint_folders()[:-CHECKPOINTS_KEPT]:
            checkpoint.remove(folder)
        workspace.make_room()
        excess = workspace.journal.counts().image_bytes - int(FILLED_AGAIN_TO * settings.disk_bytes)
        if excess <= 0 or settings.archive:
            return
        needed = {*self.learner.memory.ids().tolist(), *held_out_ids(workspace)}
        # If the newest checkpoint turns out damaged, an older one is loaded, and everything behind it is learned again.
        folders = workspace.layout.checkpoint_folders()
        covered = min((int(folder.name.rsplit("-", 1)[1]) for folder in folders), default=0)
        dropped: list[int] = []
        for row in workspace.journal.all_samples(has_image=True):  # oldest first
            if excess <= 0:
                break
            if row.state != "queued" and row.id not in needed and (row.labelled_seq or 0) <= covered:
                dropped.append(row.id)
                excess -= row.bytes
        workspace.forget_images(dropped, covered)

    def _back_up_journal(self) -> None:
        """Copy the journal, unless the copy says the same: rehearsals and self-tests are saved, too, and it may be large."""
        layout, last = self.workspace.layout, self.workspace.journal.last_seq
        if last != self._backed_up or not layout.backup.exists():
            backup_journal(layout.journal, layout.backup)
            self._backed_up = last

    # The status -------------------------------------------------------------------------------------------------------

    def _make_status(self) -> dict[str, Any]:
        waiting_since, last_seq = self.follower.oldest_waiting, self.workspace.journal.last_seq
        return {
            "pid": os.getpid(),
            "at": time.time(),
            "phase": self.phase,
            "device": str(self.device),
            # After a long absence most events have not been read yet; nearly each of them is a label.
            "labels_waiting": self.follower.labels_waiting + max(0, last_seq - self.follower.read),
            "events_waiting": max(0, last_seq - self.follower.applied),
            "oldest_waiting_seconds": max(0.0, time.time() - waiting_since) if waiting_since else 0.0,
            **self._figures(),
            **self._source_facts(),
            "problems": list(self.problems),
        }

    def _figures(self) -> dict[str, Any]:
        memory = self.learner.memory
        return {
            "step": self.learner.step,
            "applied": self.follower.applied,
            "memory": {
                "samples": len(memory),
                "bytes": self.learner.byte_breakdown(),
                "budget": memory.config.bytes,
                "codec": memory.config.codec,
                "overhead": memory.overhead(),
            },
            **self.self_test.figures(),
            "calibration": asdict(self.predictor.calibration),
        }

    def _source_facts(self) -> dict[str, Any]:
        stream = self.stream
        return {
            "stream": {"name": stream.name} | asdict(stream.state()) if stream else None,
            "source_problem": self.source_problem,
        }

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
