"""Hours of film through gate, prediction, queue and learning: what must stay bounded is looked at all the while.

Memory: the process's resident set after a tenth of the film is the level; how far it ever rises above that counts.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.endurance.pictures import Film
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.verify import verify_workspace

LARGEST_GROWTH = 0.03
WARM_UP_SHARE = 0.1
LOOKS = 200  # at resident memory
LABELLED_SHARE = 0.25  # of what enters the queue
LOOKS_WAITING = 100  # at the replay memory, before the oldest is waited for
PROBLEMS_KEPT = 20
CATCH_UP_SECONDS = 600.0
Progress = Callable[[int, int], None]

# Small images, so that hours of film pass in minutes; budgets that are full long before a tenth of it has passed.
SETTINGS: dict[str, Any] = {
    "image_size": 16,
    "memory_bytes": 200_000,
    "queue_samples": 60,
    "queue_bytes": 1_000_000,
    "disk_bytes": 20_000_000,
    "held_out_bytes": 500_000,
    "idle_steps": 2,
    "checkpoint_steps": 100,
    "gate_stable": 60,  # with the default few frames of so simple a film would pass
}


@dataclass
class SoakReport:
    frames: int
    seed: int
    image_size: int = SETTINGS["image_size"]
    verdicts: Counter[str] = field(default_factory=Counter)  # what became of the frames
    labels: int = 0
    steps: int = 0
    rss: list[tuple[int, int]] = field(default_factory=list)  # frame, bytes
    largest_memory: int = 0  # of the learner's replay, in bytes
    memory_looks: int = 0
    largest_queue: int = 0
    largest_disk: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def level(self) -> int:
        """Resident bytes after the first tenth."""
        return next(held for frame, held in self.rss if frame >= WARM_UP_SHARE * self.frames)

    @property
    def growth(self) -> float:
        later = [held for frame, held in self.rss if frame >= WARM_UP_SHARE * self.frames]
        return max(later) / self.level - 1

    @property
    def passed(self) -> bool:
        return self.growth < LARGEST_GROWTH and not self.problems

    def complain(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)


def run_soak(
    folder: Path, count: int, seed: int, progress: Progress = lambda done, total: None
) -> SoakReport:
    """So many frames of a generated film."""
    if count < 100:
        raise UserError(f"{count} frames: give at least 100")
    begun = time.monotonic()
    report = SoakReport(count, seed)
    with Workspace.open(folder) as workspace, Film(count, seed=seed, started=time.time()) as film:
        workspace.change_settings(**SETTINGS)
        live = LiveLearner(workspace)
        live.start()
        try:
            _Soak(workspace, live, film, report).run(progress)
        finally:
            live.stop()
        report.steps = live.learner.step
    for problem in verify_workspace(folder):
        report.complain(f"verify: {problem}")
    report.seconds = time.monotonic() - begun
    return report


class _Soak:
    def __init__(self, workspace: Workspace, live: LiveLearner, film: Film, report: SoakReport) -> None:
        self.workspace, self.journal, self.live, self.report = workspace, workspace.journal, live, report
        self.film = film
        self.feeder = Feeder(workspace, live)
        self.rng = np.random.default_rng(report.seed)
        self.process = psutil.Process()
        self._looks: deque[Future[int]] = deque()
        self._largest_image = 0

    def run(self, progress: Progress) -> None:
        every = max(1, self.report.frames // LOOKS)
        for number in range(1, self.report.frames + 1):
            self._one_frame()
            if number % every == 0:
                self._check_bounds()
                self.report.rss.append((number, self.process.memory_info().rss))
                progress(number, self.report.frames)
            if self.live.failed:
                raise UserError(f"the learner failed: {list(self.live.problems)}")
        self.feeder.finish()
        if not self.live.wait_until_caught_up(CATCH_UP_SECONDS):
            raise UserError(f"the learner did not catch up: {list(self.live.problems)}")
        self._take_looks(len(self._looks))

    def _one_frame(self) -> None:
        frame = self.film.read(timeout=1.0)
        if frame is None:
            return
        if self.film.shown != self.film.shown_before and self._has_room():
            # What comes into view is shown to the learner, as a teacher would.
            self.feeder.take(replace(frame, label=self.film.shown))
            self.feeder.flush()
            self._labelled()
            return
        seen = self.feeder.take(frame)
        self.report.verdicts[seen.verdict] += 1
        if seen.sample_id is not None:
            self._largest_image = max(self._largest_image, self.journal.sample(seen.sample_id).bytes)
            if self.rng.random() < LABELLED_SHARE:
                self._label(seen.sample_id)

    def _has_room(self) -> bool:
        return self.journal.counts().image_bytes < self.workspace.settings.disk_bytes

    def _label(self, sample_id: int) -> None:
        class_id = self.journal.class_id(self.film.shown)
        if class_id is None:
            class_id = self.journal.create_class(self.film.shown)
        self.journal.label([sample_id], class_id)
        self.live.notify()
        self._labelled()

    def _labelled(self) -> None:
        """After every label the learner says, between two steps, how large its memory is."""
        self.report.labels += 1
        self._looks.append(self.live.call(lambda: self.live.learner.memory.byte_breakdown()["total"]))
        self._take_looks(len(self._looks) - LOOKS_WAITING)
        self._check_bounds()
        while self.feeder.must_wait and not self.live.failed:
            self.live.wait_until_caught_up(1.0)

    def _take_looks(self, count: int) -> None:
        """The oldest ones; those that were just asked for may still wait for their step to end."""
        for _ in range(min(count, len(self._looks))):
            held = self._looks.popleft().result(timeout=CATCH_UP_SECONDS)
            self.report.memory_looks += 1
            self.report.largest_memory = max(self.report.largest_memory, held)
            if held > self.workspace.settings.memory_bytes:
                self.report.complain(f"the replay memory holds {held} bytes")

    def _check_bounds(self) -> None:
        counts, settings = self.journal.counts(), self.workspace.settings
        self.report.largest_queue = max(self.report.largest_queue, counts.queued)
        self.report.largest_disk = max(self.report.largest_disk, counts.image_bytes)
        if counts.queued > settings.queue_samples:
            self.report.complain(f"the queue holds more than {settings.queue_samples} samples")
        if counts.queued_bytes > settings.queue_bytes:
            self.report.complain(f"the queue holds more than {settings.queue_bytes} bytes")
        # Whether the disk is full is asked before an image is encoded, so it may be one image too many.
        if counts.image_bytes > settings.disk_bytes + self._largest_image:
            self.report.complain(f"the images hold more than {settings.disk_bytes} bytes and one image")


def as_json(report: SoakReport) -> dict[str, Any]:
    return {
        "n": report.frames,
        "seed": report.seed,
        "image_size": report.image_size,
        "settings": SETTINGS,
        "frames_per_second": report.frames / report.seconds,
        "verdicts": dict(report.verdicts),
        "labels": report.labels,
        "steps": report.steps,
        "resident_level": report.level,
        "resident_growth": report.growth,
        "resident": report.rss,
        "largest_replay_memory": report.largest_memory,
        "replay_memory_looks": report.memory_looks,
        "largest_queue": report.largest_queue,
        "largest_disk": report.largest_disk,
        "problems": report.problems,
        "seconds": report.seconds,
        "bar": f"resident memory grows by less than {LARGEST_GROWTH:.0%} after the first {WARM_UP_SHARE:.0%}; "
        "replay memory, queue and disk within their budgets",
    }
