"""How good it is, honestly, and one sentence about it: is it any good, and has one done enough?

Every label tests before it trains. The one estimate that every page shows is `HeldOut`: answers to pictures that were
not learned, none of which somebody chose for being difficult, a burst counted once. The verdict is a pure function of the
classes and of these answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from edge_hpcr.workspace.records import ClassRow, SampleRow

if TYPE_CHECKING:
    from edge_hpcr.workspace.workspace import Workspace

HELD_OUT_BYTES = 20_000_000  # of the images that it is measured on
RECENT = 100  # labels over which the accuracy before learning is taken
WANTED_LABELS = 5  # per class, before anything is said
MORE = 5  # labels that are asked for at a time
FEW_MEASURED = 20  # answers: with fewer, chance decides
LEVELS = (("good", 0.75), ("fair", 0.5), ("weak", 0.0))  # share of right answers that it has at least
SURE = 0.95  # that it has at least the share that is said
WEAK_CLASS = 0.5  # share of right answers, below which a class is named before everything else
MOST_NAMED = 3
NEVER_LEARNED = "on pictures it never learned"
ELSEWHERE = "Show each in another place, too."
REST_SECONDS = 600.0  # after which a camera may show another place

Answers = Sequence[tuple[int, int, int]]  # true class, answer, how many


# What is measured: checkpoints keep it, and reports tell it, with the figures that follow from it ----------------------


class TestThenTrain(BaseModel):
    """The last labels in the order of arrival: was the answer right before the learner saw the label?

    Labels of a class that the learner did not know yet are no test.
    """

    __test__: ClassVar = False  # not a test of pytest's

    # Reports of 0.2, which stay where a learner has stopped, have figures here.
    recent: Annotated[list[bool], BeforeValidator(lambda said: said if isinstance(said, list) else [])] = []

    def record(self, class_id: int, predicted: int | None) -> None:
        self.recent = [*self.recent, predicted == class_id][-RECENT:]

    @model_serializer(mode="wrap")
    def _with_figures(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        accuracy = float(np.mean(self.recent)) if self.recent else None
        return {**fields(self), "labels": len(self.recent), "accuracy": accuracy}


class HeldOut(BaseModel):
    """The last test on pictures that were not learned.

    They are held out for good, or, while those are few, left out of copies of the learner in turn.
    """

    step: int = 0
    one_place: bool = False  # all of them seem to be of one place
    confusion: list[tuple[int, int, int]] = []  # true class, answer, how many

    def record(self, step: int, truth: np.ndarray, answers: np.ndarray, one_place: bool = False) -> None:
        counted = Counter(zip(truth.tolist(), answers.tolist(), strict=True))
        self.step, self.one_place = step, one_place
        self.confusion = [(true, answer, count) for (true, answer), count in sorted(counted.items())]

    @property
    def samples(self) -> int:
        return sum(count for _, _, count in self.confusion)

    @property
    def accuracy(self) -> float | None:
        right = sum(count for true, answer, count in self.confusion if true == answer)
        return right / self.samples if self.samples else None

    @model_serializer(mode="wrap")
    def _with_figures(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**fields(self), "samples": self.samples, "accuracy": self.accuracy}


def in_one_place(rows: Iterable[SampleRow]) -> bool:
    """Whether all of these pictures seem to be of one place: of one camera, without a long rest in between.

    Files may be from anywhere.
    """
    rows = sorted(rows, key=lambda row: row.added)
    cameras = {None if row.source_digest else row.origin for row in rows}
    rests = any(later.added - row.added > REST_SECONDS for row, later in pairwise(rows))
    return len(cameras) == 1 and cameras != {None} and not rests


def held_out_ids(workspace: Workspace) -> dict[int, int]:
    """The held-out samples that learner and published models are measured on, with their classes.

    Balanced over the classes, within the budget.
    """
    chosen, total = {}, 0
    for sample_id, class_id, size in workspace.journal.over_classes(held_out=True, newest=True):
        total += size
        if total > HELD_OUT_BYTES:
            break
        chosen[sample_id] = class_id
    return chosen


# What is said of it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    level: str  # empty, few, good, fair or weak
    number: str  # the one figure: "94 %", or nothing
    sentence: str
    advice: str  # the part of the sentence that says what to do next; may be empty


class ClassHealth(NamedTuple):
    """How one class is doing."""

    id: int
    name: str
    labels: int
    right: int
    samples: int  # measured
    taken_for: int | None  # the class that it is most often mixed up with
    wanted: int  # more labels that would help

    @property
    def advice(self) -> str:
        return f"Show {self.wanted} more of {self.name}{self.sides}." if self.wanted else ""

    @property
    def sides(self) -> str:
        """Pictures that are like the learned ones measure nothing."""
        return "" if self.samples or self.labels < WANTED_LABELS else ", from other sides"


def at_least(right: int, samples: int) -> float:
    """The share of right answers that it has at least, with a certainty of 95 % (Clopper and Pearson's bound).

    >>> f"{at_least(94, 100):.3f} {at_least(3, 3):.3f} {at_least(0, 5):.1f}"
    '0.885 0.368 0.0'
    """
    from scipy.special import betaincinv  # which takes a moment to import, and `--help` needs none

    return float(betaincinv(right, samples - right + 1, 1 - SURE)) if right else 0.0


def health(classes: Sequence[ClassRow], answers: Answers) -> list[ClassHealth]:
    """A row for each class, in their order."""
    # What each class's pictures were called, and how often.
    said: dict[int, Counter[int]] = {}
    for true, answer, count in answers:
        said.setdefault(true, Counter())[answer] += count
    return [_health_of(row, said.get(row.id)) for row in classes]


def _health_of(row: ClassRow, said: Counter[int] | None) -> ClassHealth:
    right, samples, taken_for = 0, 0, None
    if said:  # few of thousands of classes are measured, and pages ask several times per second
        right, samples = said[row.id], said.total()
        taken_for = next((other for other, _ in said.most_common() if other != row.id), None)
    wanted = max(0, WANTED_LABELS - row.labels) or (MORE if right < samples or not samples else 0)
    return ClassHealth(row.id, row.name, row.labels, right, samples, taken_for, wanted)


def verdict(
    classes: Sequence[ClassRow],
    answers: Answers,
    measuring: bool = False,
    one_place: bool = False,
    seconds_left: float | None = None,
) -> Verdict:
    """What to say of a learner with these classes; `measuring`: more answers are on their way, in so many seconds.

    With `one_place` it says so, and asks for a second one.
    """
    if len(classes) < 2:
        advice = (
            "Now show something else, and name it too." if classes else "Show something, and give it a name."
        )
        return Verdict("empty", "", advice, advice)
    rows, names = health(classes, answers), {row.id: row.name for row in classes}
    right, samples = sum(row.right for row in rows), sum(row.samples for row in rows)
    least = at_least(right, samples) if samples else 0.0
    # Rounded down: "at least" must be true.
    where = ", in this place" if one_place else ""
    measured = f"{right:,} of {samples:,} right {NEVER_LEARNED}{where} (at least {int(100 * least)} %)"
    enough = samples >= FEW_MEASURED
    if enough:
        level = next(name for name, share in LEVELS if least >= share)
        worst = _worst(rows)
        head, advice = f"{level.capitalize()}: {measured}.", _more(rows)
        if worst:
            if level == "good" and worst.right < WEAK_CLASS * worst.samples:
                head = f"Good but for {worst.name}: {measured}."
            other = f", taken for {names[worst.taken_for]}" if worst.taken_for in names else ""
            head += f" Weakest: {worst.name}{other}."
        advice = advice or (worst.advice if worst else "It mixes up nothing so far.")
        advice = f"{advice} {ELSEWHERE}" if one_place else advice
    else:
        so_far = f"{right} of {samples} right {NEVER_LEARNED}" if samples else "nothing has been measured yet"
        level, head, advice = (
            "few",
            f"Too few to tell: {so_far}.",
            _more(rows) or f"Show {MORE} more of each.",
        )
        if measuring and all(row.labels >= WANTED_LABELS for row in classes):
            about = f", about {5 * math.ceil(seconds_left / 5)} s left" if seconds_left else ""
            advice = f"Checking accuracy{about}."
    number = f"{100 * right / samples:.0f} %" if enough else ""
    return Verdict(level, number, f"{head} {advice}", advice)


def _worst(rows: Sequence[ClassHealth]) -> ClassHealth | None:
    wrong = [row for row in rows if row.right < row.samples]
    return min(wrong, key=lambda row: (row.right / row.samples, -row.samples, row.id), default=None)


def _more(rows: Sequence[ClassHealth]) -> str:
    """Which classes want labels before more can be said of them: first those with few, then those not measured."""
    few = [row for row in rows if row.labels < WANTED_LABELS] or [row for row in rows if not row.samples]
    if not few:
        return ""
    names = ", ".join(row.name for row in few[:MOST_NAMED]) + (" …" if len(few) > MOST_NAMED else "")
    names = "each" if len(few) == len(rows) else names
    return f"Show {max(row.wanted for row in few)} more of {names}{few[0].sides}."
