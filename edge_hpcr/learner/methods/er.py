"""ER, experience replay (eq. erloss): cross-entropy over all classes seen, incoming and replayed samples together."""

from torch import Tensor

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


class ER(Method):
    name = "er"
    order = 80

    def loss(self, batch: Batch) -> Tensor:
        return losses.replay_cross_entropy(batch.logits, batch.labels)
