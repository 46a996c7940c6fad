"""Finished lessons of `bench teach` as Markdown: the draws of one contestant together, contestants beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from edge_hpcr.bench import metrics
from edge_hpcr.bench.report import NOTHING, Estimate, machine, markdown
from edge_hpcr.bench.run import as_now
from edge_hpcr.bench.teach import CONTESTANTS
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.units import format_bytes

EXPLANATION = """\
`bench teach`: top-1 accuracy in percent on pictures never shown, after so many labels a class; the mean over n draws of
classes and pictures and the half-width of its 95 % confidence interval. Within a draw every contestant was taught the same
pictures in the same order. A label's time is from the picture to the end of its training step (for `dense`, the whole
training divided by the labels), a prediction's is that of one picture, both with its pass through the trunk. Bytes are what
is kept of the samples at the most labels."""
_CONDITIONS = ("source", "pictures", "classes", "order", "labels", "test")
_NEEDED: dict[tuple[str, ...], Any] = {
    **{(key,): str for key in ("source", "contestant", "order", "finished")},
    **{(key,): int for key in ("draw", "seed", "test_pictures")},
    **{(time, share): (int, float) for time in ("label_ms", "prediction_ms") for share in ("p50", "p95")},
    ("bytes", "total"): int,
    ("config", "label"): str,
    **{("config", key): str for key in ("source", "pictures", "order")},
    **{("config", key): int for key in ("classes", "test", "draw", "seed")},
    ("config", "labels"): list,
    ("config", "learner", "seed"): int,
    **{("versions", key): str for key in ("hardware", "python", "torch", "numpy", "edge_hpcr", "device")},
    ("versions", "threads"): int,
}


def is_lesson(result: Any) -> bool:
    """Whether `bench teach` wrote it, and not `bench`."""
    return isinstance(result, dict) and result.get("benchmark") == "teach"


def check(path: Path, result: dict[str, Any]) -> None:
    """Refuse a result of `bench teach` that is damaged, or of another version."""
    for place, kind in _NEEDED.items():
        try:
            value = reduce(getitem, place, result)
        except (KeyError, TypeError):
            value = None
        if not isinstance(value, kind):
            raise UserError(f"{path}: damaged, or of another version: {'.'.join(place)} is missing or wrong")
    one_of(f"contestant in {path}", result["contestant"], CONTESTANTS)
    accuracy: Any = result.get("accuracy")
    counts = result["config"]["labels"]
    whole = isinstance(accuracy, dict) and counts and list(accuracy) == list(map(str, counts))
    if not whole or not all(map(metrics.is_share, accuracy.values())):
        raise UserError(f"{path}: damaged: it lacks the accuracy at some number of labels")


@dataclass(frozen=True)
class Lessons:
    """One contestant's runs, which differ in nothing but the draw."""

    results: tuple[dict[str, Any], ...]

    @property
    def title(self) -> str:
        """The contestant, and what sets its settings apart."""
        first = self.results[0]
        label = first["config"]["label"].removeprefix("validation").strip("-")
        return f"{first['contestant']} ({label})" if label else first["contestant"]

    @property
    def conditions(self) -> tuple[Any, ...]:
        """Lessons compare if they agree in these."""
        return tuple(str(self.results[0]["config"][key]) for key in _CONDITIONS)

    @property
    def heading(self) -> str:
        config = self.results[0]["config"]
        source = config["source"] + (" (training pictures)" if config["pictures"].endswith("-train") else "")
        return f"{source}: {config['classes']} classes a draw, {config['order'].replace('_', ' ')}"

    @property
    def counts(self) -> list[int]:
        return self.results[0]["config"]["labels"]

    def accuracies(self, labels: int) -> list[float]:
        return [result["accuracy"][str(labels)] for result in self.results]

    def mean(self, *path: str) -> float:
        values: Iterable[Any] = (reduce(getitem, path, result) for result in self.results)
        return sum(values) / len(self.results)


def lesson_key(result: dict[str, Any]) -> str:
    """The same for the draws of one contestant."""
    config = {key: value for key, value in as_now(result["config"]).items() if key not in ("draw", "seed")}
    return json.dumps(config | {"learner": config["learner"] | {"seed": None}}, sort_keys=True)


def group(results: Sequence[dict[str, Any]]) -> list[list[Lessons]]:
    """The contestants that compare, together."""
    together: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        together.setdefault(lesson_key(result), []).append(result)
    sections: dict[tuple[Any, ...], list[Lessons]] = {}
    for runs in together.values():
        lessons = Lessons(tuple(sorted(runs, key=lambda run: (run["seed"], run["draw"]))))
        sections.setdefault(lessons.conditions, []).append(lessons)
    places = {name: place for place, name in enumerate(CONTESTANTS)}

    def place(one: Lessons) -> tuple[int, str]:
        return places[one.results[0]["contestant"]], one.title

    return [sorted(sections[conditions], key=place) for conditions in sorted(sections)]


def _honesty(contestants: Sequence[Lessons]) -> list[str]:
    """A table of calibration and *unknown*, for the contestants that state a confidence."""
    kinds = ("calibration_error", "known_called_unknown", "novel_called_unknown")
    rows = []
    for one in contestants:
        for count in map(str, one.counts):
            stated = [
                result["honesty"][count] for result in one.results if count in result.get("honesty", {})
            ]
            if stated:
                means = [[each[kind] for each in stated if kind in each] for kind in kinds]
                cells = [Estimate.of(values).text if values else NOTHING for values in means]
                rows.append([one.title, count, str(len(stated)), *cells])
    if not rows:
        return []
    head = ["contestant", "labels", "n", "calibration error", "known called unknown", "novel called unknown"]
    return [
        "What it says of itself, in percent (calibrated by cross-validation over its memory; 5 % of what it knows may be "
        "called unknown):",
        markdown(head, rows, left=1),
    ]


def _test_then_train(contestants: Sequence[Lessons]) -> list[str]:
    """A table of answers given right before a label was taught, for one life of many labels."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in contestants:
        for result in one.results:
            for count, share in result.get("test_then_train", {}).items():
                found.setdefault(one.title, {}).setdefault(count, []).append(share)
    if not found:
        return []
    counts = [str(count) for count in contestants[0].counts[1:]]
    rows = [
        [title, *(Estimate.of(own.get(each, [])).text for each in counts)] for title, own in found.items()
    ]
    return [
        "Test-then-train: labels answered right before they were taught, in percent of those since the column before "
        "(the first number of labels a class has none):",
        markdown(["contestant", *(f"up to {each} labels" for each in counts)], rows, left=1),
    ]


def table(results: Sequence[dict[str, Any]]) -> str:
    return "\n\n".join(section(lessons) for lessons in group(results))


def section(contestants: Sequence[Lessons]) -> str:
    """One source and order: accuracy over labels a class, then cost."""
    counts = contestants[0].counts
    pictures = contestants[0].mean("test_pictures")
    machines = list(dict.fromkeys(machine(result) for one in contestants for result in one.results))
    accuracy = [
        [one.title, str(len(one.results)), *(Estimate.of(one.accuracies(count)).text for count in counts)]
        for one in contestants
    ]
    head = ["contestant", "n", *(f"{count} label{'s' if count > 1 else ''}" for count in counts)]
    return "\n\n".join(
        [
            f"## {contestants[0].heading}",
            f"Accuracy after so many labels a class, on {pictures:,.0f} test pictures a draw:",
            markdown(head, accuracy, left=1),
            *_test_then_train(contestants),
            *_honesty(contestants),
            "Cost, mean over the draws:",
            markdown(
                ["contestant", "label ms p50, p95", "prediction ms p50, p95", "kept", "machine"],
                [_cost(one, machines) for one in contestants],
                left=1,
            ),
            "\n".join(f"- Machine {i}: {text}" for i, text in enumerate(machines, 1)),
        ]
    )


def _cost(one: Lessons, machines: list[str]) -> list[str]:
    times = [
        f"{one.mean(time, 'p50'):.1f}, {one.mean(time, 'p95'):.1f}" for time in ("label_ms", "prediction_ms")
    ]
    kept = one.mean("bytes", "total")
    numbers = sorted({machines.index(machine(result)) + 1 for result in one.results})
    return [one.title, *times, format_bytes(kept) if kept else NOTHING, ", ".join(map(str, numbers))]
