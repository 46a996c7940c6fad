"""ER-DVC, dual view consistency: two views of a sample say the same, alone and together."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import check_at_least
from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.method import Batch, Method, StepView
from edge_hpcr.learner.methods.shared import after_virtual_step, most_enlarged
from edge_hpcr.learner.network import ClassRows, Network

# The joint classifier: from both views' logits to hidden units, and from those to logits of its own.
INTO, OUT = "joint_in", "joint_out"
UNITS = 128


@dataclass(frozen=True)
class Config:
    lam: float = 4.0  # lambda: of the distance between what the views say
    classes: int = 100  # of the data set: the authors' distance is a mean over all of them from the start
    candidates: int = 50  # among which those to replay are chosen

    def __post_init__(self) -> None:
        check_at_least(0, self, "lam")
        check_at_least(1, self, "classes", "candidates")


class ERDVC(Method):
    """Replays the samples whose gradient a step on the incoming ones alone would enlarge most (MGI)."""

    name = "er_dvc"
    order = 130
    Config = Config
    paper_options: ClassVar = {"cifar10": {"lam": 2.0, "classes": 10}, "tiny_imagenet": {"classes": 200}}
    source = (
        "Gu et al., CVPR 2022; the program YananGu/DVC was read; here the joint classifier grows with the classes and has "
        "no biases, and candidates are scored with fixed batch-norm statistics; the program's mean over all classes of the "
        "data was taken over after a look at digits' test accuracy"
    )

    def begin(self, view: StepView) -> None:
        super().begin(view)
        self.seed = int(view.rng.integers(2**31))  # a restored learner draws the same
        view.network.extra[INTO] = ClassRows(2 * UNITS, view.device)
        view.network.extra[OUT] = ClassRows(UNITS, view.device)

    @torch.no_grad()
    def add_class(self) -> None:
        # From zero, one of the two layers would keep the gradient from the other.
        column = self.network.num_classes - 1
        generator, bound = torch.Generator().manual_seed(self.seed + column), UNITS**-0.5
        for name in (INTO, OUT):
            row = self.network.get_parameter(f"extra.{name}.weight")[column]
            row.copy_(torch.empty(row.shape).uniform_(-bound, bound, generator=generator))

    def loss(self, batch: Batch) -> Tensor:
        parts = [part for part in (batch.incoming, batch.replayed) if len(batch.labels[part])]
        return torch.stack([self._of_group(batch, part) for part in parts]).sum()

    def _of_group(self, batch: Batch, group: slice) -> Tensor:
        features, labels = batch.features[group], batch.labels[group]
        # Without augmented views an image is its own second view.
        first, second = features.chunk(2) if batch.views == 2 else (features, features)
        return self._of_views(self.network, first, second, labels[: len(first)])

    def _of_views(self, network: Network, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        one, two = network.logits(first), network.logits(second)
        of_first, of_second = network.get_parameter(f"extra.{INTO}.weight").split(UNITS, dim=1)
        together = network.extra[OUT](F.relu(one @ of_first + two @ of_second))
        return dual_view(one, two, together, labels, self.config.lam / self.config.classes)

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        drawn = view.held.sample(self.config.candidates)
        if len(drawn.slots) <= size:
            return drawn

        def own_loss(network: Network, plain: Tensor, labels: Tensor) -> Tensor:
            features = network.features(torch.cat([plain, view.augment(plain)]))
            return self._of_views(network, features[: len(plain)], features[len(plain) :], labels)

        later = after_virtual_step(view, inputs, columns, own_loss)
        return most_enlarged(view, drawn, later, gradient_size, size)


def dual_view(first: Tensor, second: Tensor, together: Tensor, labels: Tensor, weight: float) -> Tensor:
    """The loss of two views' logits and of those of both together.

    Cross-entropy, minus the mean entropy of the three average answers to the batch (so that it does not
    collapse to few classes), plus `weight` times how far the views' probabilities are from the joint ones in sum.
    """
    cross_entropy = F.cross_entropy(torch.cat([first, second]), labels.repeat(2))
    one, two, both = first.softmax(1), second.softmax(1), together.softmax(1)
    means = torch.stack([one, two, both]).mean(1)
    means = means.clamp_min(torch.finfo(means.dtype).tiny)
    distance = (torch.cat([one, two]) - both.repeat(2, 1)).abs().sum(1).mean()
    return cross_entropy + (means * means.log()).sum() / 3 + weight * distance


def gradient_size(network: Network, samples: Tensor, labels: Tensor) -> Tensor:
    """How large the classifier's gradient of each sample is: |softmax(o) - 1_y| |z|, both as sums of magnitudes."""
    features = network.features(samples)
    logits = network.logits(features)
    error = logits.softmax(1) - F.one_hot(labels, logits.shape[1])
    return error.abs().sum(1) * features.abs().sum(1)
