"""Is it any good, and has one done enough? One sentence for everybody, from what was measured and on how much.

Pure functions of the classes, of the answers to pictures that were not learned, and of labels that contradict each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, log

from edge_hpcr.workspace.records import ClassRow

WANTED_LABELS = 5  # per class, before anything is said
MORE = 5  # labels that are asked for at a time
FEW_MEASURED = 20  # answers: with fewer, chance decides
GOOD, FAIR = 0.75, 0.5  # share of right answers that it has at least
SURE = 0.95  # that it has at least the share that is said
WEAK_CLASS = 0.5  # share of right answers, below which a class is named before everything else
MANY_MORE_LABELS = 5  # times as many labels as the smallest class: out of balance
MOST_NAMED = 3
NEVER_LEARNED = "on pictures it never learned"

Answers = Sequence[tuple[int, int, int]]  # true class, answer, how many


@dataclass(frozen=True)
class Contradiction:
    """Pictures that look the same, of which some are called one thing and some another."""

    one: int
    other: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    level: str  # empty, few, good, fair, weak or contradictory
    number: str  # the one figure: "94 %", or nothing
    sentence: str
    advice: str  # the part of the sentence that says what to do next; may be empty
    right: int = 0
    samples: int = 0
    at_least: float = 0.0


@dataclass(frozen=True)
class ClassHealth:
    """How one class is doing."""

    id: int
    name: str
    labels: int
    right: int
    samples: int  # measured
    taken_for: int | None  # the class that it is most often mixed up with
    advice: str  # what to do; empty: nothing


@lru_cache(maxsize=4096)
def at_least(right: int, samples: int) -> float:
    """The share of right answers that it has at least, with a certainty of 95 % (Clopper and Pearson's bound).

    >>> f"{at_least(94, 100):.3f} {at_least(3, 3):.3f} {at_least(0, 5):.1f}"
    '0.885 0.368 0.0'
    """
    if right == 0:
        return 0.0
    low, high = 0.0, right / samples
    for _ in range(40):
        share = (low + high) / 2
        low, high = (share, high) if _chance(right, samples, share) < 1 - SURE else (low, share)
    return low


def _chance(right: int, samples: int, share: float) -> float:
    """That so many answers or more are right, if each is with this chance."""
    if share in (0.0, 1.0):
        return share
    whole = lgamma(samples + 1)
    return sum(
        exp(whole - lgamma(k + 1) - lgamma(samples - k + 1) + k * log(share) + (samples - k) * log(1 - share))
        for k in range(right, samples + 1)
    )


def verdict(
    classes: Sequence[ClassRow],
    answers: Answers,
    contradictions: Sequence[Contradiction] = (),
    measuring: bool = False,
) -> Verdict:
    """What to say of a learner with these classes; `measuring`: more answers are on their way."""
    if len(classes) < 2:
        advice = (
            "Now show something else, and name that too."
            if classes
            else "Show something, and give it a name."
        )
        return Verdict("empty", "", advice, advice)
    names = {row.id: row.name for row in classes}
    answers = [(true, said, count) for true, said, count in answers if true in names]
    samples = sum(count for *_, count in answers)
    right = sum(count for true, said, count in answers if true == said)
    least = at_least(right, samples) if samples else 0.0
    rows = health(classes, answers)
    if doubts := _doubts(contradictions, names):
        level, head, advice = "contradictory", doubts, "Mend them on Review."
        if samples >= FEW_MEASURED:
            head = f"{doubts[:-1]}; {_measured(right, samples, least)}."
    elif samples < FEW_MEASURED:
        measured = (
            f"{right} of {samples} right {NEVER_LEARNED}" if samples else "nothing has been measured yet"
        )
        level, head, advice = "few", f"Too few to tell: {measured}.", _more(classes, rows)
        if measuring and all(row.labels >= WANTED_LABELS for row in classes):
            advice = "It is measuring itself: wait a moment."
    else:
        level = "good" if least >= GOOD else "fair" if least >= FAIR else "weak"
        word = {"good": "Good", "fair": "Fair", "weak": "Weak"}[level]
        worst = _worst(rows)
        if level == "good" and worst and worst.right < WEAK_CLASS * worst.samples:
            word = f"Good but for {worst.name}"
        head, advice = f"{word}: {_measured(right, samples, least)}.", ""
        if worst:
            other = f", taken for {names[worst.taken_for]}" if worst.taken_for in names else ""
            head += f" Weakest: {worst.name}{other}."
        advice = _more(classes, rows) or (worst.advice if worst else "It mixes up nothing so far.")
    number = f"{100 * right / samples:.0f} %" if samples >= FEW_MEASURED else ""
    return Verdict(level, number, f"{head} {advice}".strip(), advice, right, samples, least)


def health(classes: Sequence[ClassRow], answers: Answers) -> list[ClassHealth]:
    """A row for each class, in their order."""
    totals: Counter[int] = Counter()
    right: Counter[int] = Counter()
    wrong: dict[int, Counter[int]] = {}
    for true, said, count in answers:
        totals[true] += count
        if true == said:
            right[true] += count
        else:
            wrong.setdefault(true, Counter())[said] += count
    smallest = min((row.labels for row in classes), default=0)
    return [
        ClassHealth(
            row.id,
            row.name,
            row.labels,
            right[row.id],
            totals[row.id],
            wrong[row.id].most_common(1)[0][0] if row.id in wrong else None,
            _class_advice(row, right[row.id], totals[row.id], smallest),
        )
        for row in classes
    ]


def _class_advice(row: ClassRow, right: int, samples: int, smallest: int) -> str:
    if row.labels < WANTED_LABELS:
        return f"Show {WANTED_LABELS - row.labels} more of {row.name}."
    if not samples:
        return f"Show {MORE} more of {row.name}, from other sides: it could not be measured yet."
    if right < samples:
        return f"Show {MORE} more of {row.name}."
    if row.labels > MANY_MORE_LABELS * max(smallest, 1):
        return f"Enough of {row.name}: show the others."
    return ""


def _measured(right: int, samples: int, least: float) -> str:
    # Rounded down: "at least" must be true.
    return f"{right:,} of {samples:,} right {NEVER_LEARNED} (at least {int(100 * least)} %)"


def _worst(rows: Sequence[ClassHealth]) -> ClassHealth | None:
    wrong = [row for row in rows if row.right < row.samples]
    return min(wrong, key=lambda row: (row.right / row.samples, -row.samples, row.id), default=None)


def _more(classes: Sequence[ClassRow], rows: Sequence[ClassHealth]) -> str:
    """Which classes want labels before more can be said."""
    few = [row for row in classes if row.labels < WANTED_LABELS]
    if few and len(few) == len(classes):
        return f"Show {MORE} more of each."
    if few:
        most = max(WANTED_LABELS - row.labels for row in few)
        return f"Show {most} more of {_listed([row.name for row in few])}."
    unmeasured = [row.name for row in rows if not row.samples]
    if len(unmeasured) == len(rows):
        return f"Show {MORE} more of each, from other sides."
    if unmeasured:
        return f"Show {MORE} more of {_listed(unmeasured)}, from other sides."
    return f"Show {MORE} more of each." if sum(row.samples for row in rows) < FEW_MEASURED else ""


def _doubts(contradictions: Sequence[Contradiction], names: dict[int, str]) -> str:
    found = [each for each in contradictions if each.one in names and each.other in names]
    if not found:
        return ""
    worst = max(found, key=lambda each: len(each.samples))
    pictures = len({sample for each in found for sample in each.samples})
    rest = " and others" if len(found) > 1 else ""
    called = f"{names[worst.one]} and {names[worst.other]}{rest}"
    return f"Contradictory labels: {pictures} pictures that look the same are called {called}."


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["mug"]), _listed(["mug", "cup"]), _listed(["a", "b", "c", "d", "e"])
    ('mug', 'mug and cup', 'a, b, c and 2 others')
    """
    if len(names) > MOST_NAMED:
        left = len(names) - MOST_NAMED
        names = [*names[:MOST_NAMED], f"{left} other{'s' if left > 1 else ''}"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
