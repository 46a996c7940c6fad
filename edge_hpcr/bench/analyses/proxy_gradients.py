"""Cumulative gradient for old and new proxies, with and without the temperature component (HT)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edge_hpcr.bench import plots
from edge_hpcr.bench.analyses.contract import (
    Analysis,
    Settings,
    as_in_paper,
    as_printed,
    mean,
    number,
    percent,
    table_of,
)
from edge_hpcr.bench.analyses.gradients import ProxyGradients
from edge_hpcr.bench.analyses.runs import Runs

WITHOUT_AND_WITH = {
    "without HT": "pcr",
    "with HT": "pcr_ct",
}  # at these batch sizes they differ in nothing else

NOTE = """\
Summed over the steps of the last task and over the old (new) proxies, mean over the seeds: `dL/d<z, w>` (the terms of one
anchor add up to 0, so old and new are opposite by construction), its absolute value (*size*), and the length of each proxy's
summed gradient vector, which with SGD is the way that the proxy went over the learning rate."""


class ProxyGradientsOfHT(Analysis):
    name = "proxy-gradients"
    order = 20
    purpose = "cumulative gradient for old and new proxies with and without HT"
    source = "Table `ablation_ht`, columns 'Final Accuracy' and 'Cumulative gradient'"
    conclusion = (
        "with HT less gradient reaches the proxies of old (64.28 < 88.27) and of new classes (70.40 < 95.39); the table has "
        "the latter with a minus, so these are signed sums, of `dL/d<z, w>` by their signs."
    )
    small = Settings()
    paper = as_printed(Settings, "cifar10", 100)

    def measure(self, settings: Settings, runs: Runs) -> dict[str, Any]:
        wanted = [(name, seed) for name in WITHOUT_AND_WITH for seed in range(settings.seeds)]
        measured: dict[str, Any] = {name: [] for name in WITHOUT_AND_WITH}
        for name, seed in runs.each(wanted, self.name):
            config = runs.config(settings, WITHOUT_AND_WITH[name], seed)
            measured[name].append(runs.watched(config, settings, self.name, ProxyGradients))
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        """By the signed sums, as the paper prints them, and by the sizes, where pushes and pulls do not cancel."""
        sentences = []
        for key, what, sign in (
            ("similarities", "the gradients", "+"),
            ("sizes", "the sizes of the gradients", ""),
        ):
            (old_without, old_with), (new_without, new_with) = (
                [mean(over(result["measured"][name], key, new)) for name in WITHOUT_AND_WITH]
                for new in (False, True)
            )
            new = -1 if sign else 1  # old proxies are pushed away, new ones pulled
            less = 0 < old_with < old_without and 0 < new * new_with < new * new_without
            sentences.append(
                f"{what} of the old and the new proxies sum up to {old_with:{sign}.1f} and {new_with:{sign}.1f} with HT, "
                f"to {old_without:{sign}.1f} and {new_without:{sign}.1f} without: {as_in_paper(less)}"
            )
        return f"{'; '.join(sentences)}."

    def table(self, result: dict[str, Any]) -> str:
        kinds = [(key, new) for key in ("similarities", "sizes", "lengths") for new in (False, True)]
        rows = [
            [
                name,
                str(len(seen)),
                percent([each["accuracy"] for each in seen]),
                *(number(over(seen, key, new), 1) for key, new in kinds),
            ]
            for name, seen in result["measured"].items()
        ]
        head = ["setting", "n", "A_T", "old", "new", "size, old", "size, new", "length, old", "length, new"]
        return f"{NOTE}\n\n{table_of(head, rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        figure = plots.new_figure(8.5, 4.2, "Cumulative gradient while the last task is learned")
        panels = figure.subplots(1, 2)
        for axes, key, label in zip(
            panels, ("similarities", "sizes"), ("sum of dL/d<z, w>", "sum of |dL/d<z, w>|"), strict=True
        ):
            bars_by_class(axes, result["measured"], key, label)
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
        )
        return figure


def bars_by_class(axes: Any, measured: dict[str, Any], key: str, label: str) -> None:
    """A group of bars for each class in the order of arrival, a bar for each setting: the mean over the seeds."""
    width = 0.8 / len(measured)
    for i, (name, seen) in enumerate(measured.items()):
        values = np.mean([each[key] for each in seen], axis=0)
        places = np.arange(len(values)) + (i - (len(measured) - 1) / 2) * width
        axes.bar(places, values, width, color=plots.COLOURS[i], label=name)
    new = np.flatnonzero(next(iter(measured.values()))[0]["new"])
    axes.axvspan(new[0] - 0.5, new[-1] + 0.5, color="#EEEEEE", zorder=0)
    axes.axhline(0, color="#555555", linewidth=0.8)
    if len(values) <= 20:
        axes.set_xticks(range(len(values)), [str(place + 1) for place in range(len(values))])
    axes.set(xlabel="class in the order of arrival (grey: new)", ylabel=label)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def over(seen: list[dict[str, Any]], key: str, new: bool) -> list[float]:
    """The sum over the new (old) proxies, one per seed."""
    return [
        sum(value for value, is_new in zip(each[key], each["new"], strict=True) if is_new == new)
        for each in seen
    ]
