"""Couple 2 (eq. coupleloss2): anchor-to-sample pairs as further rivals in the cross-entropy."""

from torch import Tensor

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


class Couple2(Method):
    name = "couple_2"
    order = 70

    def loss(self, batch: Batch) -> Tensor:
        return losses.cross_entropy_with_samples(batch.logits, batch.features, batch.labels, batch.tau)
