"""ER, experience replay (eq. erloss): cross-entropy over all classes seen, incoming and replayed samples together."""

from torch import Tensor

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


class ER(Method):
    name = "er"
    order = 80
    source = "Chaudhry et al. 2019, Rolnick et al. 2019; public programs (RaptorMai, AML) were read, which add two means where the paper's equation takes one"

    def loss(self, batch: Batch) -> Tensor:
        return losses.replay_cross_entropy(batch.logits, batch.labels)
