"""A small trainable term beside something frozen."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Adapter(nn.Module):
    """A bottleneck whose output starts at zero: what it is added to is unchanged until learning changes it."""

    def __init__(self, size: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Linear(size, hidden)
        self.up = nn.Linear(hidden, size, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5), generator=generator)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.relu(self.down(x)))
