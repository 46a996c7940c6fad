"""OBC (Chrysakis and Moens 2023): the network learns as in ER, but its classifier from replayed samples alone.

ER's loss goes through a surrogate classifier, which teaches the features and is used for nothing else; the proxies, which
answer, follow a fresh draw from memory, with features as they are used for predictions. Of the publication the abstract and
the introduction were read (the classifier is optimised apart from the layers before it); the surrogate stands in a public
program of others (`er_obc`, built on Mammoth), commented out. The size of the fresh draw is ER's.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.method import Batch, StepView
from edge_hpcr.learner.network import ClassRows


class OBC(ER):
    name = "obc"
    order = 132
    from_description = True
    source = (
        "Chrysakis and Moens, ICLR 2023, abstract and introduction only; the surrogate loss follows a program of others; here the "
        "classifier follows 10 plain images per step, where that program takes 50 augmented ones"
    )
    earlier: ClassVar = {"surrogate": False}
    gone: ClassVar = {"surrogate": True}

    def begin(self, view: StepView) -> None:
        super().begin(view)
        self.surrogate = ClassRows(view.network.feature_size, view.device)
        self.network.extra["surrogate"] = self.surrogate

    @torch.no_grad()
    def add_class(self) -> None:
        """The surrogate's row starts where the proxy does: an angle to zero has no meaning."""
        self.surrogate.weight[-1] = self.network.proxies[-1]

    def loss(self, batch: Batch) -> Tensor:
        rows = F.normalize(self.surrogate.weight, dim=1)
        logits = F.normalize(batch.features, dim=1) @ rows.T / batch.tau
        return losses.replay_cross_entropy(logits, batch.labels)

    def adjust_gradients(self, view: StepView, batch: Batch) -> None:
        network = view.network
        if batch.incoming_rows == len(batch.labels):
            # While nothing is replayed, only the incoming samples can teach the classifier.
            if self.surrogate.weight.grad is not None:
                network.proxies.grad = self.surrogate.weight.grad.clone()
            return
        inputs, labels = view.samples(view.held.sample(view.replay))
        network.eval()
        with torch.no_grad():
            features = network.features(inputs)
        loss = F.cross_entropy(network.logits(features), labels)
        (network.proxies.grad,) = torch.autograd.grad(loss, [network.proxies])
