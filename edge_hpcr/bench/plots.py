"""Plots of finished runs as PNG: accuracy over the tasks or the labels.

Figures are made without pyplot, so that no window system is asked and no state is shared with the caller's own plots.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from edge_hpcr.bench import metrics
from edge_hpcr.bench.report import Group, by
from edge_hpcr.bench.teach import Lessons

# Okabe and Ito's palette, which colour-blind readers tell apart; its yellow is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GROUPS_PER_FIGURE = len(COLOURS)
DPI = 120
SMALLEST_BAND = 3  # seeds: the interval of two is mostly wider than the scale


class Plot(NamedTuple):
    text: str
    file: str  # its name
    figure: Figure


def of_groups(groups: Sequence[Group]) -> Iterator[Plot]:
    """Of the runs on one dataset: a figure has what may be compared, as much of it as it can hold."""
    for conditions, alike in by(groups, lambda one: one.conditions).items():
        plain = "-".join([groups[0].dataset, *conditions.replace("=", "").split(", ")]).rstrip("-")
        for start in range(0, len(alike), GROUPS_PER_FIGURE):
            members = alike[start : start + GROUPS_PER_FIGURE]
            if all(_tasks(one) == 1 for one in members):
                continue  # a run without tasks is a level beside others, and alone no plot
            name = plain if len(alike) == len(members) else f"{plain}-{start // GROUPS_PER_FIGURE + 1}"
            yield Plot(
                f"{name}: accuracy over the tasks", f"{name}-accuracy.png", accuracy_over_tasks(members)
            )


def of_lessons(contestants: Sequence[Lessons], number: int) -> Iterator[Plot]:
    """The same of one source of `bench teach`; the number is that among those of the same heading."""
    heading = contestants[0].heading
    ending = "" if number == 1 else f"-{number}"
    file = "-".join(["teach", *re.findall(r"\w+", heading)]) + f"{ending}.png"
    yield Plot(f"{heading}: accuracy over labels", file, accuracy_over_labels(contestants))


def write(plot: Plot, folder: Path) -> None:
    plot.figure.savefig(folder / plot.file, dpi=DPI, metadata={"Software": None})


def _tasks(group: Group) -> int:
    return len(group.results[0]["accuracy_matrix"])


def new_figure(width: float, height: float, title: str) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12)
    return figure


def _title(group: Group) -> str:
    return f"{group.name}, n={len(group.results)}"


def accuracy_over_tasks(groups: Sequence[Group]) -> Figure:
    """A_i after each task; a run without tasks is a level to compare with."""
    title = f"{groups[0].dataset}: mean accuracy on the tasks seen so far (dashed: with averaged weights)"
    figure = new_figure(8.5, 5.0 + 0.1 * len(groups), title)
    axes = figure.subplots()
    for one, colour, marker in zip(groups, COLOURS, MARKERS, strict=False):
        curves = _curves(one, "accuracy_matrix")
        if _tasks(one) == 1:
            axes.axhline(curves.mean(), color=colour, linestyle=":", linewidth=2, label=_title(one))
            continue
        steps = np.arange(1, _tasks(one) + 1)
        style: Any = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 2}
        axes.plot(steps, curves.mean(0), label=_title(one), **style)
        spread(axes, steps, curves, colour)
        if all(run["ema_accuracy_matrix"] for run in one.results):
            averaged = _curves(one, "ema_accuracy_matrix").mean(0)
            axes.plot(steps, averaged, color=colour, linestyle="--", linewidth=1.3)
    axes.set(xlabel="tasks learned")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    scale(axes)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def scale(axes: Axes) -> None:
    """Accuracy from 0 to a little above the highest line: an interval may reach beyond all accuracies."""
    drawn = np.concatenate([line.get_ydata() for line in axes.lines])
    axes.set(ylim=(0, min(102, 10 * np.ceil(np.max(drawn) / 10) + 2)), ylabel="accuracy (%)")
    axes.grid(color="#DDDDDD", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def accuracy_over_labels(contestants: Sequence[Lessons]) -> Figure:
    """Each contestant's accuracy over the labels per class, on a logarithmic axis."""
    figure = new_figure(8.5, 5.0, f"{contestants[0].heading}: accuracy on pictures never shown")
    axes = figure.subplots()
    counts = np.array(contestants[0].counts)
    looks = itertools.cycle(zip(COLOURS, MARKERS, strict=True))
    for one, (colour, marker) in zip(contestants, looks, strict=False):
        curves = 100 * np.array([one.accuracies(count) for count in counts.tolist()]).T
        title = f"{one.title}, n={len(one.results)}"
        axes.plot(counts, curves.mean(0), color=colour, marker=marker, markersize=5, linewidth=2, label=title)
        spread(axes, counts, curves, colour)
    axes.set(xscale="log", xlabel="labels per class")
    axes.set_xticks(counts, map(str, counts.tolist()))
    axes.set_xticks([], minor=True)
    scale(axes)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def _curves(group: Group, matrix: str) -> np.ndarray:
    """A_i in percent, a row for each seed."""
    return 100 * np.array([metrics.average_accuracies(run[matrix]) for run in group.results])


def spread(axes: Axes, steps: np.ndarray, curves: np.ndarray, colour: str) -> None:
    """The 95 % interval as a band."""
    if len(curves) >= SMALLEST_BAND:
        half = np.array([metrics.mean_and_interval(column)[1] for column in curves.T.tolist()])
        mean = curves.mean(0)
        axes.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
