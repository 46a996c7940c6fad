"""How good it is, honestly: every label tests before it trains, and a held-out share is never trained on."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from edge_hpcr.workspace.folder import Workspace

RECENT = 100  # labels over which "lately" is taken
LONGEST_CURVE = 400  # points; then every second one goes


@dataclass(frozen=True)
class ClassRecall:
    """Of one class's held-out samples: how many are recognised now, and what the best was so far."""

    samples: int
    recall: float
    best: float
    best_samples: int

    @property
    def forgetting(self) -> float:
        """Since its best; with few samples much of it is chance."""
        return self.best - self.recall


@dataclass
class TestThenTrain:
    """Every label in the order of arrival: was the answer right before the learner saw the label?

    Labels of a class that the learner did not know yet are no test; they are counted apart.
    """

    __test__ = False  # not a test of pytest's

    seen: Counter[int] = field(default_factory=Counter)
    right: Counter[int] = field(default_factory=Counter)
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    curve: list[tuple[int, float]] = field(default_factory=list)
    of_new_classes: int = 0

    def record(self, class_id: int, predicted: int | None) -> None:
        self.seen[class_id] += 1
        self.right[class_id] += predicted == class_id
        self.recent.append(predicted == class_id)
        labels = self.seen.total()
        if labels % max(1, labels // LONGEST_CURVE) == 0:
            self.curve = _thinned([*self.curve, (labels, float(np.mean(self.recent)))])

    def summary(self) -> dict[str, Any]:
        labels = self.seen.total()
        recent = float(np.mean(self.recent)) if self.recent else None
        return {
            "labels": labels,
            "accuracy": self.right.total() / labels if labels else None,
            "recent": {"labels": len(self.recent), "accuracy": recent},
            "classes": {c: {"labels": n, "accuracy": self.right[c] / n} for c, n in self.seen.items()},
            "curve": self.curve,
        }

    def state(self) -> dict[str, Any]:
        seen, right = list(self.seen.items()), list(self.right.items())
        kept = {"seen": seen, "right": right, "recent": list(self.recent), "curve": self.curve}
        return kept | {"of_new_classes": self.of_new_classes}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> TestThenTrain:
        return cls(
            Counter(dict(state["seen"])),
            Counter(dict(state["right"])),
            deque(state["recent"], maxlen=RECENT),
            [(labels, share) for labels, share in state["curve"]],
            state.get("of_new_classes", 0),  # checkpoints of the first edition tested them too
        )


@dataclass
class HeldOut:
    """The last test on held-out samples, and each class's best so far."""

    step: int = 0
    confusion: list[tuple[int, int, int]] = field(default_factory=list)  # true class, answer, how many
    best: dict[int, tuple[float, int]] = field(default_factory=dict)  # recall, samples
    curve: list[tuple[int, float, int]] = field(default_factory=list)  # step, accuracy, samples

    def record(self, step: int, truth: np.ndarray, answers: np.ndarray) -> None:
        counted = Counter(zip(truth.tolist(), answers.tolist(), strict=True))
        self.step = step
        self.confusion = [(true, answer, count) for (true, answer), count in sorted(counted.items())]
        for class_id, recall in self.recalls().items():
            self.best[class_id] = (recall.best, recall.best_samples)
        if len(truth):
            self.curve = _thinned([*self.curve, (step, float((truth == answers).mean()), len(truth))])

    @property
    def samples(self) -> int:
        return sum(count for _, _, count in self.confusion)

    @property
    def accuracy(self) -> float | None:
        right = sum(count for true, answer, count in self.confusion if true == answer)
        return right / self.samples if self.samples else None

    def recalls(self) -> dict[int, ClassRecall]:
        totals: Counter[int] = Counter()
        right: Counter[int] = Counter()
        for true, answer, count in self.confusion:
            totals[true] += count
            right[true] += count if true == answer else 0
        found = {}
        for class_id, samples in totals.items():
            recall, before = right[class_id] / samples, self.best.get(class_id, (-1.0, 0))
            best = (recall, samples) if recall >= before[0] else before
            found[class_id] = ClassRecall(samples, recall, *best)
        return found

    def drop(self, class_id: int) -> None:
        self.best.pop(class_id, None)
        self.confusion = [row for row in self.confusion if row[0] != class_id]

    def summary(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "accuracy": self.accuracy,
            "step": self.step,
            "classes": {c: asdict(r) | {"forgetting": r.forgetting} for c, r in self.recalls().items()},
            "confusion": self.confusion,
            "curve": self.curve,
        }

    def state(self) -> dict[str, Any]:
        return {**vars(self), "best": list(self.best.items())}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> HeldOut:
        return cls(
            state["step"],
            [(true, answer, count) for true, answer, count in state["confusion"]],
            {class_id: (recall, samples) for class_id, (recall, samples) in state["best"]},
            [(step, share, samples) for step, share, samples in state["curve"]],
        )


def held_out_ids(workspace: Workspace) -> dict[int, int]:
    """The held-out samples that learner and published models are measured on, with their classes.

    Balanced over the classes, within the budget.
    """
    found = workspace.journal.all_samples(state="labelled", held_out=True, has_image=True)
    rows = {row.id: row for row in found}
    members: dict[int, list[int]] = {}
    for row in rows.values():
        members.setdefault(row.class_id or 0, []).append(row.id)
    chosen, total = {}, 0
    for sample_id in balanced(members, len(rows)):
        total += rows[sample_id].bytes
        if total > workspace.settings.held_out_bytes:
            break
        chosen[sample_id] = rows[sample_id].class_id or 0
    return chosen


def balanced(members: dict[int, list[int]], most: int) -> list[int]:
    """At most so many ids, as evenly over the classes as can be; of a class its newest (the largest ids).

    >>> balanced({7: [1, 2, 3, 4], 8: [5]}, 3)
    [5, 4, 3]
    """
    newest_first = [sorted(ids, reverse=True) for ids in members.values()]
    ranked = sorted((place, -sample_id) for ids in newest_first for place, sample_id in enumerate(ids))
    return [-negative for _, negative in ranked[:most]]


def _thinned(curve: list[Any]) -> list[Any]:
    return curve if len(curve) <= LONGEST_CURVE else curve[::2]
