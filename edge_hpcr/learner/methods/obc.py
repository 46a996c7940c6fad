"""OBC (Chrysakis and Moens 2023): the network learns as in ER, but its classifier from replayed samples alone.

The step's gradient of the proxies is dropped; that of a fresh draw from memory takes its place, with features as they are
used for predictions. The mechanism is remembered: of the publication only the abstract was read.
"""

import torch
from torch.nn import functional as F

from edge_hpcr.learner.methods.contract import Batch, StepView
from edge_hpcr.learner.methods.er import ER


class OBC(ER):
    name = "obc"
    order = 132
    source = "Chrysakis and Moens, ICLR 2023, abstract only; no program; the mechanism is remembered"
    known_difference = "the mechanism is remembered"

    def adjust_gradients(self, view: StepView, batch: Batch) -> None:
        if batch.incoming_rows == len(batch.labels):
            return  # while nothing is replayed, only the incoming samples can teach the classifier
        drawn, network = view.held.sample(view.replay), view.network.eval()
        with torch.no_grad():
            features = network.features(view.plain(drawn.inputs))
        loss = F.cross_entropy(network.logits(features), torch.from_numpy(drawn.labels).to(view.device))
        (network.proxies.grad,) = torch.autograd.grad(loss, [network.proxies])
