"""The paper's Reduced ResNet-18, trained from scratch: no trunk, everything is trainable."""

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from edge_hpcr.learner.backbones.backbone import Backbone, BackboneConfig
from edge_hpcr.learner.backbones.winograd import Conv3x3

POOL = 4
STRIDES = (1, 2, 2, 2)
BLOCKS_PER_STAGE = 2


class BasicBlock(nn.Module):
    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(width_in, width_out, stride)
        self.bn1 = nn.BatchNorm2d(width_out)
        self.conv2 = Conv3x3(width_out, width_out)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.stride = stride
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: Tensor, groups: list[int] | None = None) -> Tensor:
        out = F.relu(_normalised(self.conv1(x), self.bn1, groups), inplace=True)
        out = _normalised(self.conv2(out), self.bn2, groups)
        if self.shortcut is None:
            out += x
            return F.relu(out, inplace=True)
        convolution, batch_norm = self.shortcut
        # The same as a 1x1 convolution with this stride, whose gradient oneDNN 3.13 computes outside its buffers when
        # a layer has fewer than 8 channels (seen as a corrupted heap).
        out += _normalised(convolution(x[:, :, :: self.stride, :: self.stride]), batch_norm, groups)
        return F.relu(out, inplace=True)


def _normalised(x: Tensor, batch_norm: nn.Module, groups: list[int] | None) -> Tensor:
    """Batch-norm with the statistics of each group of rows for itself."""
    return batch_norm(x) if groups is None else torch.cat([batch_norm(part) for part in x.split(groups)])


class ReducedResNet18(Backbone):
    name = "reduced_resnet18"

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config)
        nf = config.nf
        self.stem = nn.Conv2d(3, nf, 3, 1, 1, bias=False)
        self.stem_bn = nn.BatchNorm2d(nf)
        stages: list[nn.Module] = []
        width, height_left, width_left = nf, config.height, config.width
        for index, stride in enumerate(STRIDES):
            width_out = nf * 2**index
            for block in range(BLOCKS_PER_STAGE):
                stages.append(BasicBlock(width, width_out, stride if block == 0 else 1))
                width = width_out
            height_left, width_left = math.ceil(height_left / stride), math.ceil(width_left / stride)
        self.stages = nn.Sequential(*stages)
        # Small images leave a map smaller than the paper's 4x4 window: then the window is the whole map.
        self.pool = (min(POOL, height_left), min(POOL, width_left))
        self.feature_size = width * (height_left // self.pool[0]) * (width_left // self.pool[1])
        self._initialise(torch.Generator().manual_seed(config.seed))
        self.to(memory_format=torch.channels_last)

    def _initialise(self, generator: torch.Generator) -> None:
        # PyTorch's own defaults, but from a generator of ours: a seed gives the same network whatever ran before.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)

    def forward(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        x = F.relu(_normalised(self.stem(inputs), self.stem_bn, groups), inplace=True)
        for block in self.stages:
            x = block(x, groups)
        return F.avg_pool2d(x, self.pool).flatten(1)

    def deployable(self) -> nn.Module:
        """A copy with each batch-norm, whose statistics are fixed, inside the convolution before it."""
        network = copy.deepcopy(self).eval().requires_grad_(False)

        def fuse(convolution: nn.Conv2d, batch_norm: Any) -> nn.Conv2d:
            return fuse_conv_bn_eval(convolution, batch_norm)

        network.stem, network.stem_bn = fuse(network.stem, network.stem_bn), nn.Identity()  # type: ignore[assignment]
        blocks: Iterable[Any] = network.stages
        for block in blocks:
            block.conv1, block.bn1 = fuse(block.conv1, block.bn1), nn.Identity()
            block.conv2, block.bn2 = fuse(block.conv2, block.bn2), nn.Identity()
            if block.shortcut is not None:
                convolution = fuse(*block.shortcut)
                # The network slices the map instead, for the sake of a gradient; ONNX Runtime would copy it for that.
                convolution.stride, block.stride = (block.stride, block.stride), 1
                block.shortcut = nn.Sequential(convolution, nn.Identity())
        return network
