"""What a backbone is: a frozen trunk that an image passes once, and a trainable part that learns from what it says."""

from __future__ import annotations

import copy
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256, weights_file


@dataclass(frozen=True)
class BackboneConfig:
    """What a backbone is made from."""

    height: int
    width: int
    nf: int = 20  # filters of a backbone that is trained from scratch
    seed: int = 0


HIDDEN = 64  # units of an adapter; the authors of the paper's pre-trained rows use as many
CENTRE_PRIOR = 10  # samples at the origin that the mean of all samples starts with
# Images in a pass on a processor, whose cache holds what they need: at 224 pixels an image among 50 takes 1.7 times as long.
CPU_PORTION = 4


class Trunk:
    """From float RGB images in [0, 1], [N, 3, H, W], to latents [N, *latent_shape].

    It never learns: all copies of a network share it, and no checkpoint holds it. It is made when it is first asked: that
    takes seconds and much memory, and where ONNX Runtime has its file, nobody may ever ask.

    A latent may end with the vectors of the picture's places, `place_size` numbers each, which stand side by side.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        latent_shape: tuple[int, ...],
        sha256: str,
        weight_bytes: int,
        places: int = 0,
        place_size: int = 0,
    ) -> None:
        self._make = make
        self._by_device: dict[torch.device, nn.Module] = {}
        self._lock = threading.Lock()
        self.latent_shape = latent_shape
        self.sha256 = sha256  # of its weights, which a checkpoint names
        self.weight_bytes = weight_bytes
        self.places, self.place_size = places, place_size

    def on(self, device: torch.device) -> nn.Module:
        # Any thread may be the first to ask, also one that predicts, whose tensors are made without what training needs.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            host = torch.device("cpu")
            if not self._by_device:
                self._by_device[host] = self._make().eval().requires_grad_(False)
            if device not in self._by_device:
                self._by_device[device] = copy.deepcopy(self._by_device[host]).to(device)
            return self._by_device[device]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def with_places(self, count: int) -> tuple[int, ...]:
        """The shape of a latent with so many places only."""
        return (*self.latent_shape[:-1], self.latent_shape[-1] - (self.places - count) * self.place_size)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        module = self.on(images.device)
        if images.device.type != "cpu" or len(images) <= CPU_PORTION:
            return module(images)
        return torch.cat([module(part) for part in images.split(CPU_PORTION)])


class Backbone(nn.Module, ABC):
    """The trainable part, and the trunk below it if there is one. One file for each; found by `name`."""

    name: ClassVar[str]
    default_size: ClassVar[int] = 32  # of square images, in pixels
    smallest_side: ClassVar[int] = 8
    largest_side: ClassVar[int] = 256
    has_trunk: ClassVar[bool] = False  # then the memory keeps latents
    suited_method: ClassVar[str] = "hpcr"  # where nobody says another
    # Fields of LearnerConfig whose values with this backbone are not the paper's.
    recommended: ClassVar[Mapping[str, Any]] = {}

    feature_size: int
    trunk: Trunk | None = None  # None: the trainable part sees the images themselves

    @abstractmethod
    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        if not all(self.smallest_side <= side <= self.largest_side for side in (config.height, config.width)):
            raise UserError(
                f"images of {config.height}x{config.width} pixels: the backbone {self.name} takes {self.smallest_side} "
                f"to {self.largest_side} pixels per side; resize them first"
            )

    @abstractmethod
    def forward(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        """Features [N, feature_size] of latents, or of float RGB images in [0, 1] if there is no trunk.

        `groups` are the sizes of groups of rows that take batch-norm's statistics apart. It is one pass all the same:
        convolutions do not mix images, and are faster for more of them.
        """

    def follow(self, inputs: Tensor, classes: int) -> Callable[[Tensor], Tensor] | None:
        """Take in statistics of new samples, if the backbone keeps any, with the number of classes known.

        Returns how that moves features, so that proxies can move with them. It may change its argument: with thousands of
        classes each copy of the proxies takes time.
        """
        return None

    def deployable(self) -> nn.Module:
        """A copy of the trainable part for inference."""
        return copy.deepcopy(self).eval().requires_grad_(False)


class Adapter(nn.Module):
    """A bottleneck beside something frozen: its output starts at zero, so nothing changes until learning changes it."""

    def __init__(self, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Linear(size, HIDDEN)
        self.up = nn.Linear(HIDDEN, size, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5), generator=generator)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.relu(self.down(x)))


class Centred(Backbone):
    """A frozen trunk's features around the mean of all that were seen, with a small adapter beside them that learns."""

    has_trunk = True
    recommended: ClassVar = {
        "imprint": True,
        "views": False,
        # A record made when few classes were known holds a sample back from what later ones teach; with a trunk the
        # features cannot drift far, and there is little to distil. Sample pairs cost accuracy as well.
        "method_options": {"alpha": 0.0, "beta": 0.0, "distil_new": "none", "smallest_batch": 1_000_000},
        "optimiser": "adam",
        "lr": 1e-5,
        "proxy_lr": 3e-3,
        "replay": 100,
        "ema_decay": 0.9,
    }

    centre: Tensor
    seen: Tensor

    def __init__(self, config: BackboneConfig, trunk: Trunk, size: int) -> None:
        super().__init__(config)
        self.trunk = trunk
        self.feature_size = size
        self.adapter = Adapter(size, torch.Generator().manual_seed(config.seed))
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("seen", torch.zeros(()))

    def plain(self, inputs: Tensor) -> Tensor:
        """What of the latents becomes features."""
        return inputs

    def forward(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        centred = self.centred(inputs)
        return centred + self.adapter(centred)

    def centred(self, inputs: Tensor) -> Tensor:
        return self.plain(inputs) - self.centre

    def deployable(self) -> nn.Module:
        """Without the number of samples seen, which only learning needs."""
        network = super().deployable()
        del network.seen
        return network

    def follow(self, inputs: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
        """Move the centre to the mean of all samples seen (and a little of the origin)."""
        self.seen += len(inputs)
        step = (self.plain(inputs) - self.centre).sum(0) / (self.seen + CENTRE_PRIOR)
        self.centre += step
        return lambda proxies: proxies.sub_(step)


class Scaled(nn.Module):
    """A network of timm's, for RGB in [0, 1]: `cfg` names the mean and deviation of the pictures that it knows."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, part: nn.Module, cfg: Mapping[str, Any]) -> None:
        super().__init__()
        self.part = part.eval()
        self.register_buffer("mean", torch.tensor(cfg["mean"]).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(cfg["std"]).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.part((images - self.mean) / self.deviation)


@torch.no_grad()
def fold_batch_norm(module: nn.Module) -> None:
    """Multiply each batch-norm into the convolution before it; of timm's batch-norm its activation stays.

    Its statistics stay those of the pictures it was trained on: one image alone is answered as in any batch.
    """
    convolution: nn.Conv2d | None = None
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            convolution = child
        elif isinstance(child, nn.BatchNorm2d):
            assert convolution is not None
            assert child.running_mean is not None and child.running_var is not None
            convolution.weight, convolution.bias = fuse_conv_bn_weights(
                convolution.weight,
                None,
                child.running_mean,
                child.running_var,
                child.eps,
                child.weight,
                child.bias,
            )
            setattr(module, name, getattr(child, "act", nn.Identity()))
        else:
            fold_batch_norm(child)


def fetched_weights(name: str) -> Path:
    """The weights of a backbone that `weights get` has put there."""
    path = weights_file(name)
    if not path.is_file():
        raise UserError(
            f"the weights of the backbone {name} are not here ({path}): python -m edge_hpcr weights get {name}"
        )
    return path


def read_weights(path: Path, expected: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file of safetensors or of PyTorch.

    `expected` is the SHA-256 that the file must have.
    """
    if not path.is_file():
        raise UserError(f"weights {path}: there is no such file")
    if expected is not None and (found := sha256(path)) != expected:
        raise UserError(
            f"weights {path} are damaged or of another version: SHA-256 {found[:16]}… instead of {expected[:16]}…; "
            "install the package again"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle raises what it likes
        raise UserError(
            f"weights {path} cannot be read as tensors ({type(error).__name__}): get the file again"
        ) from None
