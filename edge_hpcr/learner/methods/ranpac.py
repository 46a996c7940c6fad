"""RanPAC (McDonnell et al. 2023): ridge regression from random features, `W = (G + l I)^-1 Q`.

`h = relu(R z)` for the direction z of a feature, `G = sum h h'`, `Q = sum h y'`. R is of random signs, made again from a
seed. The publication chooses `l` on held-out samples; here it is the mean squared length of h times M / (M + n), for M
random features and n samples: a function of the statistics alone, whatever the order, that suits few labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError, check_positive
from edge_hpcr.learner.methods.closed_form import ClosedForm, without
from edge_hpcr.learner.methods.contract import StepView
from edge_hpcr.learner.network import Classifier, Network

MOST = 10_000  # the publication's number of random features: 400 MB
WITHOUT_BUDGET = 2_000  # 16 MB
SEED = 0  # of R


@dataclass(frozen=True)
class Config:
    size: int = 0  # random features; 0: as many as the memory's byte budget holds
    ridge: float = 1.0  # a factor of `l`

    def __post_init__(self) -> None:
        check_positive("ridge", self.ridge)
        if not 0 <= self.size <= MOST:
            raise UserError(
                f"size {self.size}: give 1 to {MOST:,} random features, or 0 for what the budget holds"
            )


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
    Config = Config
    KEPT = (*ClosedForm.KEPT, "gram", "targets", "samples")

    gram: Tensor  # G, float32 [M, M]
    targets: Tensor  # Q transposed, float32 [C, M]
    samples: Tensor  # int64: how many G is of, those of classes that left among them

    def begin(self, view: StepView) -> None:
        super().begin(view)
        size = self.config.size or (WITHOUT_BUDGET if view.held.budget is None else MOST)
        size = min(size, self._affordable(view))
        self.gram = torch.zeros(size, size, device=view.device)
        self.targets = torch.zeros(0, size, device=view.device)
        self.samples = torch.zeros((), dtype=torch.int64, device=view.device)
        self._lift()

    def _affordable(self, view: StepView) -> int:
        """How many random features the budget holds beside the class means: 4 M^2 + 4 M C bytes."""
        left, classes = self.bytes_left(view), len(self.counts)
        return MOST if left is None else max(1, int((math.sqrt(classes**2 + left) - classes) / 2))

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

    def solve(self, network: Network) -> Classifier:
        gram, samples = self.gram.cpu().double(), int(self.samples)
        share = len(gram) / (len(gram) + samples)
        gram.diagonal().add_(self.config.ridge * share * gram.trace() / samples if samples else 1.0)
        weight = torch.cholesky_solve(self.targets.cpu().double().T, torch.linalg.cholesky(gram)).T
        return Classifier(self.lift, (weight / network.tau).to(self.sums))

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self._lift()
