"""What a backbone is: a frozen trunk that an image passes once, and a trainable part that learns from what it says."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from edge_hpcr.common.errors import UserError


class NoBackbone(UserError):
    """The backbone of a learner cannot be made here: not installed, damaged, too large, other weights."""


@dataclass(frozen=True)
class BackboneConfig:
    """What a backbone is made from."""

    height: int
    width: int
    nf: int = 20  # filters of a backbone that is trained from scratch
    weights: str | None = None  # the file of a pre-trained one that brings none
    seed: int = 0


class Frozen:
    """A module that never learns: shared by all copies of a network, and in no checkpoint."""

    def __init__(self, module: nn.Module) -> None:
        module = module.eval().requires_grad_(False)
        self._by_device = {next(module.parameters()).device: module}
        self._lock = threading.Lock()

    def on(self, device: torch.device) -> nn.Module:
        # Any thread may be the first to ask, also one that predicts: tensors made there could not be trained through.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if device not in self._by_device:
                self._by_device[device] = copy.deepcopy(next(iter(self._by_device.values()))).to(device)
            return self._by_device[device]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a network differ in what is trainable only


# Images in a pass on a processor, whose cache holds what they need: at 224 pixels an image among 50 takes 1.7 times as long.
CPU_PORTION = 4


class Trunk(Frozen):
    """From float RGB images in [0, 1], [N, 3, H, W], to latents [N, *latent_shape]."""

    def __init__(self, module: nn.Module, latent_shape: tuple[int, ...], sha256: str) -> None:
        super().__init__(module)
        self.latent_shape = latent_shape
        self.sha256 = sha256  # of its weights, which a checkpoint names

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
    # Fields of LearnerConfig whose values with this backbone are not the paper's.
    recommended: ClassVar[Mapping[str, Any]] = {}

    feature_size: int
    sketch_size: int | None = None  # None: the memory keeps features as they are
    trunk: Trunk | None = None  # None: the trainable part sees the images themselves

    @abstractmethod
    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        if not all(self.smallest_side <= side <= self.largest_side for side in (config.height, config.width)):
            raise UserError(
                f"images of {config.height}x{config.width} pixels: the backbone {self.name} takes {self.smallest_side} "
                f"to {self.largest_side} pixels a side; resize them first"
            )

    @abstractmethod
    def forward(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        """Features [N, feature_size] of latents, or of float RGB images in [0, 1] if there is no trunk.

        `groups` are the sizes of groups of rows that take batch-norm's statistics apart. It is one pass all the same:
        convolutions do not mix images, and are faster for more of them.
        """

    def sketch(self, features: Tensor) -> Tensor:
        """What the memory keeps of features, to distil from: fewer numbers with about the same cosines, or all."""
        return features

    def follow(self, inputs: Tensor, classes: int) -> Callable[[Tensor], Tensor] | None:
        """Take in statistics of new samples, if the backbone keeps any, with the number of classes known.

        Returns how that moves features, so that proxies can move with them.
        """
        return None

    def deployable(self) -> nn.Module:
        """A copy of the trainable part for inference."""
        return copy.deepcopy(self).eval().requires_grad_(False)
