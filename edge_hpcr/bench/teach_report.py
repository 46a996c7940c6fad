"""Finished lessons of `bench teach` as Markdown: the draws of one contestant together, contestants beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from edge_hpcr.bench.report import NOTHING, Estimate, Together, by, machines, markdown
from edge_hpcr.bench.run import plain
from edge_hpcr.bench.teach import CONTESTANTS, ONE_ORDER
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner.learner import LearnerConfig

EXPLANATION = """\
`bench teach`: top-1 accuracy in percent on pictures never shown, after so many labels per class; the mean over n draws of
classes and pictures and the half-width of its 95 % confidence interval. Within a draw every contestant was taught the same
pictures in the same order. A label's time is from the picture to the end of its training step (for `dense`, the whole
training divided by the labels), a prediction's is that of one picture, both with its pass through the trunk. Bytes are what
is kept of the samples at the most labels."""
LEADS = "Differences, paired by draw; bold: larger than their 95 % interval."
_CONDITIONS = ("source", "pictures", "classes", "labels", "test")


class Lessons(Together):
    """One contestant's runs, which differ in nothing but the draw."""

    @property
    def _config(self) -> dict[str, Any]:
        return self.results[0]["config"]

    @property
    def title(self) -> str:
        """The contestant, and what sets its settings apart."""
        return (
            f"{self._config['contestant']} ({self.setting})" if self.setting else self._config["contestant"]
        )

    @property
    def setting(self) -> str:
        return self._config["label"].removeprefix("validation").strip("-")

    @property
    def conditions(self) -> tuple[str, ...]:
        """Lessons compare if they agree in these."""
        return tuple(str(self._config[key]) for key in _CONDITIONS)

    @property
    def heading(self) -> str:
        config = self._config
        source = config["source"] + (" (training pictures)" if config["pictures"].endswith("-train") else "")
        return f"{source}: {config['classes']} classes per draw, {ONE_ORDER.replace('_', ' ')}"

    @property
    def validates(self) -> bool:
        """Whether its pictures were training pictures."""
        return "-train" in self._config["pictures"] or "train-pictures" in self._config["source"]

    @property
    def counts(self) -> list[int]:
        return self._config["labels"]

    @property
    def order(self) -> tuple[int, str]:
        return CONTESTANTS.index(self._config["contestant"]), self.title

    def accuracies(self, labels: int) -> list[float]:
        return [result["accuracy"][str(labels)] for result in self.results]

    def above(self, other: Lessons, labels: int) -> str:
        """By how much it is better, on the draws that both have; bold where that is more than its interval."""
        ours, theirs = (
            {(run["seed"], run["draw"]): run["accuracy"][str(labels)] for run in one.results}
            for one in (self, other)
        )
        gain = Estimate.of([ours[draw] - theirs[draw] for draw in ours.keys() & theirs.keys()])
        certain = gain.mean is not None and gain.half is not None and abs(gain.mean) > gain.half
        return f"**{gain.signed}**" if certain else gain.signed


def lesson_key(result: dict[str, Any]) -> str:
    """The same for the draws of one contestant."""
    config = {"order": ONE_ORDER} | result["config"] | {"draw": None, "seed": None}
    learner = plain(asdict(LearnerConfig.from_dict(config["learner"])))
    return json.dumps(config | {"learner": learner | {"seed": None}}, sort_keys=True)


def group(results: Iterable[dict[str, Any]]) -> list[list[Lessons]]:
    """The contestants that compare, together."""
    contestants = [
        Lessons(tuple(sorted(runs, key=lambda run: (run["seed"], run["draw"]))))
        for runs in by(results, lesson_key).values()
    ]
    sections = by(contestants, lambda one: one.conditions)
    return [sorted(sections[key], key=lambda one: one.order) for key in sorted(sections)]


def table(results: Iterable[dict[str, Any]]) -> str:
    return "\n\n".join(map(section, group(results)))


def section(contestants: Sequence[Lessons]) -> str:
    """One source: accuracy over labels per class, then cost."""
    counts = contestants[0].counts
    labels = [f"{count} label{'s' if count > 1 else ''}" for count in counts]
    accuracy = [
        [one.title, one.n, *(Estimate.of(one.accuracies(count)).text for count in counts)]
        for one in contestants
    ]
    leads = [
        [first.title, one.title, *(first.above(one, count) for count in counts)]
        for first, *others in by(contestants, lambda one: one.setting).values()
        for one in others
    ]
    return "\n\n".join(
        [
            f"## {contestants[0].heading}",
            f"Accuracy after so many labels per class, on {contestants[0].mean('test_pictures'):,.0f} test pictures per draw:",
            markdown(["contestant", "n", *labels], accuracy, left=1),
            *([LEADS, markdown(["contestant", "minus", *labels], leads)] if leads else []),
            "Cost, mean over the draws:",
            markdown(
                ["contestant", "label ms p50, p95", "prediction ms p50, p95", "kept"],
                [_cost(one) for one in contestants],
                left=1,
            ),
            machines(contestants),
        ]
    )


def _cost(one: Lessons) -> list[str]:
    kept = one.mean("bytes", "total")
    return [
        one.title,
        one.percentiles("label_ms", 1),
        one.percentiles("prediction_ms", 1),
        format_bytes(kept) if kept else NOTHING,
    ]
