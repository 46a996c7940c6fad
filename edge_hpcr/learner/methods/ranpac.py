"""RanPAC (McDonnell et al. 2023): ridge regression from random features, `W = (G + l I)^-1 Q`.

`h = relu(R z)` for the direction z of a feature, `G = sum h h'`, `Q = sum h y'`. R is of random signs, made again from a
seed. The publication chooses `l` on held-out samples; here it is the mean squared length of h times M / (M + n), for M
random features and n samples: a function of the statistics alone, whatever the order, that suits few labels.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.learner.methods.closed_form import ClosedForm, without
from edge_hpcr.learner.methods.method import StepView
from edge_hpcr.learner.network import Classifier, Network

MOST = 10_000  # the publication's number of random features: 200 MB
WITHOUT_BUDGET = 2_000  # 8 MB
SEED = 0  # of R


class RandomFeatures(nn.Module):
    """`h = relu(R z)`; the first rows of R are the same however many there are."""

    projection: Tensor

    def __init__(self, size: int, features: int, device: torch.device) -> None:
        super().__init__()
        # Raw bits: NumPy promises them for all its versions, and a checkpoint does not keep R.
        words = np.random.PCG64(SEED).random_raw(-(-size * features // 64))
        signs = np.unpackbits(words.astype("<u8").view(np.uint8))[: size * features].reshape(size, features)
        self.register_buffer("projection", torch.from_numpy(2 * signs.astype(np.float32) - 1).to(device))

    def forward(self, features: Tensor) -> Tensor:
        return F.relu(F.linear(F.normalize(features, dim=1), self.projection))


class RanPAC(ClosedForm):
    name = "ranpac"
    order = 96
    source = "McDonnell et al., NeurIPS 2023; the authors' program was read; no row of the paper's tables"
    gone: ClassVar = {"size": 0, "ridge": 1.0}
    KEPT = (*ClosedForm.KEPT, "targets", "samples")
    SYMMETRIC = ("gram",)

    gram: Tensor  # G, float32 [M, M]
    targets: Tensor  # Q transposed, float32 [C, M]
    samples: Tensor  # int64: how many G is of, those of classes that left among them

    def begin(self, view: StepView) -> None:
        super().begin(view)
        size = self._affordable(view)
        self.gram = torch.zeros(size, size, device=view.device)
        self.targets = torch.zeros(0, size, device=view.device)
        self.samples = torch.zeros((), dtype=torch.int64, device=view.device)
        self._lift()

    def _affordable(self, view: StepView) -> int:
        """How many random features the budget holds beside the class means: 2 M (M + 1) + 4 M C bytes."""
        left, linear = self.bytes_left(view), 2 * len(self.counts) + 1
        if left is None:
            return WITHOUT_BUDGET
        return min(MOST, max(1, (math.isqrt(linear**2 + 2 * left) - linear) // 2))

    def _lift(self) -> None:
        self.lift = RandomFeatures(len(self.gram), self.sums.shape[1], self.sums.device)

    def add_class(self) -> None:
        super().add_class()
        self.targets = F.pad(self.targets, (0, 0, 0, 1))

    def drop_class(self, column: int) -> None:
        super().drop_class(column)
        self.targets = without(self.targets, column)

    def change(self, view: StepView, directions: Tensor, columns: Tensor, sign: int) -> None:
        size = self._affordable(view)
        if size < len(self.gram):  # the statistics of fewer random features are a part of these
            self.gram = self.gram[:size, :size].clone()
            self.targets = self.targets[:, :size].clone()
            self._lift()
        super().change(view, directions, columns, sign)
        random = self.lift(directions)
        self.gram.addmm_(random.T, random, alpha=sign)
        self.targets.index_add_(0, columns, random, alpha=sign)
        self.samples += sign * len(columns)

    def solve(self, view: StepView, network: Network) -> Classifier:
        gram, samples = self.gram.cpu().double(), int(self.samples)
        share = len(gram) / (len(gram) + samples)
        gram.diagonal().add_(share * gram.trace() / samples if samples else 1.0)
        weight = torch.cholesky_solve(self.targets.cpu().double().T, torch.linalg.cholesky(gram)).T
        return Classifier(self.lift, (weight / network.tau).to(self.sums))

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self._lift()
