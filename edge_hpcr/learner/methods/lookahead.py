"""What a step on the incoming samples alone would do, for methods that choose or edit what they replay by it."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.methods.contract import StepView
from edge_hpcr.learner.network import Network


def cross_entropy(network: Network, plain: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(network.logits(network.features(plain)), labels)


def after_virtual_step(
    view: StepView,
    inputs: np.ndarray,
    columns: np.ndarray,
    loss: Callable[[Network, Tensor, Tensor], Tensor] = cross_entropy,
) -> Network:
    """A copy of the network, one SGD step further on the loss of these samples; in evaluation mode.

    On a copy, because the pass moves batch-norm's statistics; in the copy they stay moved, as after a real step.
    """
    network = copy.deepcopy(view.network).train(len(inputs) > 1)
    with torch.enable_grad():
        loss(network, view.plain(inputs), torch.from_numpy(columns).to(view.device)).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=view.lr)
    return network.eval().requires_grad_(False)
