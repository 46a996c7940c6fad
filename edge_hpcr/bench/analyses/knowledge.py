"""Novel and historical knowledge: accuracy on the newest task and on the earlier ones, after each task."""

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
    percent,
    table_of,
)
from edge_hpcr.bench.analyses.runs import Runs
from edge_hpcr.learner import methods

# The paper's lines, and ER; of those that this version does not have, none.
METHODS = ("er", "scr", "er_ace", "uer", "pcr", "pcr_ct", "hpcr")


def novel_and_historical(matrix: list[list[float]]) -> tuple[list[float], list[float]]:
    """The accuracy on task i after task i, and from the second task on the mean over the tasks before it."""
    return [row[-1] for row in matrix], [mean(row[:-1]) for row in matrix[1:]]


class Knowledge(Analysis):
    name = "knowledge"
    order = 80
    purpose = "accuracy on the newest task (novel) and on the earlier ones (historical), over the tasks"
    source = "Figure `learningstage5000`"
    conclusion = (
        "HT mainly helps novel knowledge (PCR against PCR with HT), distillation helps historical knowledge (HPCR against "
        "PCR with HT)."
    )
    small = Settings()
    paper = as_printed(Settings, "mini_imagenet", 5000)

    def measure(self, settings: Settings, runs: Runs) -> dict[str, Any]:
        known = [name for name in METHODS if name in methods.names()]
        measured: dict[str, Any] = {name: [] for name in known}
        wanted = [(name, seed) for name in known for seed in range(settings.seeds)]
        for name, seed in runs.each(wanted, self.name):
            matrix = runs.result(runs.config(settings, name, seed))["accuracy_matrix"]
            novel, historical = novel_and_historical(matrix)
            measured[name].append({"novel": novel, "historical": historical})
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        means = {
            name: {key: 100 * mean(_overall(seen, key)) for key in ("novel", "historical")}
            for name, seen in result["measured"].items()
        }
        temperature = means["pcr_ct"]["novel"] - means["pcr"]["novel"]
        distillation = means["hpcr"]["historical"] - means["pcr_ct"]["historical"]
        return (
            f"HT changes novel accuracy by {temperature:+.1f} ({as_in_paper(temperature > 0)}), distillation changes historical "
            f"accuracy by {distillation:+.1f} ({as_in_paper(distillation > 0)})."
        )

    def table(self, result: dict[str, Any]) -> str:
        rows = [
            [name, str(len(seen)), *(percent(_overall(seen, key)) for key in ("novel", "historical"))]
            for name, seen in result["measured"].items()
        ]
        note = "Mean over the tasks; `pcr_ct` is PCR with HT, or HPCR without distillation."
        return f"{note}\n\n{table_of(['method', 'n', 'novel', 'historical'], rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        figure = plots.new_figure(10, 4.6, "Accuracy on the newest task and on the earlier ones")
        panels = figure.subplots(1, 2)
        for axes, key, first in zip(panels, ("novel", "historical"), (1, 2), strict=True):
            for i, (name, seen) in enumerate(result["measured"].items()):
                curve = 100 * np.mean([each[key] for each in seen], axis=0)
                style: Any = {"color": plots.COLOURS[i], "marker": plots.MARKERS[i], "linewidth": 2}
                axes.plot(np.arange(first, first + len(curve)), curve, label=name, **style)
            plots.scale(axes)
            axes.set(title=f"{key} knowledge", xlabel="tasks learned")
            axes.set_xticks(range(first, first + len(curve)))
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=len(METHODS), frameon=False)
        return figure


def _overall(seen: list[dict[str, Any]], key: str) -> list[float]:
    """The mean over the tasks, one per seed."""
    return [mean(each[key]) for each in seen]
