"""ER, experience replay; what changes its cross-entropy alone; and the references of the paper's tables."""

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.method import Batch, Method


class ER(Method):
    """Cross-entropy over all classes seen, incoming and replayed samples together (eq. erloss)."""

    name = "er"
    order = 80
    source = "Chaudhry et al. 2019, Rolnick et al. 2019; public programs (RaptorMai, AML) were read, which add two means where the paper's equation takes one"

    def loss(self, batch: Batch) -> Tensor:
        return losses.replay_cross_entropy(batch.logits, batch.labels)


def only_classes_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits, with all classes that are not among the labels out of the competition."""
    absent = losses.class_counts(labels, logits.shape[1]) == 0
    return logits.masked_fill(absent, torch.finfo(logits.dtype).min)


class ERACE(Method):
    """ER-ACE: an incoming sample competes only with the classes of the incoming batch.

    `CE(B; classes of B) + CE(B_M; all)`, each row of the batch with the same weight, as in eq. erloss. The publication adds
    the two means, and lets classes compete that nobody has seen; a classifier that grows has none.
    """

    name = "er_ace"
    order = 118
    source = "Caccia et al., ICLR 2022 (arXiv 2104.05025); the authors' program (AML) was read"

    def loss(self, batch: Batch) -> Tensor:
        incoming = only_classes_of(batch.logits[batch.incoming], batch.labels[batch.incoming])
        return F.cross_entropy(torch.cat([incoming, batch.logits[batch.replayed]]), batch.labels)


class UER(Method):
    """UER: incoming samples learn by the angle to the proxies alone, replayed ones by angle and length.

    `CE(B; cos(z, w)/tau) + CE(B_M; z w)`, each row of the batch with the same weight. It predicts by `z w`, and `tau` is
    PCR's: both are remembered, not read.
    """

    name = "uer"
    order = 135
    from_description = True
    source = "Lin et al., ACM MM 2023 (arXiv 2309.04081), abstract only; no program; temperature and prediction from memory, without a source"
    linear = True

    def loss(self, batch: Batch) -> Tensor:
        angles = self.network.similarities(batch.features[batch.incoming]) / batch.tau
        return F.cross_entropy(torch.cat([angles, batch.logits[batch.replayed]]), batch.labels)


class FineTune(ER):
    """No memory at all (eq. oclloss): the lower reference."""

    name = "finetune"
    order = 90
    source = "the paper's lower reference"
    uses_memory = False


class IID(FineTune):
    """One pass over the whole data, shuffled, without tasks."""

    name = "iid"
    order = 100
    source = "the paper's reference without tasks"
    shuffled_passes = 1


class IIDPlusPlus(FineTune):
    """Shuffled data with a replay method's compute, 20 samples per step for as many steps.

    A replay method takes one step for every 10 incoming samples; 20 samples in each of those steps are two passes.
    """

    name = "iid_pp"
    order = 110
    source = "Caccia et al., ICLR 2022; their program (AML) was read"
    shuffled_passes = 2
    samples_per_step = 20
