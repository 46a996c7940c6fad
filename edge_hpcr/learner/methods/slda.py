"""SLDA, streaming linear discriminant analysis (Hayes & Kanan 2020): class means and one covariance for all classes.

With few labels the covariance says little. It shrinks towards a sphere of the same mean variance, which counts as many
samples as there are features. The publication takes a fixed 1e-4 of the mean variance.

The covariance takes half of the square of the number of features. Where a byte budget cannot hold it, it is of the first features
only, and the others are left out of the answer: a pre-trained backbone puts its last layer's first.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.methods.closed_form import ClosedForm
from edge_hpcr.learner.methods.method import StepView
from edge_hpcr.learner.network import Classifier, Network, Unit

NEVER = -1e4  # the score of a class without samples
# Of k labels per class, likelihoods in units of the mean variance times `tau` suit about this temperature over sqrt(k):
# seen on CIFAR100's training pictures. A calibrated workspace measures its own.
BEST_TEMPERATURE = 0.5


def shrunk(scatter: Tensor, samples: int) -> Tensor:
    """The covariance over its mean variance, drawn to a sphere."""
    size = len(scatter)
    variance, share = scatter.trace() / size, _spheres_share(size, samples)
    shape = torch.eye(size, dtype=torch.float64)
    return share * shape + (1 - share) * scatter / variance if variance > 0 else shape


def _spheres_share(size: int, samples: int) -> float:
    return size / (size + samples)


def factor(scatter: Tensor, samples: int) -> Tensor:
    """Cholesky's factor of the shrunk covariance, also where samples were taken out.

    What was learned in full precision and is taken out as the disk has it leaves a little behind, which may be below zero in
    some direction. No variance is: that is left out.
    """
    found, failed = torch.linalg.cholesky_ex(shrunk(scatter, samples))
    lowest = _spheres_share(len(scatter), samples) / 2
    if failed or found.diagonal().square().min() < lowest:
        variances, directions = torch.linalg.eigh(scatter)
        scatter = directions * variances.clamp_min(0) @ directions.T
        found = torch.linalg.cholesky(shrunk(scatter, samples))
    return found


class SLDA(ClosedForm):
    name = "slda"
    order = 94
    source = "Hayes and Kanan, CVPR workshops 2020; a public program (Avalanche) was read; no row of the paper's tables"
    gone: ClassVar = {"shrinkage": 0.0}
    KEPT = (*ClosedForm.KEPT, "samples")
    SYMMETRIC = ("scatter",)

    scatter: Tensor  # float32 [D, D]: sum of the squared deviations from the class means
    samples: Tensor  # int64: how many the scatter is of, those of classes that left among them

    def begin(self, view: StepView) -> None:
        super().begin(view)
        size = self._affordable(view)
        self.scatter = torch.zeros(size, size, device=view.device)
        self.samples = torch.zeros((), dtype=torch.int64, device=view.device)

    def _affordable(self, view: StepView) -> int:
        """Of how many features the budget holds the covariance beside the class means."""
        left, features = self.bytes_left(view), self.sums.shape[1]
        return features if left is None else min(features, (math.isqrt(1 + 2 * left) - 1) // 2)

    def change(self, view: StepView, directions: Tensor, columns: Tensor, sign: int) -> None:
        size = self._affordable(view)
        if size < len(self.scatter):
            self.scatter = self.scatter[:size, :size].clone()
        size = len(self.scatter)
        if sign < 0:
            super().change(view, directions, columns, sign)
        # Deviations from the means of these samples, and of those means from the means of all others.
        here, rows = columns.unique(return_inverse=True)
        counts = torch.bincount(rows)[:, None]
        sums, first = self.sums[here, :size], directions[:, :size]
        means = torch.zeros_like(sums).index_add_(0, rows, first) / counts
        others = self.counts[here, None]
        apart = (others * counts / (others + counts)).sqrt() * (sums / others.clamp_min(1) - means)
        deviations = torch.cat([first - means[rows], apart])
        self.scatter.addmm_(deviations.T, deviations, alpha=sign)
        self.samples += sign * len(columns)
        if sign > 0:
            super().change(view, directions, columns, sign)

    def stretch(self) -> Tensor:
        """By how much each feature is multiplied before anything is made of it. [D]"""
        return torch.ones(self.sums.shape[1], dtype=torch.float64)

    def solve(self, view: StepView, network: Network) -> Classifier:
        """The log-likelihood of each class; cosines over `tau` while one label per class leaves no deviations.

        Seen from the middle of the classes: what they share is hundreds of times larger, cancels in every score, and would
        leave its rounding there, by which the exported model then differs.
        """
        counts, size = self.counts.cpu(), len(self.scatter)
        stretch = self.stretch()[:size]
        scatter = self.scatter.cpu().double() * stretch * stretch[:, None]
        means = self.sums[:, :size].cpu().double() / counts.clamp_min(1)[:, None] * stretch
        lower = factor(scatter, int(self.samples))
        labels = counts[counts > 0].double().mean().item() if counts.any() else 1.0
        sharpness = math.sqrt(labels) / (BEST_TEMPERATURE * network.tau)
        middle = means[counts > 0].mean(0) if counts.any() else 0.0
        weight = torch.cholesky_solve((means - middle).T, lower).T * sharpness
        bias = torch.where(counts > 0, -(weight * (means + middle)).sum(1) / 2, NEVER)
        weight = F.pad(weight * stretch, (0, self.sums.shape[1] - size))
        return Classifier(Unit(), weight.to(self.sums), bias.to(self.sums))
