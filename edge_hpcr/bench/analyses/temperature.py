"""The temperature: static values in both of its parts, the grid of its bounds, and the cycle's length."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edge_hpcr.bench import plots
from edge_hpcr.bench.analyses.contract import (
    Analysis,
    Settings,
    as_in_paper,
    as_printed,
    mean,
    percent,
    table_of,
)
from edge_hpcr.bench.analyses.runs import Runs
from edge_hpcr.learner.learner import LearnerConfig

# Where a static temperature is changed: in the gradient's factor 1/tau (G), in the probabilities (P), or in both.
PARTS = ("both", "G", "P")
WIDEST = 20  # classes that a table has beside each other


@dataclass(frozen=True)
class TemperatureSettings(Settings):
    taus: tuple[float, ...] = (0.03, 0.06, 0.09, 0.2)
    lowest: tuple[float, ...] = (0.05, 0.09)
    highest: tuple[float, ...] = (0.12, 0.16, 0.2)
    cycles: tuple[int, ...] = (5, 15, 50)


def static_options(part: str, tau: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of PCR and of the learner with this temperature in this part, and the usual one in the other."""
    usual = LearnerConfig.tau
    in_gradient = tau if part in ("both", "G") else usual
    in_probabilities = tau if part in ("both", "P") else usual
    # The loss is multiplied by tau/tau(s), here a constant: its gradient has 1/tau(s) in place of 1/tau.
    return {"tau_low": in_gradient, "tau_high": in_gradient, "cycle": 1}, {"tau": in_probabilities}


class Temperature(Analysis):
    name = "temperature"
    order = 10
    purpose = "PCR with static temperatures; HPCR over tau_min, tau_max and the cycle S"
    source = "Figure `tau`, tables `tau`, `tau_step` and `tau_bound`"
    conclusion = (
        "PCR is sensitive to tau, old classes want a smaller one than new classes, each class has its own best, and HPCR is "
        "best with tau_min 0.05, tau_max 0.16 and S = 500."
    )
    small = TemperatureSettings(seeds=2, limit=150)
    paper = as_printed(
        TemperatureSettings,
        "cifar100",
        1000,
        taus=(0.01, 0.03, 0.05, 0.07, 0.09, 0.12, 0.14, 0.17, 0.2, 0.3, 0.5),
        lowest=(0.11, 0.09, 0.07, 0.05),
        highest=(0.12, 0.14, 0.16, 0.18, 0.2),
        cycles=(50, 100, 125, 250, 500, 1000),
    )

    def measure(self, settings: TemperatureSettings, runs: Runs) -> dict[str, Any]:
        static = [("static", each) for each in product(PARTS, settings.taus)]
        bounds = [("bounds", each) for each in product(settings.lowest, settings.highest)]
        cycles = [("cycles", (each,)) for each in settings.cycles]
        measured: dict[str, Any] = {"static": [], "bounds": [], "cycles": []}
        for kind, values in runs.each([*static, *bounds, *cycles], self.name):
            measure = getattr(self, f"_{kind}")
            measured[kind].append(measure(settings, runs, *values))
        return measured

    def _static(self, settings: TemperatureSettings, runs: Runs, part: str, tau: float) -> dict[str, Any]:
        options, learner = static_options(part, tau)
        results = [
            runs.result(runs.config(settings, "pcr_ct", seed, options, learner))
            for seed in range(settings.seeds)
        ]
        last = [result["accuracy_matrix"][-1] for result in results]
        by_arrival = [
            [result["class_accuracy"][-1][str(c)] for c in result["class_order"]] for result in results
        ]
        return {
            **{"part": part, "tau": tau, "all": [result["A_T"] for result in results]},
            **{"old": [mean(row[:-1]) for row in last], "new": [row[-1] for row in last]},
            "classes": np.mean(by_arrival, axis=0).round(4).tolist() if part == "P" else [],
        }

    def _bounds(
        self, settings: TemperatureSettings, runs: Runs, lowest: float, highest: float
    ) -> dict[str, Any]:
        options = {"tau_low": lowest, "tau_high": highest}
        return {"tau_min": lowest, "tau_max": highest, **_accuracies(settings, runs, options)}

    def _cycles(self, settings: TemperatureSettings, runs: Runs, cycle: int) -> dict[str, Any]:
        return {"cycle": cycle, **_accuracies(settings, runs, {"cycle": cycle})}

    def finding(self, result: dict[str, Any]) -> str:
        measured = result["measured"]
        both = [cell for cell in measured["static"] if cell["part"] == "both"]
        old, new = (max(both, key=lambda cell: mean(cell[kind]))["tau"] for kind in ("old", "new"))
        bounds = max(measured["bounds"], key=lambda cell: mean(cell["A_T"]))
        cycle = max(measured["cycles"], key=lambda cell: mean(cell["A_T"]))
        return (
            f"old classes are best at tau {old:g} and new ones at {new:g} ({as_in_paper(old < new)}), the final accuracy of "
            f"HPCR at tau_min {bounds['tau_min']:g}, tau_max {bounds['tau_max']:g} and, with the usual bounds, at "
            f"S = {cycle['cycle']} steps."
        )

    def table(self, result: dict[str, Any]) -> str:
        measured = result["measured"]
        static = [
            [cell["part"], f"{cell['tau']:g}", *(percent(cell[kind]) for kind in ("all", "old", "new"))]
            for cell in measured["static"]
        ]
        bounds = [
            [f"{cell['tau_min']:g}", f"{cell['tau_max']:g}", percent(cell["A_T"]), percent(cell["AAA"])]
            for cell in measured["bounds"]
        ]
        cycles = [
            [str(cell["cycle"]), percent(cell["A_T"]), percent(cell["AAA"])] for cell in measured["cycles"]
        ]
        tables = {
            "PCR with a static tau in the gradient's factor (G), in the probabilities (P), or in both, and the usual "
            f"{LearnerConfig.tau} in the other part; final accuracy of all classes, of old ones, and of the last task's:": (
                table_of(["part", "tau", "all", "old", "new"], static)
            ),
            "The best static tau (P part) for each class, in the order of arrival:": _best_by_class(measured),
            "HPCR over the bounds of the temperature:": (
                table_of(["tau_min", "tau_max", "A_T", "AAA"], bounds, left=2)
            ),
            "HPCR over the cycle S in steps, with the usual bounds:": table_of(["S", "A_T", "AAA"], cycles),
        }
        return "\n\n".join(part for titled in tables.items() for part in titled)

    def draw(self, result: dict[str, Any]) -> Figure:
        measured = result["measured"]
        figure = plots.new_figure(
            10, 7.5, "PCR with a static temperature; HPCR over its bounds and its cycle"
        )
        (by_class, by_part), (grid, cycles) = figure.subplots(2, 2)
        both = [cell for cell in measured["static"] if cell["part"] == "both"]
        for i, kind in enumerate(("all", "old", "new")):
            _line(by_class, [(cell["tau"], mean(cell[kind])) for cell in both], i, f"{kind} classes")
        for i, part in enumerate(PARTS):
            cells = [cell for cell in measured["static"] if cell["part"] == part]
            _line(by_part, [(cell["tau"], mean(cell["all"])) for cell in cells], i, f"tau in {part}")
        for i, metric in enumerate(("A_T", "AAA")):
            _line(cycles, [(cell["cycle"], mean(cell[metric])) for cell in measured["cycles"]], i, metric)
        for axes, title, label in (
            (by_class, "PCR: old and new classes", "static tau"),
            (by_part, "PCR: all classes, tau in each part", "static tau"),
            (cycles, "HPCR: cycle", "S (steps)"),
        ):
            plots.scale(axes)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel(label)
            axes.legend(frameon=False, fontsize=9)
        cycles.set_xscale("log")
        cycles.set_xticks(
            [cell["cycle"] for cell in measured["cycles"]],
            [str(cell["cycle"]) for cell in measured["cycles"]],
        )
        cycles.set_xticks([], minor=True)
        _grid(grid, measured["bounds"])
        return figure


def _accuracies(settings: TemperatureSettings, runs: Runs, options: dict[str, Any]) -> dict[str, Any]:
    results = [runs.result(runs.config(settings, "hpcr", seed, options)) for seed in range(settings.seeds)]
    return {metric: [result[metric] for result in results] for metric in ("A_T", "AAA")}


def _best_by_class(measured: dict[str, Any]) -> str:
    cells = [cell for cell in measured["static"] if cell["part"] == "P"]
    accuracies = np.array([cell["classes"] for cell in cells])
    best = [f"{cells[place]['tau']:g}" for place in accuracies.argmax(0)]
    shares = [f"{100 * value:.0f}" for value in accuracies.max(0)]
    places = [str(place + 1) for place in range(len(best))]
    if len(places) > WIDEST:
        return table_of(
            ["class", "tau", "accuracy"], [list(row) for row in zip(places, best, shares, strict=True)]
        )
    return table_of(["class", *places], [["tau", *best], ["accuracy", *shares]])


def _line(axes: Axes, points: list[tuple[float, float]], number: int, label: str) -> None:
    places, shares = zip(*points, strict=True)
    style: Any = {"color": plots.COLOURS[number], "marker": plots.MARKERS[number], "linewidth": 2}
    axes.plot(places, 100 * np.array(shares), label=label, **style)


def _grid(axes: Axes, cells: list[dict[str, Any]]) -> None:
    """The final accuracy, a row for each lower bound."""
    lowest, highest = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("tau_min", "tau_max"))
    values = 100 * np.array([mean(cell["A_T"]) for cell in cells]).reshape(len(lowest), len(highest))
    axes.imshow(values, cmap=plots.FROM_PALE, aspect="auto")
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=ink)
    axes.set_xticks(range(len(highest)), [f"{value:g}" for value in highest])
    axes.set_yticks(range(len(lowest)), [f"{value:g}" for value in lowest])
    axes.set(xlabel="tau_max", ylabel="tau_min")
    axes.set_title("HPCR: final accuracy (%) over the bounds", fontsize=10)
    axes.spines[:].set_visible(False)
