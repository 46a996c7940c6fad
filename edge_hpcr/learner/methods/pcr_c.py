"""PCR + HC, the ablation row (eq. pcr+): anchor-to-sample pairs in every batch, however small."""

from torch import Tensor

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


class PCRContrastive(Method):
    def loss(self, batch: Batch) -> Tensor:
        return losses.pcr_contrastive(batch.logits, batch.features, batch.labels, batch.tau)


METHOD = PCRContrastive
