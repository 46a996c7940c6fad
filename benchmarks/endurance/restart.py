"""How soon a workspace with years of labels is back: opened and ready to answer, then caught up with its journal."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.endurance import Progress, Report, silent
from benchmarks.runner import ROOT
from edge_hpcr.common.errors import UserError

LONGEST_SECONDS = 5.0
CLASSES, SIDE = 10, 32
BURST = 10  # labels in one action
TAKEN_AT_ONCE = 200
CATCH_UP_SECONDS = 1200.0


@dataclass(frozen=True)
class RestartPlan:
    labels: int = 10_000
    memory_samples: int = 2_000
    interval: int = 200  # steps between two checkpoints, all of which are still to be learned: the worst case
    starts: int = 5


PLAN, QUICK = RestartPlan(), RestartPlan(200, 100, 5, 1)


@dataclass
class RestartReport(Report):
    bar = f"open and ready to answer within {LONGEST_SECONDS:.0f} s, imports and replay apart"

    labels: int = 0
    memory_samples: int = 0
    # Seconds of each start: `imports` in a fresh process, `opening` until the first answer, `whole` from its very start.
    starts: list[dict[str, float]] = field(default_factory=list)
    replay_of_one_interval: dict[str, float] = field(default_factory=dict)  # labels, steps, seconds
    slowest_opening: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.problem_count and self.slowest_opening <= LONGEST_SECONDS

    def said(self) -> list[str]:
        replay, imports = self.replay_of_one_interval, max(start["imports"] for start in self.starts)
        return [
            f"{self.labels:,} labels, {self.memory_samples:,} samples in memory, {len(self.starts)} starts",
            f"slowest: opened and answered in {self.slowest_opening:.2f} s; imports before that {imports:.2f} s",
            f"replay of one checkpoint interval: {replay['labels']:.0f} labels, {replay['steps']:.0f} steps, "
            f"{replay['seconds']:.1f} s",
        ]

    def add(self, facts: dict[str, Any], plan: RestartPlan) -> None:
        """Count one start, which must have found what was asked for."""
        self.n += 1
        self.starts.append({name: facts[name] for name in ("imports", "opening", "whole")})
        self.slowest_opening = max(self.slowest_opening, facts["opening"])
        self.replay_of_one_interval = facts.get("replay", {})
        self.labels, self.memory_samples = facts["labels"], facts["memory_samples"]
        if self.labels < plan.labels or self.memory_samples < plan.memory_samples:
            self.complain([f"{self.labels} labels and {self.memory_samples} samples in memory came back"])


def measure(folder: Path, plan: RestartPlan, seed: int, progress: Progress = silent) -> RestartReport:
    begun = time.monotonic()
    if plan.labels < BURST * plan.interval or plan.starts < 1:
        raise UserError(
            f"{plan.labels} labels: give at least {BURST * plan.interval}, and at least one start"
        )
    report = RestartReport(seed)
    build(folder, plan, seed, progress)
    for number in range(1, plan.starts + 1):
        report.add(_start(folder, replay=number == plan.starts), plan)
        progress(plan.labels + number, plan.labels + plan.starts)
    report.seconds = time.monotonic() - begun
    return report


def build(folder: Path, plan: RestartPlan, seed: int, progress: Progress) -> None:
    """A workspace with its labels in the journal, its images on disk, and a checkpoint one interval back."""
    from benchmarks.endurance.pictures import tiles
    from edge_hpcr.live.live_learner import learner_config
    from edge_hpcr.workspace.folder import Taken, Workspace

    with Workspace.open(folder) as workspace:
        workspace.change_settings(backbone="reduced_resnet18", codec="raw")  # a sample's bytes are known
        workspace.change_settings(
            memory_bytes=_memory_bytes(plan.memory_samples, learner_config(workspace.settings)),
            checkpoint_steps=plan.interval,
            micro_batch=BURST,
            held_out_share=0.0,  # every label is a training one: the most there can be to learn again
            idle_steps=0,
        )
        journal = workspace.journal
        classes = [journal.create_class(f"class {number}") for number in range(CLASSES)]
        by_class: dict[int, list[int]] = {class_id: [] for class_id in classes}
        cut = tiles(plan.labels, SIDE, CLASSES, seed)
        for start in range(0, plan.labels, TAKEN_AT_ONCE):
            part = cut[start : start + TAKEN_AT_ONCE]
            ids = workspace.take_many([Taken(tile, "tiles") for tile, _ in part])
            for sample_id, (_, number) in zip(ids, part, strict=True):
                waiting = by_class[classes[number]]
                waiting.append(sample_id)
                if len(waiting) == BURST:
                    journal.label(waiting, classes[number])
                    waiting.clear()
            progress(start + len(part), plan.labels + plan.starts)
        for class_id, rest in by_class.items():
            if rest:
                journal.label(rest, class_id)
        _checkpoint(workspace, plan.interval)


def _memory_bytes(samples: int, config: Any) -> int:
    from edge_hpcr.learner.learner import Learner

    learner = Learner(config, "cpu")
    for class_id in range(CLASSES):
        learner.add_class(class_id)
    return samples * learner.memory.row_bytes()


def _checkpoint(workspace: Any, interval: int) -> None:
    """What a learner would have saved that has learned all but the last so many events; its memory holds the latest."""
    from edge_hpcr.learner.calibration import Calibration
    from edge_hpcr.learner.learner import Learner
    from edge_hpcr.live import checkpoints
    from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
    from edge_hpcr.live.live_learner import learner_config
    from edge_hpcr.workspace.recover import backup_journal

    learner = Learner(learner_config(workspace.settings), "cpu")
    applied = workspace.journal.last_seq - interval
    rng = np.random.default_rng(0)
    for row in workspace.journal.classes():
        learner.add_class(row.id)
    for event in _events(workspace.journal, applied):
        ids = np.array([move.sample_id for move in event.moves], dtype=np.int64)
        if not len(ids):
            continue
        columns = np.array([learner.column(move.now or 0) for move in event.moves])
        learner.memory.update(
            np.stack([workspace.image(int(sample_id)) for sample_id in ids]),
            columns,
            rng.uniform(-1, 1, (len(ids), CLASSES)).astype(np.float32),
            rng.uniform(-1, 1, (len(ids), learner.network.feature_size)).astype(np.float32),
            ids,
        )
        learner.step += 1
    notes = {
        "test_then_train": TestThenTrain().state(),
        "held_out": HeldOut().state(),
        "calibration": asdict(Calibration()),
    }
    checkpoints.save(workspace.layout, learner, applied, notes)
    backup_journal(workspace.journal.path, workspace.layout.backup)


def _events(journal: Any, last: int) -> Any:
    seq = 0
    while events := [event for event in journal.events_after(seq) if event.seq <= last]:
        yield from events
        seq = events[-1].seq


# In another process -------------------------------------------------------------------------------------------------


def _start(folder: Path, replay: bool) -> dict[str, Any]:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.endurance.restart", str(folder), *["replay"] * replay],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise UserError(
            f"a process that opened {folder} ended with {done.returncode}; its last words are above"
        )
    facts: dict[str, Any] = json.loads(done.stdout)
    # monotonic() is one clock for all processes of the machine.
    return facts | {"whole": facts["ready_at"] - begun}


def main() -> None:
    begun = time.monotonic()
    from edge_hpcr.live.live_learner import LiveLearner
    from edge_hpcr.workspace.folder import Workspace

    imported = time.monotonic()
    with Workspace.open(sys.argv[1], create=False) as workspace:
        live = LiveLearner(workspace)
        live.answer([np.zeros((SIDE, SIDE, 3), np.uint8)])
        ready = time.monotonic()
        facts: dict[str, Any] = {
            "imports": imported - begun,
            "opening": ready - imported,
            "ready_at": ready,
            "labels": workspace.journal.counts().labels,
            "memory_samples": len(live.learner.memory),
        }
        if "replay" in sys.argv:
            facts["replay"] = _replay(live)
    print(json.dumps(facts))


def _replay(live: Any) -> dict[str, float]:
    begun, step = time.monotonic(), live.learner.step
    live.start()
    if not live.wait_until_caught_up(CATCH_UP_SECONDS):
        raise UserError(f"the learner did not catch up: {list(live.problems)}")
    caught_up = time.monotonic()
    tested = live.self_test.test_then_train
    live.stop()
    return {
        "labels": tested.seen.total() + tested.of_new_classes,
        "steps": live.learner.step - step,
        "seconds": caught_up - begun,
    }


if __name__ == "__main__":
    main()
