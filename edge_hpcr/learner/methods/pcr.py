"""PCR (eq. pcrloss): only proxies of classes that are in the batch compete."""

from torch import Tensor

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


class PCR(Method):
    def loss(self, batch: Batch) -> Tensor:
        return losses.pcr(batch.logits, batch.labels)


METHOD = PCR
