"""The prototypes of OnPro: classes keep apart by them, and images of near classes are mixed (mixup)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.methods.contract import StepView

LARGEST_SHARE = 0.6  # of the second image in a random mixture
BETA = 0.4  # both parameters of the distribution of a share in mixtures of near classes


@dataclass(frozen=True)
class Mixed:
    """Images, each a share of one class's image and for the rest of another's."""

    images: Tensor
    first: Tensor  # class columns
    second: Tensor
    share: Tensor  # of the second

    def followed_by(self, other: Mixed) -> Mixed:
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return Mixed(*(torch.cat(pair) for pair in pairs))

    def classes(self) -> Tensor:
        """One number for each image: its class, or a number between two that no other mixture is likely to have."""
        share = self.share.double()
        return (1 - share) * self.first + share * self.second

    def cross_entropy(self, logits: Tensor) -> Tensor:
        first, second = (
            F.cross_entropy(logits, each, reduction="none") for each in (self.first, self.second)
        )
        return ((1 - self.share) * first + self.share * second).mean()


def prototype_contrast(
    first: Tensor, second: Tensor, labels: Tensor, num_classes: int, tau: float
) -> tuple[Tensor, Tensor]:
    """How far each class's prototype is from that of its other view rather than from the other classes' (OPE).

    A prototype is the direction of the mean projection of a class. With it come the means over both views, by class.
    """
    own = F.one_hot(labels, num_classes).to(first.dtype)
    counts = own.sum(0)
    means = [own.T @ view / counts.clamp_min(1)[:, None] for view in (first, second)]
    directions = F.normalize(torch.cat([mean[counts > 0] for mean in means]), dim=1)
    itself = torch.eye(len(directions), dtype=torch.bool, device=labels.device)
    logits = (directions @ directions.T / tau).masked_fill(itself, torch.finfo(first.dtype).min)
    log_share, half = F.log_softmax(logits, dim=1), len(directions) // 2
    pairs = torch.cat([log_share.diagonal(half), log_share.diagonal(-half)])
    return -pairs.mean(), ((means[0] + means[1]) / 2).detach()


def _mix(images: Tensor, others: Tensor, columns: Tensor, other_columns: Tensor, shares: np.ndarray) -> Mixed:
    share = torch.from_numpy(shares).to(images)
    weight = share[:, None, None, None]
    return Mixed((1 - weight) * images + weight * others, columns, other_columns, share)


def mixed_at_random(
    images: Tensor, columns: Tensor, chance: float, rng: np.random.Generator, last: Mixed | None = None
) -> Mixed:
    """All images mixed with one another, each with a share of 0 to 0.6 of another, or none: as chance will have it.

    Other mixtures may take the place of the last few.
    """
    count = len(images) - (0 if last is None else len(last.images))
    shares, order = np.zeros(count), np.arange(count)
    if rng.random() < chance:
        shares, order = rng.uniform(0, LARGEST_SHARE, count), rng.permutation(count)
    mixed = _mix(images[:count], images[order], columns[:count], columns[order], shares)
    return mixed if last is None else mixed.followed_by(last)


def mixed_pairs(view: StepView, prototypes: Tensor, number: int, chance: float) -> Mixed | None:
    """Held images of classes that are near each other, mixed in pairs; None if no two classes can be compared.

    A row of `prototypes` that is zero says nothing of its class.
    """
    labels = view.held.labels()
    known = [c for c in np.unique(labels).tolist() if c < len(prototypes) and prototypes[c].any()]
    if number < 1 or len(known) < 2:
        return None
    pairs = np.array(list(combinations(known, 2)))
    distances = F.pdist(prototypes[known].double()).clamp_min(1e-6)
    chosen = pairs[view.rng.choice(len(pairs), number, p=(1 / distances).softmax(0).numpy())]
    first, second = (
        view.held.at(np.array([view.rng.choice(np.flatnonzero(labels == column)) for column in columns]))
        for columns in chosen.T
    )
    mixes = view.rng.random(number) < chance
    shares = np.where(mixes, view.rng.beta(BETA, BETA, number), 0.0)
    columns, others = (torch.from_numpy(each.labels).to(view.device) for each in (first, second))
    return _mix(view.plain(first.inputs), view.plain(second.inputs), columns, others, shares)
