"""OnPro, online prototypes: OCM's contrast, class prototypes that keep apart, and mixtures of classes that are near."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError, check_positive
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods import rotations
from edge_hpcr.learner.methods.closed_form import without
from edge_hpcr.learner.methods.contract import Batch, Method, StepView
from edge_hpcr.learner.methods.prototypes import Mixed, mixed_at_random, mixed_pairs, prototype_contrast
from edge_hpcr.learner.network import Network

PAPER_OPTIONS = {"cifar10": {"alpha": 0.25, "mix": 0.6, "scale": 0.5}}


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
    paper_options = PAPER_OPTIONS
    needs_boundaries = True
    source = (
        "Wei et al., ICCV 2023; the program weilllllls/OnPro was read; here pairs of classes are drawn by their "
        "probabilities, where it rounds numbers of pairs; and the upright ones among all rotated images are classified, where it passes the replayed ones once more"
    )
    network: Network
    # Of the last replayed images, in both views: where the classes that were among them are; others are zero.
    prototypes: Tensor
    _pairs: Mixed | None = None  # drawn with the replayed images, for the loss of the same step

    def begin(self, view: StepView) -> None:
        self.network, self.rng = view.network, view.rng
        self.augment, self.features = view.augment, view.features
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
