"""OnPro, online prototypes: OCM's contrast, class prototypes that keep apart, and mixtures of classes that are near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError, check_positive
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods import rotations
from edge_hpcr.learner.methods.closed_form import without
from edge_hpcr.learner.methods.method import Batch, Method, StepView

LARGEST_SHARE = 0.6  # of the second image in a random mixture
BETA = 0.4  # both parameters of the distribution of a share in mixtures of near classes


@dataclass(frozen=True)
class Config:
    alpha: float = 0.1  # the share of replayed images that are mixtures of near classes
    mix: float = 0.2  # p: how often images are mixed
    scale: float = 1.0  # of the similarities, after the first task
    tau: float = 0.07  # of the contrast; the classifier has its own
    prototype_tau: float = 0.5

    def __post_init__(self) -> None:
        for name in ("alpha", "mix"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} {getattr(self, name)}: give a share from 0 to 1")
        for name in ("scale", "tau", "prototype_tau"):
            check_positive(name, getattr(self, name))


class OnPro(Method):
    """In the first task the incoming images are classified, later mixtures of replayed ones alone."""

    name = "onpro"
    order = 150
    Config = Config
    paper_options: ClassVar = {"cifar10": {"alpha": 0.25, "mix": 0.6, "scale": 0.5}}
    needs_boundaries = True
    source = (
        "Wei et al., ICCV 2023; the program weilllllls/OnPro was read; here pairs of classes are drawn by their "
        "probabilities, where it rounds numbers of pairs; and the upright ones among all rotated images are classified, where it passes the replayed ones once more"
    )
    # Of the last replayed images, in both views: where the classes that were among them are; others are zero.
    prototypes: Tensor
    _pairs: Mixed | None = None  # drawn with the replayed images, for the loss of the same step

    def begin(self, view: StepView) -> None:
        super().begin(view)
        self.rng, self.augment, self.features = view.rng, view.augment, view.features
        size = rotations.add_projection(view, self.name)
        self.prototypes = self._latest = torch.zeros(0, size, device=view.device)
        self.tasks_ended = 0

    def add_class(self) -> None:
        self.prototypes = F.pad(self.prototypes, (0, 0, 0, 1))

    def drop_class(self, column: int) -> None:
        self.prototypes, self._pairs = without(self.prototypes, column), None

    def end_task(self, view: StepView) -> None:
        self.tasks_ended += 1

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        self._pairs, drawn = None, view.held.sample(size)
        number = len(drawn.slots) - int(len(drawn.slots) * (1 - self.config.alpha))
        if self.tasks_ended:
            self._pairs = mixed_pairs(view, self.prototypes.cpu(), number, self.config.mix)
        return drawn

    def loss(self, batch: Batch) -> Tensor:
        pairs, self._pairs, self._latest = self._pairs, None, self.prototypes
        plain, held = (each[batch.replayed].chunk(batch.views)[0] for each in (batch.inputs, batch.labels))
        shown, mixed = [batch.inputs[batch.incoming].chunk(batch.views)], None
        if len(held) and self.tasks_ended:
            mixed = mixed_at_random(plain, held, self.config.mix, self.rng, pairs)
            shown.append((mixed.images, self.augment(mixed.images))[: batch.views])
        incoming, *replayed = rotations.project_rotated(self.network, shown, self.features)
        loss = self._of_incoming(batch, *incoming, scale=1.0 if mixed is None else self.config.scale)
        if mixed is None:
            logits, labels = batch.logits[batch.incoming], batch.labels[batch.incoming]
            loss = loss + F.cross_entropy(logits.chunk(batch.views)[-1], labels.chunk(batch.views)[-1])
        else:
            loss = loss + self._of_mixed(batch, mixed, *replayed[0])
        if len(held):
            views = rotations.project(self.network, batch.features[batch.replayed]).chunk(batch.views)
            seen, self._latest = prototype_contrast(views, held, batch.num_classes, self.config.prototype_tau)
            loss = loss + seen
        return loss

    def _of_incoming(self, batch: Batch, projections: Tensor, features: Tensor, scale: float) -> Tensor:
        labels = batch.labels[batch.incoming].chunk(batch.views)[0]
        similar = scale * rotations.similarities(projections, features, self.rng)
        every = rotations.rotated_labels(labels, batch.num_classes).repeat(batch.views)
        contrast = rotations.contrast_views(similar, every, self.config.tau, batch.views)
        upright = [view[: len(labels)] for view in projections.chunk(batch.views)]
        apart, _ = prototype_contrast(upright, labels, batch.num_classes, self.config.prototype_tau)
        return contrast + apart

    def _of_mixed(self, batch: Batch, mixed: Mixed, projections: Tensor, features: Tensor) -> Tensor:
        similar = self.config.scale * rotations.similarities(projections, features, self.rng)
        every = rotations.rotated_labels(mixed.classes(), batch.num_classes).repeat(batch.views)
        upright = features.chunk(batch.views)[-1][: len(mixed.images)]
        contrast = rotations.contrast(similar, every, self.config.tau)
        return contrast + mixed.cross_entropy(self.network.logits(upright))

    def after_step(self, view: StepView, batch: Batch) -> None:
        self.prototypes = self._latest

    def state(self) -> dict[str, Tensor]:
        return {"prototypes": self.prototypes, "tasks_ended": torch.tensor(self.tasks_ended)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.prototypes, self.tasks_ended = state["prototypes"], int(state["tasks_ended"])


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
    views: Sequence[Tensor], labels: Tensor, num_classes: int, tau: float
) -> tuple[Tensor, Tensor]:
    """How much nearer each class's prototype is to that of its other view than to those of other classes (OPE).

    A prototype is the direction of a class's mean projection. Returns the loss, and the means over both views by class.
    """
    own = F.one_hot(labels, num_classes).to(views[0].dtype)
    counts = own.sum(0)
    means = [own.T @ view / counts.clamp_min(1)[:, None] for view in (views[0], views[-1])]
    directions = F.normalize(torch.cat(means), dim=1)
    # Classes that are not in the batch are masked, not left out: their number would be asked of the device.
    present = (counts > 0).repeat(2)
    outside = torch.eye(len(directions), dtype=torch.bool, device=labels.device) | ~present
    logits = (directions @ directions.T / tau).masked_fill(outside, torch.finfo(own.dtype).min)
    log_share = F.log_softmax(logits, dim=1)
    pairs = torch.cat([log_share.diagonal(num_classes), log_share.diagonal(-num_classes)])
    loss = -torch.where(present, pairs, 0.0).sum() / present.sum()
    return loss, ((means[0] + means[1]) / 2).detach()


def _mix(images: Tensor, others: Tensor, columns: Tensor, other_columns: Tensor, shares: np.ndarray) -> Mixed:
    share = torch.from_numpy(shares).to(images)
    weight = share[:, None, None, None]
    return Mixed((1 - weight) * images + weight * others, columns, other_columns, share)


def mixed_at_random(
    images: Tensor, columns: Tensor, chance: float, rng: np.random.Generator, last: Mixed | None = None
) -> Mixed:
    """All images mixed with one another, each with a share of 0 to 0.6 of another, or none, decided at random.

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
    (images, columns), (others, other_columns) = view.samples(first), view.samples(second)
    return _mix(images, others, columns, other_columns, shares)
