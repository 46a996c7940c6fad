"""ER-ACE (Caccia et al. 2022): an incoming sample competes only with the classes of the incoming batch.

`CE(B; classes of B) + CE(B_M; all)`, each row of the batch with the same weight, as in eq. erloss. The publication adds
the two means, and lets classes compete that nobody has seen; a classifier that grows has none.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method


def only_classes_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits, with all classes that are not among the labels out of the competition."""
    absent = losses.class_counts(labels, logits.shape[1]) == 0
    return logits.masked_fill(absent, torch.finfo(logits.dtype).min)


class ERACE(Method):
    name = "er_ace"
    order = 118
    source = "Caccia et al., ICLR 2022 (arXiv 2104.05025); the authors' program (AML) was read"

    def loss(self, batch: Batch) -> Tensor:
        incoming = only_classes_of(batch.logits[batch.incoming], batch.labels[batch.incoming])
        return F.cross_entropy(torch.cat([incoming, batch.logits[batch.replayed]]), batch.labels)
