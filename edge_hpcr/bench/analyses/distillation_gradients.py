"""Cumulative gradient for all proxies under each distillation while the last classes are learned."""

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
from edge_hpcr.bench.analyses.proxy_gradients import bars_by_class
from edge_hpcr.bench.analyses.runs import Runs

DISTILLATIONS: dict[str, dict[str, Any]] = {
    "none": {"alpha": 0.0, "beta": 0.0},
    "DER": {"beta": 0.0, "distillation": "der"},
    "PCD": {"beta": 0.0},
    "SCD": {"alpha": 0.0},
    "PCD+SCD": {},
}


class DistillationGradients(Analysis):
    name = "distillation-gradients"
    order = 70
    purpose = "cumulative gradient for all proxies under each distillation while the last classes are learned"
    source = "Figure `ablation_hd`"
    conclusion = "with SCD alone less gradient reaches the proxies than with PCD."
    small = Settings(seeds=2)
    paper = as_printed(Settings, "cifar10", 100)

    def measure(self, settings: Settings, runs: Runs) -> dict[str, Any]:
        measured: dict[str, Any] = {name: [] for name in DISTILLATIONS}
        wanted = [(name, seed) for name in DISTILLATIONS for seed in range(settings.seeds)]
        for name, seed in runs.each(wanted, self.name):
            config = runs.config(settings, "hpcr", seed, DISTILLATIONS[name])
            measured[name].append(runs.watched(config, settings, self.name, ProxyGradients))
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        """By each proxy's signed sum, as the paper's other table has it, and by the sizes."""
        sentences = []
        for key, what in (("similarities", "the signed sums of all proxies"), ("sizes", "the sizes")):
            scd, pcd = (mean(_amounts(result["measured"][name], key)) for name in ("SCD", "PCD"))
            sentences.append(
                f"{what} amount to {scd:.1f} with SCD alone and to {pcd:.1f} with PCD alone: {as_in_paper(scd < pcd)}"
            )
        return f"{'; '.join(sentences)}."

    def table(self, result: dict[str, Any]) -> str:
        rows = [
            [
                name,
                str(len(seen)),
                percent([each["accuracy"] for each in seen]),
                *(number(_amounts(seen, key), 0) for key in ("similarities", "sizes")),
                *(f"{value:+.1f}" for value in np.mean([each["similarities"] for each in seen], axis=0)),
            ]
            for name, seen in result["measured"].items()
        ]
        classes = len(result["measured"]["none"][0]["new"])
        names = (f"class {place + 1}" for place in range(classes))
        head = ["distillation", "n", "A_T", "signed, all", "size, all", *names]
        note = (
            "HPCR with each distillation, over the steps of the last task, mean over the seeds: for each class in the order of "
            "arrival the sum of `dL/d<z, w>`, what these amount to over all proxies without their signs (*signed*), and the sum of "
            "`|dL/d<z, w>|` (*size*)."
        )
        return f"{note}\n\n{table_of(head, rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        figure = plots.new_figure(9.5, 7.0, "Gradient of each proxy while the last task is learned")
        net, size = figure.subplots(2, 1)
        bars_by_class(net, result["measured"], "similarities", "sum of dL/d<z, w>")
        bars_by_class(size, result["measured"], "sizes", "sum of |dL/d<z, w>|")
        handles = net.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=len(DISTILLATIONS), frameon=False)
        return figure


def _amounts(seen: list[dict[str, Any]], key: str) -> list[float]:
    """Over all proxies, whatever the sign of each, one per seed."""
    return [sum(map(abs, each[key])) for each in seen]
