"""How long an answer takes while the learner rests, and while it learns as fast as it can.

The three take turns in one run, so that whatever else the machine does hits all of them alike.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

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
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LatencyPlan:
    rounds: int = 15
    answers: int = 40  # of each kind in a round, at least
    image_size: int = 32


@dataclass
class LatencyReport:
    plan: LatencyPlan
    seed: int
    threads: int = 0
    steps: dict[str, int] = field(default_factory=dict)  # of the learner while answers were timed
    milliseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)  # to the idle learner's
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return all(ratio["p95"] <= LARGEST_RATIO for ratio in self.ratios.values())


def measure_latency(
    folder: Path, plan: LatencyPlan, seed: int, progress: Progress = lambda done, total: None
) -> LatencyReport:
    begun = time.monotonic()
    report = LatencyReport(plan, seed)
    with Workspace.open(folder) as workspace:
        workspace.change_settings(image_size=plan.image_size, idle_steps=0)
        live = LiveLearner(workspace)
        live.start()
        try:
            bench = Bench(workspace, live, seed)
            times = bench.run(plan, progress)
        finally:
            live.stop()
    report.threads = workspace.settings.threads
    report.steps = bench.steps
    report.milliseconds = {
        kind: {"n": len(values)} | {f"p{q}": float(np.percentile(values, q)) * 1e3 for q in (50, 95, 99)}
        for kind, values in times.items()
    }
    idle = report.milliseconds["idle"]
    report.ratios = {
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
        self.time(plan.answers // 2 + 1, self.keep_resting, 0)  # the first answers compile kernels
        times: dict[str, list[float]] = {kind: [] for kind in self.steps}
        for number in range(plan.rounds):
            for kind, prepare, keep in (
                ("idle", self.rest, self.keep_resting),
                ("learning", self.learn, self.keep_labels_waiting),
                ("idle", self.rest, self.keep_resting),
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

    def keep_resting(self) -> None:
        pass

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


def as_json(report: LatencyReport) -> dict[str, Any]:
    return {
        "n": report.milliseconds["idle"]["n"],
        "seed": report.seed,
        "frames": list(FRAME_SIZE),
        "image_size": report.plan.image_size,
        "threads_setting": report.threads,
        "milliseconds": report.milliseconds,
        "ratios_to_idle": report.ratios,
        "steps_meanwhile": report.steps,
        "seconds": report.seconds,
        "bar": f"p95 while learning at most {LARGEST_RATIO} times the idle one",
    }
