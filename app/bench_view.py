"""A run of a benchmark as the page shows it: where it stands, how good it is, and what the paper says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from edge_hpcr.bench import metrics
from edge_hpcr.bench.report import Estimate, Group
from edge_hpcr.bench.run import RunConfig
from edge_hpcr.learner import methods


@dataclass(frozen=True)
class RunView:
    """A run as the page shows it."""

    name: str
    state: str  # waiting | running | stopping | stopped | failed | finished
    group: Group  # of this run alone: its method, memory and the paper's value
    seed: int
    at: float
    task: int = 0
    tasks: int = 0
    step: int = 0
    steps: int = 0
    incoming: float | None = None  # accuracy on what comes, before it is learned
    live: list[float] = field(default_factory=list)  # A_t after each task
    averaged: list[float] = field(default_factory=list)
    seconds: float = 0.0
    seconds_left: float | None = None
    problem: str | None = None
    result: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        return f"{self.group.dataset}: {self.group.name}, seed {self.seed}"

    @property
    def paper(self) -> Estimate:
        return self.group.paper("A_T")

    @property
    def can_stop(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def can_continue(self) -> bool:
        return self.state in ("stopped", "failed")


def group_of(config: RunConfig) -> Group:
    """As a group of one result that is not there yet, for its name and the paper's value."""
    learner = config.learner
    resolved = methods.create(learner.method, dict(learner.method_options)).config_dict()
    plain = json.loads(json.dumps(asdict(config))) | {"method_options": resolved}
    return Group(
        ({"dataset": config.dataset, "method": learner.method, "seed": config.seed, "config": plain},)
    )


def finished(name: str, result: dict[str, Any], at: float | None) -> RunView:
    """Of a result; `at` is when it was asked for, where that is known."""
    return RunView(
        name=name,
        state="finished",
        group=Group((result,)),
        seed=result["seed"],
        at=_time_of(result["finished"]) if at is None else at,
        task=len(result["accuracy_matrix"]),
        tasks=len(result["accuracy_matrix"]),
        step=result.get("steps", 0),
        steps=result.get("steps", 0),
        live=averages(result["accuracy_matrix"]),
        averaged=averages(result["ema_accuracy_matrix"]),
        seconds=result["train_seconds"] + result.get("eval_seconds", 0.0),
        result=result,
    )


def _time_of(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return 0.0


def averages(matrix: Any) -> list[float]:
    """`A_t` after each task."""
    return metrics.average_accuracies(matrix) if matrix else []
