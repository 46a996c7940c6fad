"""Hours of film through gate, prediction, queue and learning; what must stay bounded is checked all the while.

Memory: how far the process's resident set rises above its level after a tenth of the film.
"""

import time
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.endurance import Progress, Report, silent
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
CATCH_UP_SECONDS = 600.0

# Small images, so that hours of film pass in minutes; budgets that are full long before a tenth of it has passed.
SETTINGS: dict[str, Any] = {
    "backbone": "reduced_resnet18",
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


PLAN, QUICK = 200_000, 300  # frames


@dataclass
class SoakReport(Report):
    bar = (
        f"resident memory grows by less than {LARGEST_GROWTH:.0%} after the first {WARM_UP_SHARE:.0%}; "
        "replay memory, queue and disk within their budgets"
    )

    image_size: int = SETTINGS["image_size"]
    settings: dict[str, Any] = field(default_factory=lambda: SETTINGS)
    verdicts: Counter[str] = field(default_factory=Counter)  # what became of the frames
    labels: int = 0
    steps: int = 0
    resident: list[tuple[int, int]] = field(default_factory=list)  # frame, bytes
    largest_replay_memory: int = 0  # bytes
    replay_memory_looks: int = 0
    largest_queue: int = 0
    largest_disk: int = 0

    @property
    def later(self) -> list[int]:
        """Resident bytes after the first tenth; the first of them is the level."""
        return [held for frame, held in self.resident if frame >= WARM_UP_SHARE * self.n]

    @property
    def growth(self) -> float:
        return max(self.later) / self.later[0] - 1

    @property
    def passed(self) -> bool:
        return self.growth < LARGEST_GROWTH and not self.problems

    def said(self) -> list[str]:
        return [
            f"{self.n:,} frames at {self.n / self.seconds:.0f}/s, learned at {self.image_size} pixels; "
            f"{self.labels:,} labels, {self.steps:,} steps",
            f"resident memory {self.later[0] / 1e6:.0f} MB after the first tenth, {self.growth:+.2%} at its highest since",
            f"replay memory at most {self.largest_replay_memory:,} of {SETTINGS['memory_bytes']:,} bytes "
            f"({self.replay_memory_looks:,} looks), queue {self.largest_queue}, disk {self.largest_disk:,} bytes",
        ]

    def complain(self, problems: list[str]) -> None:
        super().complain([each for each in problems if each not in self.problems])

    def facts(self) -> dict[str, Any]:
        more = {"resident_level": self.later[0], "resident_growth": self.growth}
        return {**super().facts(), **more, "frames_per_second": self.n / self.seconds}


def measure(folder: Path, count: int, seed: int, progress: Progress = silent) -> SoakReport:
    """Feed so many frames of a generated film."""
    if count < 100:
        raise UserError(f"{count} frames: give at least 100")
    begun = time.monotonic()
    report = SoakReport(seed, count)
    with Workspace.open(folder) as workspace, Film(count, seed=seed, started=time.time()) as film:
        workspace.change_settings(**SETTINGS)
        live = LiveLearner(workspace)
        live.start()
        try:
            _Soak(workspace, live, film, report).run(progress)
        finally:
            live.stop()
        report.steps = live.learner.step
    report.complain([f"verify: {problem}" for problem in verify_workspace(folder)])
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
        every = max(1, self.report.n // LOOKS)
        for number in range(1, self.report.n + 1):
            self._one_frame()
            if number % every == 0:
                self._check_bounds()
                self.report.resident.append((number, self.process.memory_info().rss))
                progress(number, self.report.n)
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
            self.report.replay_memory_looks += 1
            self.report.largest_replay_memory = max(self.report.largest_replay_memory, held)
            if held > self.workspace.settings.memory_bytes:
                self.report.complain([f"the replay memory holds {held} bytes"])

    def _check_bounds(self) -> None:
        counts, settings = self.journal.counts(), self.workspace.settings
        self.report.largest_queue = max(self.report.largest_queue, counts.queued)
        self.report.largest_disk = max(self.report.largest_disk, counts.image_bytes)
        # Whether the disk is full is asked before an image is encoded, so it may be one image too many.
        for what, held, most in (
            (
                f"the queue holds more than {settings.queue_samples} samples",
                counts.queued,
                settings.queue_samples,
            ),
            (
                f"the queue holds more than {settings.queue_bytes} bytes",
                counts.queued_bytes,
                settings.queue_bytes,
            ),
            (
                f"the images hold more than {settings.disk_bytes} bytes and one image",
                counts.image_bytes,
                settings.disk_bytes + self._largest_image,
            ),
        ):
            if held > most:
                self.report.complain([what])
