"""Any model of timm as a backbone: `timm:NAME`, with its weights in a file or in the cache of the Hugging Face hub.

The model is the frozen trunk, and an adapter of its pooled features is trainable. A vision transformer is as in the
paper's section on pre-trained backbones instead: its blocks are frozen, and a trainable residual term stands beside each
of them. Then only the embedding precedes the first trainable term, and the memory keeps its tokens.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import psutil
import torch
from torch import Tensor, nn

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner.backbones.adapter import Adapter
from edge_hpcr.learner.backbones.contract import Backbone, BackboneConfig, Frozen, Trunk
from edge_hpcr.learner.backbones.weights import read_weights

PREFIX = "timm:"
HIDDEN = 64  # of an adapter; the authors of the paper's pre-trained rows use as many
BYTES_PER_PARAMETER = 8  # the weights, and what a forward pass needs beside them


class _Scaled(nn.Module):
    """Part of a model, for RGB in [0, 1]."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, part: nn.Module, cfg: dict[str, Any]) -> None:
        super().__init__()
        self.part = part.eval()
        self.register_buffer("mean", torch.tensor(cfg["mean"]).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(cfg["std"]).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.part((images - self.mean) / self.deviation)


class _Embedding(nn.Module):
    """From images to a transformer's tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.norm_pre(self.model._pos_embed(self.model.patch_embed(images)))


class _Blocks(nn.Module):
    """A transformer's blocks, and what follows them, with something trainable beside each block."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, beside: nn.ModuleList) -> Tensor:
        for block, term in zip(self.model.blocks, beside, strict=True):
            tokens = block(tokens) + term(tokens)
        return self.model.forward_head(self.model.norm(tokens), pre_logits=True)


class TimmModel(Backbone):
    smallest_side = 32
    largest_side = 1024
    has_trunk = True
    recommended: ClassVar = {"imprint": True, "lr": 0.05, "proxy_lr": 0.1}

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config)
        model, hash = _pretrained(self.name.removeprefix(PREFIX), config)
        transformer = _is_transformer(model)
        self.blocks = Frozen(_Blocks(model)) if transformer else None
        frozen = _Scaled(_Embedding(model) if transformer else model, model.default_cfg)
        try:
            with torch.no_grad():
                latent = frozen(torch.zeros(1, 3, config.height, config.width))
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"backbone {self.name} cannot see {config.height}x{config.width} pixels: {error}"
            ) from None
        self.trunk = Trunk(frozen, tuple(latent.shape[1:]), hash)
        self.feature_size = model.num_features if transformer else latent.shape[1]
        generator = torch.Generator().manual_seed(config.seed)
        terms = len(model.blocks) if transformer else 1
        self.adapters = nn.ModuleList(Adapter(latent.shape[-1], HIDDEN, generator) for _ in range(terms))

    def forward(self, inputs: Tensor, groups: list[int] | None = None) -> Tensor:
        if self.blocks is None:
            return inputs + self.adapters[0](inputs)
        return self.blocks.on(inputs.device)(inputs, self.adapters)


@cache
def named(name: str) -> type[Backbone]:
    """The backbone `timm:NAME`; a name that timm does not know is refused with the closest ones."""
    import timm  # takes seconds, and most learners need none of it

    wanted = name.removeprefix(PREFIX)
    if not timm.is_model(wanted):
        near = get_close_matches(wanted.partition(".")[0], timm.list_models(), 3)
        hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() has the names"
        raise UserError(f"unknown backbone {name!r}: timm has no model of that name; {hint}")
    known = timm.get_pretrained_cfg(wanted, allow_unregistered=True)
    side = known.input_size[1] if known is not None else 224
    return type("TimmModel", (TimmModel,), {"name": name, "default_size": side})


@lru_cache(maxsize=1)
def _pretrained(name: str, config: BackboneConfig) -> tuple[Any, str]:
    """The model without its classifier, and the SHA-256 of its weights' file; one for all learners of a process."""
    import timm

    options: dict[str, Any] = {"num_classes": 0}
    model: Any
    with torch.device("meta"):
        model = timm.create_model(name, **options)
        if _is_transformer(model):  # made for one size of images
            options["img_size"] = (config.height, config.width)
    needed = BYTES_PER_PARAMETER * sum(each.numel() for each in model.parameters())
    if needed > (free := psutil.virtual_memory().available):
        raise UserError(
            f"backbone {PREFIX}{name} needs about {format_bytes(needed)} of memory, {format_bytes(free)} are free here: "
            "choose a smaller model"
        )
    path = Path(config.weights) if config.weights else _cached(model.default_cfg, name)
    heads = _heads(model.default_cfg)
    given = {key: value for key, value in read_weights(path).items() if not key.startswith(heads)}
    model = timm.create_model(name, **options)
    try:
        model.load_state_dict(given)
    except RuntimeError as error:
        first = next((line.strip() for line in str(error).splitlines()[1:]), str(error))
        size = f"{config.height}x{config.width} pixels"
        raise UserError(
            f"weights {path} are of another model than {name} at {size} ({first[:120]}): give its own, and the image size "
            "they were made for"
        ) from None
    return model, sha256(path)


def _is_transformer(model: Any) -> bool:
    from timm.models import VisionTransformer

    return type(model) is VisionTransformer


def _heads(cfg: dict[str, Any]) -> tuple[str, ...]:
    names = cfg.get("classifier") or "head"
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


def _cached(cfg: dict[str, Any], name: str) -> Path:
    """The file that timm keeps in the hub's cache; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    repository: Any = cfg.get("hf_hub_id")
    for file in ("model.safetensors", "pytorch_model.bin") if repository else ():
        found = try_to_load_from_cache(repository, file)
        if isinstance(found, str):
            return Path(found)
    raise UserError(
        f"backbone {PREFIX}{name}: no weights here; download model.safetensors of {repository or name} and give the file "
        "as `weights` (--weights FILE)"
    )
