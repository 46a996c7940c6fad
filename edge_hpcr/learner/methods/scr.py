"""SCR (Mai et al. 2021): contrasts samples with samples (eq. scrloss) in a projection, and answers by class means.

The means are of the normalised features of all samples in memory. The publication replays 100 samples per step (`replay=100`)
and its program reviews the memory after each task; the paper's row replays 10.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.method import Batch, Method, StepView
from edge_hpcr.learner.network import Classifier, Network

TEMPERATURE = 0.1
PROJECTION = 128
AT_ONCE = 256  # samples in a pass for the means


class SCR(Method):
    name = "scr"
    order = 126
    source = (
        "Mai et al., CVPR workshops 2021 (arXiv 2103.13885); the authors' program (RaptorMai) was read; here batch-norm takes "
        "its statistics of incoming and replayed images apart, there of images and views"
    )
    gone: ClassVar = {"review": False, "temperature": TEMPERATURE}

    def begin(self, view: StepView) -> None:
        super().begin(view)
        size = view.network.feature_size
        first, second = (view.linear(size, outputs) for outputs in (size, PROJECTION))
        view.network.extra["projection"] = nn.Sequential(first, nn.ReLU(), second)

    def loss(self, batch: Batch) -> Tensor:
        projected = self.network.extra["projection"](batch.features)
        return losses.supervised_contrastive(projected, batch.labels, TEMPERATURE)

    @torch.no_grad()
    def classifier(self, view: StepView, network: Network) -> Classifier:
        """The class means as proxies; a class without a sample in memory keeps the one it has."""
        sums, counts = torch.zeros_like(network.proxies), torch.zeros(network.num_classes, device=view.device)
        for start in range(0, len(view.held), AT_ONCE):
            held = view.held.at(np.arange(start, min(start + AT_ONCE, len(view.held))))
            inputs, columns = view.samples(held)
            features = F.normalize(network.eval().features(inputs), dim=1)
            sums.index_add_(0, columns, features)
            counts.index_add_(0, columns, torch.ones_like(columns, dtype=counts.dtype))
        present = counts > 0
        network.proxies[present] = F.normalize(sums[present] / counts[present, None], dim=1)
        return Classifier.by_proxies(network)
