"""DER's distillation against PCD, task by task."""

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

DISTILLATIONS = {"DER": "der", "PCD": "pcd"}


class DistillationTasks(Analysis):
    name = "distillation-tasks"
    order = 60
    purpose = "final accuracy of each task when logits are distilled as in DER or as in PCD"
    source = "Table `ablation_hd`"
    conclusion = "PCD balances the old tasks better than DER, which is ahead on the latest ones; on average PCD is ahead (46.4 against 45.6)."
    small = Settings()
    paper = as_printed(Settings, "cifar10", 100)

    def measure(self, settings: Settings, runs: Runs) -> dict[str, Any]:
        measured: dict[str, Any] = {name: [] for name in DISTILLATIONS}
        wanted = [(name, seed) for name in DISTILLATIONS for seed in range(settings.seeds)]
        for name, seed in runs.each(wanted, self.name):
            config = runs.config(settings, "pcr_ct_pcd", seed, {"distillation": DISTILLATIONS[name]})
            measured[name].append(runs.result(config)["accuracy_matrix"][-1])
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        der, pcd = (np.mean(result["measured"][name], axis=0) for name in DISTILLATIONS)
        ahead = np.flatnonzero(pcd[:-1] > der[:-1]) + 1
        where = f"old tasks {', '.join(map(str, ahead))}" if len(ahead) else "no old task"
        return (
            f"PCD is ahead of DER on {where}, and has {100 * pcd.mean():.1f} on average against "
            f"{100 * der.mean():.1f}: {as_in_paper(pcd.mean() > der.mean())}."
        )

    def table(self, result: dict[str, Any]) -> str:
        rows = [
            [
                name,
                *(percent(column) for column in zip(*tasks, strict=True)),
                percent([mean(row) for row in tasks]),
            ]
            for name, tasks in result["measured"].items()
        ]
        tasks = len(next(iter(result["measured"].values()))[0])
        head = ["distillation", *(f"task {task + 1}" for task in range(tasks)), "average"]
        return f"Final accuracy of each task (PCR with HT and this distillation, without SCD):\n\n{table_of(head, rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        figure = plots.new_figure(7.5, 4.2, "Final accuracy of each task (dots: single seeds)")
        axes = figure.subplots()
        for i, (name, tasks) in enumerate(result["measured"].items()):
            shares = 100 * np.array(tasks)
            places = np.arange(1, shares.shape[1] + 1) + (i - 0.5) * 0.4
            axes.bar(places, shares.mean(0), 0.38, color=plots.COLOURS[i], label=name)
            axes.plot(places, shares.T, "o", markersize=4, color="#222222", mec="white")
        axes.set(xlabel="task", ylabel="accuracy (%)", ylim=(0, 102))
        axes.set_xticks(range(1, shares.shape[1] + 1))
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        return figure
