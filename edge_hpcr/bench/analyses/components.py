"""Accuracy over the share of principal components that are left of the features, with and without HC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from edge_hpcr.bench.analyses.contract import (
    Analysis,
    Settings,
    as_in_paper,
    as_printed,
    mean,
    percent,
    table_of,
)
from edge_hpcr.bench.analyses.contrastive import METHODS, accuracy_lines
from edge_hpcr.bench.analyses.runs import Runs
from edge_hpcr.bench.run import Run

PORTION = 256  # test images at a time


@dataclass(frozen=True)
class ComponentSettings(Settings):
    replay: int = 100
    shares: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)


def with_components(features: Tensor, share: float) -> Tensor:
    """The features with the first principal components alone, as many as `share` says, and at least one."""
    centre = features.mean(0)
    _, _, directions = torch.linalg.svd(features - centre, full_matrices=False)
    kept = directions[: max(1, round(share * features.shape[1]))]
    return centre + (features - centre) @ kept.T @ kept


class Components(Analysis):
    name = "components"
    order = 50
    purpose = "accuracy over the share of principal components of the features, with and without HC"
    source = "Figure `ablation_hc_pca`"
    conclusion = (
        "PCR with HC is better, most of all where few components are left: its features hold more in fewer."
    )
    small = ComponentSettings(buffer=200)
    paper = as_printed(
        ComponentSettings,
        "cifar100",
        5000,
        shares=(0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    )

    def measure(self, settings: ComponentSettings, runs: Runs) -> dict[str, Any]:
        measured: dict[str, Any] = {name: {str(share): [] for share in settings.shares} for name in METHODS}
        wanted = [(name, seed) for name in METHODS for seed in range(settings.seeds)]
        for name, seed in runs.each(wanted, self.name):
            config = runs.config(settings, METHODS[name], seed, learner={"replay": settings.replay})
            seen = runs.measured(config, settings, self.name, lambda run: _of_run(run, settings.shares))
            for share, accuracy in seen.items():
                measured[name][share].append(accuracy)
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        plain, pairs = (result["measured"][name] for name in METHODS)
        gains = {share: 100 * (mean(pairs[share]) - mean(plain[share])) for share in plain}
        few, everything = next(iter(gains)), list(gains)[-1]
        holds = gains[few] > 0 and gains[everything] > 0
        return (
            f"HC changes the accuracy by {gains[few]:+.1f} with {float(few):.0%} of the components and by "
            f"{gains[everything]:+.1f} with all: {as_in_paper(holds)}."
        )

    def table(self, result: dict[str, Any]) -> str:
        measured = result["measured"]
        shares = list(next(iter(measured.values())))
        rows = [
            [name, *(percent(accuracies[share]) for share in shares)] for name, accuracies in measured.items()
        ]
        note = (
            f"Final accuracy with a share of the principal components of the test images' features; "
            f"{result['settings']['replay']} samples replayed in a step."
        )
        return f"{note}\n\n{table_of(['method', *(f'{float(share):.0%}' for share in shares)], rows)}"

    def draw(self, result: dict[str, Any]) -> Figure:
        percents = {
            name: {str(100 * float(share)): values for share, values in accuracies.items()}
            for name, accuracies in result["measured"].items()
        }
        return accuracy_lines(
            percents, "Final accuracy over the principal components that are left", "components (%)"
        )


@torch.no_grad()
def features_of(run: Run, indices: np.ndarray) -> Tensor:
    """Of these test images, as the finished network makes them."""
    run.learner.network.eval()
    portions = np.array_split(indices, max(1, -(-len(indices) // PORTION)))
    return torch.cat(
        [
            run.learner.network.features(run.learner.to_device(run.stream.test_images[portion]))
            for portion in portions
        ]
    )


def _of_run(run: Run, shares: tuple[float, ...]) -> dict[str, float]:
    labels = run.stream.test_labels
    features = features_of(run, np.arange(len(labels)))
    class_ids = np.array(run.learner.class_ids)
    accuracies = {}
    for share in shares:
        with torch.no_grad():
            logits = run.learner.network.logits(with_components(features, share))
        accuracies[str(share)] = float((class_ids[logits.argmax(1).cpu().numpy()] == labels).mean())
    return accuracies
