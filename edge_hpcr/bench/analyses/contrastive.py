"""The contrastive component (HC) against the number of replayed samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edge_hpcr.bench import plots
from edge_hpcr.bench.analyses.contract import Analysis, Settings, as_printed, mean, percent, table_of
from edge_hpcr.bench.analyses.runs import Runs

METHODS = {"PCR": "pcr", "PCR+HC": "pcr_c"}


@dataclass(frozen=True)
class ContrastiveSettings(Settings):
    replays: tuple[int, ...] = (10, 20, 50, 100)


class ContrastiveComponent(Analysis):
    name = "contrastive"
    order = 40
    purpose = "PCR with and without HC over the number of replayed samples"
    source = "Figure `ablation_hc`"
    conclusion = (
        "sample pairs (HC) cost accuracy while fewer than 60 samples are replayed, and gain it from there on."
    )
    small = ContrastiveSettings(buffer=200, seeds=2)
    paper = as_printed(ContrastiveSettings, "cifar100", 5000, replays=(10, 20, 40, 60, 80, 100))

    def measure(self, settings: ContrastiveSettings, runs: Runs) -> dict[str, Any]:
        measured: dict[str, Any] = {name: {} for name in METHODS}
        wanted = [(name, replay) for replay in settings.replays for name in METHODS]
        for name, replay in runs.each(wanted, self.name):
            configs = [
                runs.config(settings, METHODS[name], seed, learner={"replay": replay})
                for seed in range(settings.seeds)
            ]
            measured[name][str(replay)] = [runs.result(config)["A_T"] for config in configs]
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        plain, pairs = (result["measured"][name] for name in METHODS)
        gains = {int(replay): 100 * (mean(pairs[replay]) - mean(plain[replay])) for replay in plain}
        small, large = (
            [gain for replay, gain in gains.items() if (replay < 60) == few] for few in (True, False)
        )
        if not small or not large:
            return "both small and large batches are needed to compare."
        words = ", ".join(f"{gain:+.1f} with {replay}" for replay, gain in gains.items())
        verdict = (
            "the paper's pattern" if max(small) < 0 < min(large) else "not the paper's pattern throughout"
        )
        return f"HC changes the accuracy by {words} replayed samples: {verdict}."

    def table(self, result: dict[str, Any]) -> str:
        measured = result["measured"]
        replays = list(next(iter(measured.values())))
        rows = [
            [name, *(percent(accuracies[replay]) for replay in replays)]
            for name, accuracies in measured.items()
        ]
        note = "Final accuracy by replayed samples in a step."
        return f"{note}\n\n{table_of(['method', *replays], rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        return accuracy_lines(
            result["measured"], "Final accuracy, with and without sample pairs", "replayed samples in a step"
        )


def accuracy_lines(measured: dict[str, dict[str, list[float]]], title: str, label: str) -> Figure:
    """A line for each name over the numbers that its accuracies are kept by."""
    figure = plots.new_figure(7.5, 4.2, title)
    axes = figure.subplots()
    for i, (name, accuracies) in enumerate(measured.items()):
        places = np.array([float(key) for key in accuracies])
        curves = 100 * np.array(list(accuracies.values())).T
        style: Any = {"color": plots.COLOURS[i], "marker": plots.MARKERS[i], "linewidth": 2, "label": name}
        axes.plot(places, curves.mean(0), **style)
        plots.spread(axes, places, curves, plots.COLOURS[i])
    plots.scale(axes)
    axes.set_xlabel(label)
    axes.legend(frameon=False)
    return figure
