"""Flatness: how much the loss changes when every parameter gets a little noise, with and without HT."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

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
from edge_hpcr.bench.analyses.proxy_gradients import WITHOUT_AND_WITH
from edge_hpcr.bench.analyses.runs import Runs
from edge_hpcr.bench.run import Run
from edge_hpcr.learner.network import Network


@dataclass(frozen=True)
class FlatnessSettings(Settings):
    noise: float = 0.01  # uniform from -noise to noise; the paper does not say how much it adds
    draws: int = 100
    images: int = 20  # of each class, on which the loss is taken


@torch.no_grad()
def losses(network: Network, inputs: Tensor, columns: Tensor) -> Tensor:
    """The cross-entropy over all classes of each image, as the finished model classifies it."""
    network.eval()
    return F.cross_entropy(network.logits(network.features(inputs)), columns, reduction="none")


@torch.no_grad()
def with_noise(network: Network, noise: float, generator: torch.Generator) -> Network:
    """A copy of the network with uniform noise on every parameter."""
    moved = copy.deepcopy(network)
    for parameter in moved.parameters():
        change = torch.rand(parameter.shape, generator=generator).mul_(2).sub_(1)
        parameter.add_(change.to(parameter), alpha=noise)
    return moved


class Flatness(Analysis):
    name = "flatness"
    order = 30
    purpose = "loss under noise on the parameters, with and without HT"
    source = "Table `ablation_ht`, columns 'Loss' and 'Difference'"
    conclusion = (
        "with HT the loss is lower (1.6710 < 1.8439) and noise on the parameters changes it less, for all classes "
        "(0.0025 < 0.0042) and for new ones (0.0040 < 0.0056)."
    )
    small = FlatnessSettings()
    paper = as_printed(FlatnessSettings, "cifar10", 100, draws=1000, images=100)

    def measure(self, settings: FlatnessSettings, runs: Runs) -> dict[str, Any]:
        wanted = [(name, seed) for name in WITHOUT_AND_WITH for seed in range(settings.seeds)]
        measured: dict[str, Any] = {name: [] for name in WITHOUT_AND_WITH}
        for name, seed in runs.each(wanted, self.name):
            config = runs.config(settings, WITHOUT_AND_WITH[name], seed)
            seen = runs.measured(config, settings, self.name, lambda run: _of_run(run, settings, runs))
            measured[name].append(seen)
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        without, with_ht = (result["measured"][name] for name in WITHOUT_AND_WITH)
        parts, holds = [], []
        for key, words in (("loss", "the loss"), ("all", "the difference"), ("new", "that of new classes")):
            left, right = (mean([each[key] for each in seen]) for seen in (with_ht, without))
            parts.append(f"{words} is {left:.4f} with HT and {right:.4f} without")
            holds.append(left < right)
        verdict = as_in_paper(all(holds)) if len(set(holds)) == 1 else "in part the paper's direction"
        return f"{', '.join(parts)}: {verdict}."

    def table(self, result: dict[str, Any]) -> str:
        rows = [
            [
                name,
                str(len(seen)),
                percent([each["accuracy"] for each in seen]),
                *(number([each[key] for each in seen], 4) for key in ("loss", "all", "new")),
            ]
            for name, seen in result["measured"].items()
        ]
        settings = result["settings"]
        note = (
            f"The cross-entropy on {settings['images']} training images of each class, and by how much it is higher when every "
            f"parameter gets uniform noise of at most {settings['noise']:g}, mean of {settings['draws']:,} draws (the same for "
            "every model)."
        )
        head = ["setting", "n", "A_T", "loss", "difference, all", "difference, new"]
        return f"{note}\n\n{table_of(head, rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        figure = plots.new_figure(
            8.5, 3.8, "How much noise on the parameters raises the loss, over the draws"
        )
        panels = figure.subplots(1, 2, sharey=True)
        for axes, key in zip(panels, ("all", "new"), strict=True):
            for i, (name, seen) in enumerate(result["measured"].items()):
                quantiles = np.mean([each[f"{key}_quantiles"] for each in seen], axis=0)
                shares = np.linspace(0, 100, len(quantiles))
                axes.plot(quantiles, shares, color=plots.COLOURS[i], linewidth=2, label=name)
            axes.axvline(0, color="#555555", linewidth=0.8)
            axes.set(xlabel="difference of the loss", title=f"{key} classes")
            axes.grid(color="#DDDDDD", linewidth=0.7)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("draws below (%)")
        panels[0].legend(frameon=False)
        return figure


def _of_run(run: Run, settings: FlatnessSettings, runs: Runs) -> dict[str, Any]:
    learner, labels = run.learner, run.dataset.train_labels
    shown = np.concatenate([task.train for task in run.stream.tasks])
    chosen = np.concatenate([shown[labels[shown] == c][: settings.images] for c in learner.class_ids])
    inputs = learner.to_device(run.dataset.train_images[chosen])
    columns = torch.tensor([learner.column(c) for c in labels[chosen].tolist()], device=learner.device)
    new = torch.from_numpy(np.isin(labels[chosen], run.stream.tasks[-1].classes))
    before = losses(learner.network, inputs, columns)
    generator = torch.Generator().manual_seed(0)
    draws = [
        losses(with_noise(learner.network, settings.noise, generator), inputs, columns) - before
        for _ in runs.quietly(range(settings.draws), "draws")
    ]
    differences = torch.stack(draws).cpu()
    means = {"all": differences.mean(1), "new": differences[:, new].mean(1)}
    return {
        "accuracy": run.result()["A_T"],
        "loss": float(before.mean()),
        **{key: float(values.mean()) for key, values in means.items()},
        **{
            f"{key}_quantiles": np.quantile(values.numpy(), np.linspace(0, 1, 21)).round(5).tolist()
            for key, values in means.items()
        },
    }
