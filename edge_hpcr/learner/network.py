"""The model of the paper: a Reduced ResNet-18 feature extractor and a cosine classifier of proxies.

`z = h(x)` is `Network.features`, `o = f(z)` is `Network.logits`; one trainable proxy stands for one class.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.winograd import Conv3x3

SMALLEST_SIDE, LARGEST_SIDE = 8, 256
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


class Network(nn.Module):
    """Reduced ResNet-18 (`nf` filters) and one proxy a class; `logits = cos(z, w_c) / tau`.

    Classes are columns in the order of their arrival. A new proxy is appended; the old ones keep their values.
    """

    def __init__(self, side: tuple[int, int], nf: int = 20, tau: float = 0.09, seed: int = 0) -> None:
        super().__init__()
        if not all(SMALLEST_SIDE <= s <= LARGEST_SIDE for s in side):
            raise UserError(
                f"images of {side[0]}x{side[1]} pixels: the network takes {SMALLEST_SIDE} to {LARGEST_SIDE} pixels a side; "
                "resize them first"
            )
        self.tau = tau
        self.stem = nn.Conv2d(3, nf, 3, 1, 1, bias=False)
        self.stem_bn = nn.BatchNorm2d(nf)
        stages: list[nn.Module] = []
        width, height_left, width_left = nf, *side
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
        self.proxies = nn.Parameter(torch.empty(0, self.feature_size))
        self._initialise(torch.Generator().manual_seed(seed))
        self.to(memory_format=torch.channels_last)

    def _initialise(self, generator: torch.Generator) -> None:
        # PyTorch's own defaults, but from a generator of ours: a seed gives the same network whatever ran before.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)

    @property
    def num_classes(self) -> int:
        return self.proxies.shape[0]

    def append_proxy(self, proxy: Tensor) -> None:
        """One more class. The old proxies keep their values; the parameter object is a new one."""
        grown = torch.cat([self.proxies.detach(), proxy.to(self.proxies)[None]])
        self.proxies = nn.Parameter(grown, requires_grad=self.proxies.requires_grad)

    def remove_proxy(self, column: int) -> None:
        kept = [c for c in range(self.num_classes) if c != column]
        self.proxies = nn.Parameter(self.proxies.detach()[kept].clone(), self.proxies.requires_grad)

    def take_over(self, state: dict[str, Tensor]) -> None:
        """The weights of another network of this shape, which may know other classes."""
        proxies = state["proxies"].to(self.proxies)
        self.proxies = nn.Parameter(proxies.clone(), self.proxies.requires_grad)
        self.load_state_dict(state)

    def features(self, images: Tensor, groups: list[int] | None = None) -> Tensor:
        """`z = h(x)`; images are float RGB in [0, 1], [N, 3, H, W].

        `groups` are the sizes of groups of images that take batch-norm's statistics apart. It is one pass all the
        same: convolutions do not mix images, and are faster for more of them.
        """
        x = F.relu(_normalised(self.stem(images), self.stem_bn, groups), inplace=True)
        for block in self.stages:
            x = block(x, groups)
        return F.avg_pool2d(x, self.pool).flatten(1)

    def similarities(self, features: Tensor) -> Tensor:
        """Cosine of every feature with every proxy."""
        return F.normalize(features, dim=1) @ F.normalize(self.proxies, dim=1).T

    def logits(self, features: Tensor) -> Tensor:
        """`o_c = cos(z, w_c) / tau`."""
        return self.similarities(features) / self.tau

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(images)
        return self.logits(features), features
