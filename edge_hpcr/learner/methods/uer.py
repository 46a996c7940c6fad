"""UER (Lin et al. 2023): incoming samples learn by the angle to the proxies alone, replayed ones by angle and length.

`CE(B; cos(z, w)/tau) + CE(B_M; z w)`, each row of the batch with the same weight. It predicts by `z w`, and `tau` is
PCR's: both are remembered, not read.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.methods.contract import Batch, Method, StepView


class UER(Method):
    name = "uer"
    order = 135
    source = "Lin et al., ACM MM 2023 (arXiv 2309.04081), abstract only; no program; temperature and prediction remembered"
    linear = True

    def begin(self, view: StepView) -> None:
        self.network = view.network

    def loss(self, batch: Batch) -> Tensor:
        angles = self.network.similarities(batch.features[batch.incoming]) / batch.tau
        return F.cross_entropy(torch.cat([angles, batch.logits[batch.replayed]]), batch.labels)
