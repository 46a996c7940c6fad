"""An exponential average of a network's weights: one more copy of it, and no forward pass."""

import copy

import torch

from edge_hpcr.learner.network import Network

WARM_UP = 10  # steps in which the average forgets its random start


class WeightAverage:
    """`average <- decay * average + (1 - decay) * live` after every step, batch-norm statistics included."""

    def __init__(self, network: Network, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, live: Network, step: int) -> None:
        decay = min(self.decay, (1 + step) / (WARM_UP + step))
        for average, current in zip(
            self.network.state_dict().values(), live.state_dict().values(), strict=True
        ):
            if average.is_floating_point():
                average.lerp_(current, 1 - decay)
            else:
                average.copy_(current)  # batch-norm's step counter
