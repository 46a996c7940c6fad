"""How long an answer takes while the learner rests, and while it learns as fast as it can.

The three take turns in one run, so that other work on the machine hits all of them alike.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.endurance import Progress, Report, silent
from benchmarks.endurance.pictures import frames, tiles
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Taken, Workspace

LARGEST_RATIO = 3.0
FRAME_SIZE = (640, 480)
CLASSES, LABELS_AT_ONCE = 10, 10
TILE_SIDE = 64
PAUSE_SECONDS = 0.01  # between two answers: a camera has pauses too
STEPS = 2  # in each of its turns the learner takes so many at least, however slow the machine
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class LatencyPlan:
    rounds: int = 15
    answers: int = 40  # of each kind in a round, at least
    backbone: str = "reduced_resnet18"
    image_size: int = 32


PLAN, QUICK = LatencyPlan(), LatencyPlan(rounds=1, answers=6)


@dataclass
class LatencyReport(Report):
    bar = f"p95 while learning at most {LARGEST_RATIO} times the idle one"

    frames: tuple[int, int] = FRAME_SIZE
    backbone: str = ""
    image_size: int = 0
    threads_setting: int = 0
    milliseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    ratios_to_idle: dict[str, dict[str, float]] = field(default_factory=dict)
    steps_meanwhile: dict[str, int] = field(default_factory=dict)  # of the learner while answers were timed

    @property
    def passed(self) -> bool:
        return all(ratio["p95"] <= LARGEST_RATIO for ratio in self.ratios_to_idle.values())

    def said(self) -> list[str]:
        lines = {
            kind: f"{kind:<11}p50 {times['p50']:.1f} ms, p95 {times['p95']:.1f} ms (n={times['n']:.0f})"
            for kind, times in self.milliseconds.items()
        }
        for kind, ratio in self.ratios_to_idle.items():
            lines[kind] += f", p95 {ratio['p95']:.2f} times the idle one"
        return list(lines.values())


def measure(folder: Path, plan: LatencyPlan, seed: int, progress: Progress = silent) -> LatencyReport:
    begun = time.monotonic()
    report = LatencyReport(seed, backbone=plan.backbone, image_size=plan.image_size)
    with Workspace.open(folder) as workspace:
        workspace.change_settings(backbone=plan.backbone, image_size=plan.image_size, idle_steps=0)
        report.threads_setting = workspace.settings.threads
        live = LiveLearner(workspace)
        live.start()
        try:
            bench = Bench(workspace, live, seed)
            times = bench.run(plan, progress)
        finally:
            live.stop()
    report.steps_meanwhile = bench.steps
    report.milliseconds = {
        kind: {"n": len(values)} | {f"p{q}": float(np.percentile(values, q)) * 1e3 for q in (50, 95, 99)}
        for kind, values in times.items()
    }
    idle = report.milliseconds["idle"]
    report.n = len(times["idle"])
    report.ratios_to_idle = {
        kind: {name: values[name] / idle[name] for name in ("p50", "p95")}
        for kind, values in report.milliseconds.items()
        if kind != "idle"
    }
    report.seconds = time.monotonic() - begun
    return report


class Bench:
    def __init__(self, workspace: Workspace, live: LiveLearner, seed: int) -> None:
        self.workspace, self.journal, self.live = workspace, workspace.journal, live
        self.frames = frames(FRAME_SIZE)
        self.tiles = tiles(500, TILE_SIDE, CLASSES, seed)
        self.classes = [self.journal.create_class(f"class {number}") for number in range(CLASSES)]
        self.steps = dict.fromkeys(("idle", "learning", "rehearsing"), 0)
        self._given = 0

    def run(self, plan: LatencyPlan, progress: Progress) -> dict[str, list[float]]:
        self.give_labels(6)  # so that there is something to answer and to rehearse
        self.rest()
        self.time(plan.answers // 2 + 1, lambda: None, 0)  # the first answers compile kernels
        times: dict[str, list[float]] = {kind: [] for kind in self.steps}
        for number in range(plan.rounds):
            for kind, prepare, keep in (
                ("idle", self.rest, lambda: None),
                ("learning", self.learn, self.keep_labels_waiting),
                ("idle", self.rest, lambda: None),
                ("rehearsing", self.rehearse, self.keep_rehearsing),
            ):
                prepare()
                before = self.live.learner.step
                count = plan.answers // 2 if kind == "idle" else plan.answers
                times[kind] += self.time(count, keep, 0 if kind == "idle" else STEPS)
                self.steps[kind] += self.live.learner.step - before
            progress(number + 1, plan.rounds)
        self.rest()
        return times

    def time(self, count: int, keep: Callable[[], None], steps: int) -> list[float]:
        """Seconds of so many answers at least, and until the learner has taken so many steps meanwhile."""
        seconds: list[float] = []
        last_step = self.live.learner.step + steps
        deadline = time.monotonic() + WAIT_SECONDS
        while len(seconds) < count or self.live.learner.step < last_step:
            if time.monotonic() > deadline:
                raise UserError(f"the learner took no {steps} steps in {WAIT_SECONDS:.0f} s")
            keep()
            time.sleep(PAUSE_SECONDS)
            begun = time.perf_counter()
            self.live.answer([self.frames[len(seconds) % len(self.frames)]])
            seconds.append(time.perf_counter() - begun)
        return seconds

    # What the learner does meanwhile ----------------------------------------------------------------------------------

    def rest(self) -> None:
        self.live.hurries, self.live.idle_steps_left = False, 0
        if not self.live.wait_until_caught_up(WAIT_SECONDS):
            raise UserError(f"the learner did not catch up: {list(self.live.problems)}")
        self._wait_for("idle")

    def learn(self) -> None:
        self.keep_labels_waiting()
        self._wait_for("learning")

    def keep_labels_waiting(self) -> None:
        if self.journal.last_seq - self.live.follower.applied < 4:
            self.give_labels(4)

    def give_labels(self, actions: int) -> None:
        """So many events of LABELS_AT_ONCE labels."""
        for _ in range(actions):
            place = self._given % (len(self.tiles) - LABELS_AT_ONCE)
            chosen = self.tiles[place : place + LABELS_AT_ONCE]
            ids = self.workspace.take_many([Taken(tile, "tiles") for tile, _ in chosen])
            for class_id in {number for _, number in chosen}:
                members = [i for i, (_, number) in zip(ids, chosen, strict=True) if number == class_id]
                self.journal.label(members, self.classes[class_id])
            self._given += LABELS_AT_ONCE
        self.live.notify()

    def rehearse(self) -> None:
        self.live.hurries = True
        self.keep_rehearsing()
        self._wait_for("rehearsing")

    def keep_rehearsing(self) -> None:
        self.live.idle_steps_left = 1000
        self.live.notify()

    def _wait_for(self, phase: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.live.phase != phase:
            if self.live.failed or time.monotonic() > deadline:
                raise UserError(f"the learner is {self.live.phase}, not {phase}: {list(self.live.problems)}")
            time.sleep(0.005)
