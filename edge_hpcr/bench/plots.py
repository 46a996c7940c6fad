"""Plots of finished runs as PNG: accuracy over the tasks or the labels, accuracy matrices, accuracy of each class.

Figures are made without pyplot, so that no window system is asked and no state is shared with the caller's own plots.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from edge_hpcr.bench import metrics
from edge_hpcr.bench.datasets import formats
from edge_hpcr.bench.report import Group, by_dataset
from edge_hpcr.bench.teach_report import Lessons

# Okabe and Ito's palette, which colour-blind readers tell apart; its yellow is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GROUPS_PER_FIGURE = len(COLOURS)
DPI = 120
SMALLEST_BAND = 3  # seeds: the interval of two is mostly wider than the scale, so they are drawn themselves
_CLASS_NAMES = {"cifar10": formats.CIFAR10_NAMES, "fashion_mnist": formats.FASHION_MNIST_NAMES}
FROM_PALE = LinearSegmentedColormap.from_list("from_pale", ["#EAF2F8", COLOURS[0]])


def draw(groups: Sequence[Group], folder: Path) -> list[tuple[str, str, Path]]:
    """Write all plots of these groups into an existing folder: the dataset, what is shown, and the file of each."""
    plots = []
    for dataset, name, members in figures(groups):
        several = [one for one in members if _tasks(one) > 1]
        drawn = []
        if several:
            drawn.append(("accuracy", "accuracy over the tasks", accuracy_over_tasks(dataset, members)))
            drawn.append(("matrix", "accuracy matrices", accuracy_matrices(dataset, several)))
        by_class = class_accuracies(dataset, members)
        drawn.append(("classes", "accuracy of each class after the last task", by_class))
        for kind, text, figure in drawn:
            plots.append((dataset, f"{name}: {text}", write(figure, folder / f"{name}-{kind}.png")))
    return plots


def draw_lessons(taught: Sequence[Sequence[Lessons]], folder: Path) -> list[tuple[str, str, Path]]:
    """The same of `bench teach`: a plot for each source and order."""
    plots = []
    for contestants in taught:
        heading = contestants[0].heading
        name = "-".join(["teach", *re.findall(r"\w+", heading)])
        figure = accuracy_over_labels(contestants)
        plots.append((heading, f"{heading}: accuracy over labels", write(figure, folder / f"{name}.png")))
    return plots


def write(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    return path


def figures(groups: Sequence[Group]) -> Iterator[tuple[str, str, list[Group]]]:
    """Dataset, name and groups of each figure: what may be compared, in portions that a figure can hold."""
    for dataset, members in by_dataset(groups).items():
        for conditions in dict.fromkeys(one.conditions for one in members):
            alike = [one for one in members if one.conditions == conditions]
            name = "-".join([dataset, *conditions.replace("=", "").split(", ")]).rstrip("-")
            for start in range(0, len(alike), GROUPS_PER_FIGURE):
                number = f"-{start // GROUPS_PER_FIGURE + 1}" if len(alike) > GROUPS_PER_FIGURE else ""
                yield dataset, name + number, alike[start : start + GROUPS_PER_FIGURE]


def _tasks(group: Group) -> int:
    return len(group.results[0]["accuracy_matrix"])


def new_figure(width: float, height: float, title: str) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12)
    return figure


def _title(group: Group) -> str:
    return f"{group.name}, n={len(group.results)}"


def accuracy_over_tasks(dataset: str, groups: Sequence[Group]) -> Figure:
    """A_i after each task; a run without tasks is a level to compare with."""
    legend_rows = -(-len(groups) // 2) + 2
    title = f"{dataset}: mean accuracy on the tasks seen so far"
    figure = new_figure(8.5, 4.6 + 0.2 * legend_rows, title)
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
    handles = [*axes.get_legend_handles_labels()[0], *_key(groups)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def scale(axes: Axes) -> None:
    """Accuracy from 0 to a little above the highest line: an interval may reach beyond all accuracies."""
    drawn = np.concatenate([line.get_ydata() for line in axes.lines])
    axes.set(ylim=(0, min(102, 10 * np.ceil(np.max(drawn) / 10) + 2)), ylabel="accuracy (%)")
    axes.grid(color="#DDDDDD", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def accuracy_over_labels(contestants: Sequence[Lessons]) -> Figure:
    """Each contestant's accuracy over the labels a class, on a logarithmic axis."""
    figure = new_figure(8.5, 5.0, f"{contestants[0].heading}: accuracy on pictures never shown")
    axes = figure.subplots()
    counts = np.array(contestants[0].counts)
    looks = itertools.cycle(zip(COLOURS, MARKERS, strict=True))
    for one, (colour, marker) in zip(contestants, looks, strict=False):
        curves = 100 * np.array([one.accuracies(count) for count in counts.tolist()]).T
        title = f"{one.title}, n={len(one.results)}"
        axes.plot(counts, curves.mean(0), color=colour, marker=marker, markersize=5, linewidth=2, label=title)
        spread(axes, counts, curves, colour)
    axes.set(xscale="log", xlabel="labels a class")
    axes.set_xticks(counts, map(str, counts.tolist()))
    axes.set_xticks([], minor=True)
    scale(axes)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _curves(group: Group, matrix: str) -> np.ndarray:
    """A_i in percent, a row for each seed."""
    return 100 * np.array([metrics.average_accuracies(run[matrix]) for run in group.results])


def spread(axes: Axes, steps: np.ndarray, curves: np.ndarray, colour: str) -> None:
    if len(curves) >= SMALLEST_BAND:
        half = np.array([metrics.mean_and_interval(column)[1] for column in curves.T.tolist()])
        mean = curves.mean(0)
        axes.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    elif len(curves) > 1:
        axes.plot(steps, curves.T, color=colour, linewidth=0.8, alpha=0.5)


def _key(groups: Sequence[Group]) -> list[Line2D]:
    """The legend of what every line may have."""
    grey = "#555555"
    several = [one for one in groups if _tasks(one) > 1]
    key = []
    if any(all(run["ema_accuracy_matrix"] for run in one.results) for one in several):
        key.append(Line2D([], [], color=grey, linestyle="--", linewidth=1.3, label="averaged weights (EMA)"))
    if any(len(one.results) >= SMALLEST_BAND for one in several):
        key.append(Line2D([], [], color=grey, alpha=0.25, linewidth=8, label="95 % confidence interval"))
    if any(1 < len(one.results) < SMALLEST_BAND for one in several):
        key.append(Line2D([], [], color=grey, linewidth=0.8, alpha=0.7, label="each of two seeds"))
    return key


def accuracy_matrices(dataset: str, groups: Sequence[Group]) -> Figure:
    """a[i][j] of each group, mean over the seeds."""
    tasks = max(map(_tasks, groups))
    columns = min(len(groups), 4 if tasks <= 5 else 3 if tasks <= 10 else 2)
    rows = -(-len(groups) // columns)
    side = max(3.0, 0.42 * tasks)
    title = f"{dataset}: accuracy (%) on each task after each task"
    figure = new_figure(max(columns * side + 0.9, 5.0), rows * (side + 0.35) + 0.4, title)
    panels = figure.subplots(rows, columns, squeeze=False)
    image = None
    for axes, one in zip(panels.flat, groups, strict=False):
        image = _matrix(axes, _mean_matrix(one))
        axes.set_title(fill(_title(one), int(13 * side)), fontsize=9)  # 13 letters per inch
    for axes in panels.flat[len(groups) :]:
        axes.set_axis_off()
    if image is not None:
        figure.colorbar(image, ax=panels, fraction=0.03, pad=0.02, aspect=30, label="accuracy (%)")
    return figure


def _mean_matrix(group: Group) -> np.ndarray:
    """Percent; what lies above the diagonal has not been learned yet and is no number."""
    tasks = _tasks(group)
    total = np.full((len(group.results), tasks, tasks), np.nan)
    for run, result in enumerate(group.results):
        for i, row in enumerate(result["accuracy_matrix"]):
            total[run, i, : i + 1] = row
    return 100 * total.mean(0)


def _matrix(axes: Axes, matrix: np.ndarray) -> Any:
    tasks = len(matrix)
    image = axes.imshow(matrix, cmap=FROM_PALE, vmin=0, vmax=100)
    for i in range(tasks):
        for j in range(i + 1):
            ink = "white" if matrix[i, j] > 85 else "black"
            axes.text(j, i, f"{matrix[i, j]:.0f}", ha="center", va="center", fontsize=9, color=ink)
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(range(tasks), [str(i + 1) for i in range(tasks)], fontsize=8)
        set_ticks(np.arange(0.5, tasks - 1), minor=True)
    axes.set_xlabel("tested on task", fontsize=9)
    axes.set_ylabel("after task", fontsize=9)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    return image


def class_accuracies(dataset: str, groups: Sequence[Group]) -> Figure:
    """One panel a group over the same classes: the mean over the seeds, and a dot for each of them."""
    ids = sorted({int(key) for one in groups for run in one.results for key in run["class_accuracy"][-1]})
    names = _CLASS_NAMES.get(dataset)
    width = min(16.0, max(7.0, 0.16 * len(ids)))
    title = f"{dataset}: accuracy of each class after the last task"
    if any(len(one.results) > 1 for one in groups):
        title += " (dots: single seeds)"
    figure = new_figure(width, 1.7 * len(groups) + 1.2, title)
    panels = figure.subplots(len(groups), 1, sharex=True, squeeze=False)[:, 0]
    for axes, one, colour in zip(panels, groups, COLOURS, strict=False):
        shares = 100 * np.array([[run["class_accuracy"][-1][str(c)] for c in ids] for run in one.results])
        axes.bar(range(len(ids)), shares.mean(0), width=0.75, color=colour)
        if len(shares) > 1:
            axes.plot(shares.T, "o", markersize=4, color="#222222", mec="white", clip_on=False)
        axes.set_ylim(0, 100)
        axes.set_title(_title(one), fontsize=9, loc="left")
        axes.set_ylabel("accuracy (%)", fontsize=8)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    every = max(1, len(ids) // 50)
    shown = range(0, len(ids), every)
    labels = [names[ids[i]] if names else str(ids[i]) for i in shown]
    panels[-1].set_xticks(shown, labels, fontsize=9 if len(ids) <= 20 else 7, rotation=30 if names else 0)
    panels[-1].set_xlabel("class" if names else "class id")
    panels[-1].set_xlim(-0.7, len(ids) - 0.3)
    return figure
