"""How flat the loss of a finished network is: its loss under noise on the parameters."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.paper.analysis import Analysis, Runs, Settings, as_printed, number, percent
from benchmarks.paper.gradients import WITHOUT_AND_WITH
from edge_hpcr.bench.report import markdown
from edge_hpcr.bench.run import Run
from edge_hpcr.bench.run_config import RunConfig
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
    purpose = "loss under noise on the parameters, with and without HT"
    source = "Table `ablation_ht`, columns 'Loss' and 'Difference'"
    conclusion = (
        "with HT the loss is lower (1.6710 < 1.8439) and noise on the parameters changes it less, for all classes "
        "(0.0025 < 0.0042) and for new ones (0.0040 < 0.0056)."
    )
    small = FlatnessSettings()
    paper = as_printed(FlatnessSettings, "cifar10", 100, draws=1000, images=100)

    variants: ClassVar = WITHOUT_AND_WITH

    def seen(self, config: RunConfig, settings: FlatnessSettings, runs: Runs) -> dict[str, Any]:
        return runs.measured(config, settings, self.name, lambda run: _flatness(run, settings))

    def table(self, result: dict[str, Any]) -> str:
        settings = result["settings"]
        note = (
            f"The cross-entropy on {settings['images']} training images of each class, and by how much it is higher when every "
            f"parameter gets uniform noise of at most {settings['noise']:g}, mean of {settings['draws']:,} draws (the same for "
            "every model)."
        )
        rows = [
            [
                name,
                str(len(seen)),
                percent([each["accuracy"] for each in seen]),
                *(number([each[key] for each in seen], 4) for key in ("loss", "all", "new")),
            ]
            for name, seen in result["measured"].items()
        ]
        head = ["setting", "n", "A_T", "loss", "difference, all", "difference, new"]
        return f"{note}\n\n{markdown(head, rows, left=1)}"


def _flatness(run: Run, settings: FlatnessSettings) -> dict[str, Any]:
    accuracy = run.run()["A_T"]
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
        for _ in range(settings.draws)
    ]
    differences = torch.stack(draws).cpu()
    return {
        "accuracy": accuracy,
        "loss": float(before.mean()),
        "all": float(differences.mean(1).mean()),
        "new": float(differences[:, new].mean(1).mean()),
    }
