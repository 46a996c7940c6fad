"""What the closed-form methods share, and NCM: statistics of the features of a network that stays as it is.

No loss is minimised and no sample is kept. The statistics are sums over samples: any order of the samples gives the same
classifier, up to rounding, and a sample can be taken out again.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner.methods.method import Method, StepView
from edge_hpcr.learner.network import Classifier, Network


class ClosedForm(Method):
    """Keeps the number of samples of each class and the sum of their directions, which is the class's proxy.

    A subclass that keeps more extends `KEPT` (or `SYMMETRIC`), `begin`, `change` and the two hooks of classes, and solves its equations
    in `solve`: when somebody asks, and not after every sample.
    """

    uses_memory = False
    closed_form = True
    KEPT: tuple[str, ...] = ("counts", "sums")  # the attributes that are its state
    SYMMETRIC: tuple[str, ...] = ()  # and those of which half is kept

    counts: Tensor  # int64 [C]
    sums: Tensor  # float32 [C, D]
    _solved: Classifier | None = None

    def begin(self, view: StepView) -> None:
        super().begin(view)
        self.counts = torch.zeros(0, dtype=torch.int64, device=view.device)
        self.sums = torch.zeros(0, view.network.feature_size, device=view.device)

    def add_class(self) -> None:
        self._solved = None
        self.counts = F.pad(self.counts, (0, 1))
        self.sums = F.pad(self.sums, (0, 0, 0, 1))

    def drop_class(self, column: int) -> None:
        self._solved = None
        self.counts = without(self.counts, column)
        self.sums = without(self.sums, column)

    def keeps_any(self, view: StepView, column: int) -> bool:
        return bool(self.counts[column] > 0)

    def take_in(self, view: StepView, features: Tensor, columns: Tensor) -> None:
        self.change(view, F.normalize(features, dim=1), columns, 1)

    def take_out(self, view: StepView, features: Tensor, columns: Tensor) -> None:
        asked = torch.bincount(columns, minlength=len(self.counts))
        if (asked > self.counts).any():
            raise UserError("a class has fewer samples than are to be taken out: nothing was changed")
        self.change(view, F.normalize(features, dim=1), columns, -1)

    def change(self, view: StepView, directions: Tensor, columns: Tensor, sign: int) -> None:
        """Add samples to the statistics (`sign` 1) or subtract them (-1)."""
        self._solved = None
        self.counts.index_add_(0, columns, torch.full_like(columns, sign))
        self.sums.index_add_(0, columns, directions, alpha=sign)
        self.sums[self.counts == 0] = 0  # not what rounding left of a class's last sample
        view.network.proxies.copy_(F.normalize(self.sums, dim=1))

    def bytes_left(self, view: StepView) -> int | None:
        """What the memory's byte budget leaves beside the class means for statistics of pairs of features; None: no budget."""
        if view.held.config.bytes is None:
            return None
        left = view.held.config.bytes - self.counts.nbytes - self.sums.nbytes - 8
        if left < 4:
            classes, features = self.sums.shape
            raise UserError(
                f"a memory of {format_bytes(view.held.config.bytes)} is too small for {self.name} with {classes} classes of "
                f"{features:,} features: raise the budget"
            )
        return left

    def classifier(self, view: StepView, network: Network) -> Classifier:
        if self._solved is None:
            self._solved = self.solve(view, network)
        return self._solved

    def solve(self, view: StepView, network: Network) -> Classifier:
        return Classifier.by_proxies(network)

    def bytes(self) -> int:
        halves = (getattr(self, name) for name in self.SYMMETRIC)
        return sum(getattr(self, name).nbytes for name in self.KEPT) + sum(
            half_bytes(len(each)) for each in halves
        )

    def state(self) -> dict[str, Tensor]:
        halves = {name: lower_half(getattr(self, name)) for name in self.SYMMETRIC}
        return {name: getattr(self, name) for name in self.KEPT} | halves

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._solved = None
        for name in self.KEPT:
            setattr(self, name, state[name])
        for name in self.SYMMETRIC:
            setattr(self, name, symmetric(state[name]))


def without(tensor: Tensor, row: int) -> Tensor:
    return torch.cat([tensor[:row], tensor[row + 1 :]])


def half_bytes(size: int) -> int:
    """Of a symmetric matrix of 32-bit numbers, with its diagonal."""
    return 2 * size * (size + 1)


def lower_half(matrix: Tensor) -> Tensor:
    """A symmetric matrix row by row, each up to the diagonal: Cholesky's decomposition reads no more."""
    return torch.cat([row[: number + 1] for number, row in enumerate(matrix)])


def symmetric(half: Tensor) -> Tensor:
    """The matrix of which `lower_half` kept half."""
    size = (math.isqrt(8 * len(half) + 1) - 1) // 2
    lower = pad_sequence(half.split(list(range(1, size + 1))), batch_first=True)
    return lower + lower.tril(-1).T


class NCM(ClosedForm):
    """Nearest class mean: the class whose mean direction has the largest cosine with the feature."""

    name = "ncm"
    order = 92
    source = "nearest class mean, as in SimpleCIL (Zhou et al. 2023); no row of the paper's tables"
