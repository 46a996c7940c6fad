"""SCR (Mai et al. 2021): contrasts samples with samples (eq. scrloss) in a projection, and answers by class means.

The means are of the normalised features of all samples in memory. The publication replays 100 samples a step and reviews
the memory after each task, with a tenth of the learning rate (`replay=100`, `review=true`); the paper's row replays 10.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.common.errors import check_positive
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method, StepView
from edge_hpcr.learner.network import Classifier, Network

PROJECTION = 128
AT_ONCE = 256  # samples in a pass for the means


@dataclass(frozen=True)
class Config:
    temperature: float = 0.1
    review: bool = False  # one more pass over the memory when a task ends

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)


class SCR(Method):
    name = "scr"
    order = 126
    source = "Mai et al., CVPR workshops 2021 (arXiv 2103.13885); the authors' program (RaptorMai) was read"
    known_difference = "batch-norm takes its statistics of incoming and replayed images apart, the program of images and views"
    Config = Config

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.needs_boundaries = self.config.review

    def begin(self, view: StepView) -> None:
        self.network = view.network
        size = view.network.feature_size
        first, second = (view.linear(size, outputs) for outputs in (size, PROJECTION))
        view.network.extra["projection"] = nn.Sequential(first, nn.ReLU(), second)

    def loss(self, batch: Batch) -> Tensor:
        return self.contrast(batch.features, batch.labels)

    def contrast(self, features: Tensor, labels: Tensor) -> Tensor:
        projected = self.network.extra["projection"](features)
        return losses.supervised_contrastive(projected, labels, self.config.temperature)

    def end_task(self, view: StepView) -> None:
        """The review: one pass over the memory, in whole batches of the replay's size."""
        order = view.rng.permutation(len(view.held)) if self.config.review else np.empty(0, np.int64)
        ends = range(0, len(order) + 1, max(2, view.replay))
        parameters: list[Tensor] = [p for name, p in view.network.named_parameters() if name != "proxies"]
        for start, end in pairwise(ends):
            held, network = view.held.at(order[start:end]), view.network.train()
            plain, labels = view.plain(held.inputs), torch.from_numpy(held.labels).to(view.device)
            features = network.features(torch.cat([plain, view.augment(plain)]))
            gradients = torch.autograd.grad(self.contrast(features, labels.repeat(2)), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-view.lr / 10)

    @torch.no_grad()
    def classifier(self, view: StepView, network: Network) -> Classifier:
        """The class means as proxies; a class without a sample in memory keeps the one it has."""
        sums, counts = torch.zeros_like(network.proxies), torch.zeros(network.num_classes, device=view.device)
        for start in range(0, len(view.held), AT_ONCE):
            held = view.held.at(np.arange(start, min(start + AT_ONCE, len(view.held))))
            columns = torch.from_numpy(held.labels).to(view.device)
            features = F.normalize(network.eval().features(view.plain(held.inputs)), dim=1)
            sums.index_add_(0, columns, features)
            counts.index_add_(0, columns, torch.ones_like(columns, dtype=counts.dtype))
        present = counts > 0
        network.proxies[present] = F.normalize(sums[present] / counts[present, None], dim=1)
        return Classifier.by_proxies(network)
