"""t-SNE of the test images' features after the last task, with the proxies as stars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch.nn import functional as F

from edge_hpcr.bench import plots
from edge_hpcr.bench.analyses.components import features_of
from edge_hpcr.bench.analyses.contract import Analysis, Settings, as_in_paper, as_printed, table_of
from edge_hpcr.bench.analyses.runs import Runs
from edge_hpcr.bench.run import Run

METHODS = ("er", "hpcr")


@dataclass(frozen=True)
class TsneSettings(Settings):
    replays: tuple[int, ...] = (10, 100)
    images: int = 300  # test images that are drawn


class Tsne(Analysis):
    name = "tsne"
    order = 90
    purpose = "t-SNE of test features with the proxies as stars, for ER and HPCR"
    source = "Figure `tsne`"
    conclusion = "the classes are told apart better in HPCR's features than in ER's."
    small = TsneSettings(buffer=200, seeds=1)
    paper = as_printed(TsneSettings, "cifar10", 500, seeds=1, images=600)

    def measure(self, settings: TsneSettings, runs: Runs) -> dict[str, Any]:
        wanted = [(method, replay) for replay in settings.replays for method in METHODS]
        panels = []
        for method, replay in runs.each(wanted, self.name):
            config = runs.config(settings, method, 0, learner={"replay": replay})
            seen = runs.measured(config, settings, self.name, lambda run: _of_run(run, settings.images))
            panels.append({"method": method, "replay": replay, **seen})
        return {"panels": panels}

    def finding(self, result: dict[str, Any]) -> str:
        panels = result["measured"]["panels"]
        replays = list(dict.fromkeys(panel["replay"] for panel in panels))
        found = []
        for replay in replays:
            er, hpcr = (_panel(panels, method, replay)["silhouette"] for method in METHODS)
            found.append(
                f"{hpcr:.2f} for HPCR and {er:.2f} for ER with {replay} replayed ({as_in_paper(hpcr > er)})"
            )
        return f"the silhouette of the classes in feature space is {', '.join(found)}."

    def table(self, result: dict[str, Any]) -> str:
        rows = [
            [
                panel["method"],
                str(panel["replay"]),
                f"{100 * panel['accuracy']:.1f}",
                f"{panel['silhouette']:.2f}",
            ]
            for panel in result["measured"]["panels"]
        ]
        note = "Silhouette of the classes in the space of unit features (1: apart, 0: mixed, below: among others), one seed."
        return f"{note}\n\n{table_of(['method', 'replayed', 'A_T', 'silhouette'], rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        panels = result["measured"]["panels"]
        columns = len(METHODS)
        rows = -(-len(panels) // columns)
        figure = plots.new_figure(9.5, 4.6 * rows, "t-SNE of test features; stars are proxies")
        colours = colormaps["tab10"](range(10))
        for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
            places, proxies = np.array(panel["images"]), np.array(panel["proxies"])
            look: Any = {"c": colours[np.array(panel["labels"]) % 10], "s": 12, "alpha": 0.7, "linewidths": 0}
            axes.scatter(*places.T, **look)
            stars: Any = {"marker": "*", "s": 220, "edgecolors": "black", "linewidths": 0.8}
            axes.scatter(*proxies.T, c=colours[np.array(panel["classes"]) % 10], **stars)
            axes.set_title(
                f"{panel['method']}, {panel['replay']} replayed, A_T {100 * panel['accuracy']:.1f} %",
                fontsize=10,
            )
            axes.set(xticks=[], yticks=[])
        classes = sorted(panels[0]["classes"])[:10]
        handles = [axes.scatter([], [], color=colours[c % 10], s=30, label=str(c)) for c in classes]
        figure.legend(handles=handles, title="class", loc="outside lower center", ncols=10, frameon=False)
        return figure


def _panel(panels: list[dict[str, Any]], method: str, replay: int) -> dict[str, Any]:
    return next(panel for panel in panels if (panel["method"], panel["replay"]) == (method, replay))


def _of_run(run: Run, images: int) -> dict[str, Any]:
    from sklearn.manifold import TSNE  # here, because importing it takes a second
    from sklearn.metrics import silhouette_score

    labels = run.stream.test_labels
    chosen = np.random.default_rng(0).permutation(len(labels))[:images]
    features = F.normalize(features_of(run, chosen), dim=1).cpu().numpy()
    proxies = F.normalize(run.learner.network.proxies.detach(), dim=1).cpu().numpy()
    points = np.concatenate([features, proxies])
    flat = TSNE(perplexity=min(30, (len(points) - 1) / 3), init="pca", random_state=0).fit_transform(points)
    return {
        "accuracy": run.result()["A_T"],
        "silhouette": round(float(silhouette_score(features, labels[chosen])), 4),
        "images": _rounded(flat[: len(chosen)]),
        "labels": labels[chosen].tolist(),
        "proxies": _rounded(flat[len(chosen) :]),
        "classes": run.learner.class_ids,
    }


def _rounded(points: np.ndarray) -> list[list[float]]:
    return [[round(float(value), 1) for value in point] for point in points]
