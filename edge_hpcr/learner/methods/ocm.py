"""OCM, online continual learning by mutual information: contrast among rotated images, and the previous network's view."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import check_positive
from edge_hpcr.learner.methods import rotations
from edge_hpcr.learner.methods.method import Batch, StepView
from edge_hpcr.learner.methods.shared import KeepsPrevious


@dataclass(frozen=True)
class Config:
    tau: float = 0.07  # of the contrast; the classifier has its own
    scale: float = 1.0  # of the similarities, after the first task

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)
        check_positive("scale", self.scale)


class OCM(KeepsPrevious):
    """Each image and its augmented view pass in 16 rotations. After the first task the classifier learns from replayed
    images alone, and must stay near the previous network's answers to them."""

    name = "ocm"
    order = 140
    Config = Config
    paper_options: ClassVar = {"cifar10": {"scale": 0.5}}
    source = (
        "Guo et al., ICML 2022; the program gydpku/OCM was read, whose distillation of logits the paper does not name; "
        "here the previous network's batch-norm statistics are fixed, one augmented view is rotated 16 times where it makes one of each rotation, and the learner's replay size and augmentation hold"
    )

    def begin(self, view: StepView) -> None:
        super().begin(view)
        self.rng, self.features = view.rng, view.features
        rotations.add_projection(view, self.name)

    def loss(self, batch: Batch) -> Tensor:
        # With nothing to replay there is nothing else to classify than the incoming images.
        if self.previous is None or not len(batch.labels[batch.replayed]):
            (new,) = self._project(batch, [batch.incoming])
            return self._cross_entropy(batch, batch.incoming) + self._contrast_incoming(
                batch, *new, scale=1.0
            )
        new, held = self._project(batch, [batch.incoming, batch.replayed])
        incoming = self._contrast_incoming(batch, *new, scale=self.config.scale)
        similar = self.config.scale * rotations.similarities(*held, self.rng)
        return (
            self._cross_entropy(batch, batch.replayed)
            + incoming
            + rotations.contrast(similar, self._labels(batch, batch.replayed), self.config.tau)
            + self._previous_contrast(batch, held[0])
            + self._previous_logits(batch)
        )

    def _project(self, batch: Batch, groups: list[slice]) -> list[tuple[Tensor, Tensor]]:
        views = [batch.inputs[group].chunk(batch.views) for group in groups]
        return rotations.project_rotated(self.network, views, self.features)

    @staticmethod
    def _labels(batch: Batch, group: slice, views: int | None = None) -> Tensor:
        labels = batch.labels[group].chunk(batch.views)[0]
        return rotations.rotated_labels(labels, batch.num_classes).repeat(views or batch.views)

    def _contrast_incoming(self, batch: Batch, projections: Tensor, features: Tensor, scale: float) -> Tensor:
        similar = scale * rotations.similarities(projections, features, self.rng)
        labels = self._labels(batch, batch.incoming)
        return rotations.contrast_views(similar, labels, self.config.tau, batch.views)

    @staticmethod
    def _cross_entropy(batch: Batch, group: slice) -> Tensor:
        """Of the augmented views."""
        logits, labels = (each[group].chunk(batch.views)[-1] for each in (batch.logits, batch.labels))
        return F.cross_entropy(logits, labels)

    def _previous_contrast(self, batch: Batch, projections: Tensor) -> Tensor:
        """Replayed images against what the previous network makes of the same images (L_prev)."""
        assert self.previous is not None
        plain = batch.inputs[batch.replayed].chunk(batch.views)[0]
        with torch.no_grad():
            features = self.features(self.previous, rotations.rotated(plain))
            keys = rotations.project(self.previous, features)
        labels = self._labels(batch, batch.replayed, views=1)
        return rotations.contrast(projections[: len(keys)] @ keys.T, labels, self.config.tau)

    def _previous_logits(self, batch: Batch) -> Tensor:
        """The squared distance to the previous network's logits of the classes that it knows."""
        assert self.previous is not None
        if not self.old_classes:
            return batch.logits.new_zeros(())
        inputs, logits = (
            each[batch.replayed].chunk(batch.views)[-1] for each in (batch.inputs, batch.logits)
        )
        with torch.no_grad():
            before = self.previous.logits(self.features(self.previous, inputs))
        return F.mse_loss(logits[:, : self.old_classes], before)
