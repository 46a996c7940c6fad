"""EfficientNet-Lite0 whose last stages learn: for pictures unlike photographs, at the cost of slower steps.

The trunk ends before the last two stages. The memory keeps its map, which has a place for every part of the picture, so
that what learns can find shapes that ImageNet's features do not tell apart (docs/few-labels.md).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from edge_hpcr.learner.backbones.contract import BackboneConfig, Trunk
from edge_hpcr.learner.backbones.efficientnet_lite0 import (
    SHA256,
    STAGES,
    EfficientNetLite0,
    Levels,
    pretrained,
    scale_of,
)

FIRST = 5  # the first stage that learns
PARTS = 1 + sum(blocks for *_, blocks in STAGES[:FIRST])  # of the network, below it: the stem and the blocks


class EfficientNetLite0Tuned(EfficientNetLite0):
    name = "efficientnet_lite0_tuned"
    default_size = 160
    recommended: ClassVar = {**EfficientNetLite0.recommended, "lr": 3e-4, "replay": 20}

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config)
        self.last = Levels(config.height, config.width, first=PARTS)

    @staticmethod
    @lru_cache(maxsize=2)
    def make_trunk(height: int, width: int) -> Trunk:
        scale = scale_of(FIRST - 1)
        shape = (STAGES[FIRST - 1][1], math.ceil(height / scale), math.ceil(width / scale))
        return Trunk(pretrained()[:PARTS], shape, SHA256)

    def levels(self, inputs: Tensor) -> Tensor:
        return self.last(inputs)
