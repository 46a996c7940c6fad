"""Couple 1 (eq. coupleloss1): the proxy-based and the contrastive-based loss, simply added."""

from torch import Tensor

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


class Couple1(Method):
    name = "couple_1"
    order = 60

    def loss(self, batch: Batch) -> Tensor:
        contrastive = losses.supervised_contrastive(batch.features, batch.labels, batch.tau)
        return losses.replay_cross_entropy(batch.logits, batch.labels) + contrastive
