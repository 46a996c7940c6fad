"""A sweep under way: which of its runs wait, run, are done or failed, and how long the rest takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Any, Protocol, Self

from edge_hpcr.bench import metrics
from edge_hpcr.bench.local_runner import DONE, HELD, INTERRUPTED, Ended
from edge_hpcr.bench.run import RunConfig, finished_result
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint

REFRESH_SECONDS = 1.0
LOCK = ".sweep.lock"
WAITING, BEGUN, RUNNING, ENDED, FAILED, ELSEWHERE = (
    "waiting",
    "begun",
    "running",
    "done",
    "failed",
    "elsewhere",
)


class Runner(Protocol):
    """What makes the runs: processes of this machine, or a Ray cluster."""

    at_a_time: int

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def running(self) -> Sequence[RunConfig]: ...

    @property
    def has_room(self) -> bool: ...

    def start(self, run: RunConfig) -> None: ...

    def wait(self, seconds: float | None = None) -> list[Ended]: ...


@dataclass
class Row:
    """A run of the sweep as it is shown."""

    run: RunConfig
    state: str
    cause: str = ""
    share: float = 0.0  # of its steps
    accuracy: float | None = None  # after its last task
    seconds: float | None = None  # in all, as far as it is known
    seconds_left: float | None = None

    @property
    def name(self) -> str:
        return self.run.name


class Sweep:
    """The runs of a sweep and their states; `make` makes those that are not done."""

    def __init__(self, runs: Sequence[RunConfig], out: Path) -> None:
        self._out = out
        self.rows = [Row(run, WAITING) for run in runs]
        for row in self.rows:
            self._look_for_result(row)
            if row.state == WAITING and checkpoint.exists(out / f"{row.name}.checkpoint"):
                row.state = BEGUN
                self._look_at_progress(row)

    def make(self, runner: Runner, show: Callable[[Row | None], None]) -> None:
        """Make every run that is not done; `show` is given each row that ended, and None now and then."""
        waiting = [row for row in self.rows if row.state in (WAITING, BEGUN)]
        running: dict[str, Row] = {}
        while waiting or running:
            while waiting and runner.has_room:
                row = waiting.pop(0)
                row.state = RUNNING
                running[row.name] = row
                runner.start(row.run)
            for ended in runner.wait(REFRESH_SECONDS):
                row = running.pop(ended.run.name)
                self._end(row, ended)
                show(row)
            for row in running.values():
                self._look_at_progress(row)
            show(None)

    def look_elsewhere(self) -> None:
        """See whether other processes have meanwhile finished the runs that they held."""
        for row in self.having(ELSEWHERE):
            self._look_for_result(row)

    def having(self, state: str) -> list[Row]:
        return [row for row in self.rows if row.state == state]

    def seconds_left(self, at_a_time: int) -> float | None:
        """For the whole sweep; a run that has not begun takes as long as those of its method on its dataset, or as others."""
        known = [row for row in self.rows if row.seconds is not None]
        open_ones = [row for row in self.rows if row.state in (WAITING, BEGUN, RUNNING)]
        if not known:
            return None
        left = 0.0
        for row in open_ones:
            if row.seconds_left is not None:
                left += row.seconds_left
            else:
                kin = [each for each in known if _kind(each.run) == _kind(row.run)] or known
                left += mean(each.seconds or 0.0 for each in kin)
        return left / max(1, min(at_a_time, len(open_ones)))

    def _end(self, row: Row, ended: Ended) -> None:
        row.cause, row.seconds_left = ended.cause, None
        if ended.code == DONE:
            self._look_for_result(row)
        elif (
            ended.code == INTERRUPTED
        ):  # by somebody else: the sweep does not look at runs that it stops itself
            row.state, row.cause = BEGUN, "it was stopped, and saved itself"
        else:
            row.state = ELSEWHERE if ended.code == HELD else FAILED

    def _look_for_result(self, row: Row) -> None:
        try:
            result = finished_result(row.run, self._out)
        except UserError as error:  # a file of other settings: this run fails, the others go on
            row.state, row.cause = FAILED, str(error)
            return
        if result is not None:
            row.state, row.share, row.accuracy, row.seconds_left = ENDED, 1.0, result["A_T"], None
            row.seconds = result["train_seconds"] + result["eval_seconds"]

    def _look_at_progress(self, row: Row) -> None:
        facts = _progress(self._out / f"{row.name}.progress")
        if facts:
            row.share = facts["step"] / max(1, facts["steps"])
            row.seconds_left = facts["seconds_left"]
            row.seconds = None if row.seconds_left is None else facts["seconds"] + row.seconds_left
            if facts["accuracy_matrix"]:
                row.accuracy = metrics.final_accuracy(facts["accuracy_matrix"])


def _kind(run: RunConfig) -> tuple[str, str]:
    return run.dataset, run.learner.method


def _progress(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):  # not yet, not any more, or emptied by a power cut
        return None
