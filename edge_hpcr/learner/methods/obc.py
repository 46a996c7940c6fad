"""OBC (Chrysakis and Moens 2023): the network learns as in ER, but its classifier from replayed samples alone.

The step's change of the proxies is dropped; a fresh draw from memory, with features as they are used for predictions,
gives them one step of their own. The mechanism is remembered: of the publication only the abstract was read.
"""

import torch
from torch.nn import functional as F

from edge_hpcr.learner.methods.contract import Batch, StepView
from edge_hpcr.learner.methods.er import ER


class OBC(ER):
    name = "obc"
    order = 132
    source = "Chrysakis and Moens, ICLR 2023, abstract only; no program; the mechanism is remembered"

    def adjust_gradients(self, view: StepView, batch: Batch) -> None:
        self.size = len(batch.labels) // batch.views - batch.incoming_rows // batch.views
        if self.size:  # while nothing is replayed, only the incoming samples can teach the classifier
            view.network.proxies.grad = None

    def after_step(self, view: StepView, batch: Batch) -> None:
        if not self.size:
            return
        drawn, network = view.held.sample(self.size), view.network.eval()
        with torch.no_grad():
            features = network.features(view.plain(drawn.inputs))
        with torch.enable_grad():
            loss = F.cross_entropy(network.logits(features), torch.from_numpy(drawn.labels).to(view.device))
            (gradient,) = torch.autograd.grad(loss, [network.proxies])
        with torch.no_grad():
            network.proxies.sub_(view.lr * gradient)
