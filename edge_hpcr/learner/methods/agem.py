"""A-GEM (Chaudhry et al. 2019): learns from incoming samples alone, but never against the gradient of replayed ones.

If `g g_r < 0`: `g <- g - (g g_r)/(g_r g_r) g_r`. The publication begins with the second task; here the projection begins
with the first replayed sample, so that nobody has to say where a task ends.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.methods.method import Batch, Method, StepView


def projected(gradients: list[Tensor], reference: list[Tensor]) -> list[Tensor]:
    """The gradients without their part against the reference."""
    along = sum((g * r).sum() for g, r in zip(gradients, reference, strict=True))
    squared = sum((r * r).sum() for r in reference)
    share = torch.as_tensor(along).clamp(max=0) / torch.as_tensor(squared).clamp_min(1e-12)
    return [g - share * r for g, r in zip(gradients, reference, strict=True)]


class AGEM(Method):
    name = "agem"
    order = 116
    source = "Chaudhry et al., ICLR 2019 (arXiv 1812.00420); a public program (RaptorMai) was read"

    def loss(self, batch: Batch) -> Tensor:
        self.reference: list[Tensor] = []
        if batch.incoming_rows < len(batch.labels):
            replayed = F.cross_entropy(batch.logits[batch.replayed], batch.labels[batch.replayed])
            parameters = list(self.network.parameters())
            self.reference = list(torch.autograd.grad(replayed, parameters, retain_graph=True))
        return F.cross_entropy(batch.logits[batch.incoming], batch.labels[batch.incoming])

    def adjust_gradients(self, view: StepView, batch: Batch) -> None:
        if self.reference:
            parameters = list(view.network.parameters())
            gradients = [p.grad for p in parameters if p.grad is not None]
            for parameter, gradient in zip(parameters, projected(gradients, self.reference), strict=True):
                parameter.grad = gradient
