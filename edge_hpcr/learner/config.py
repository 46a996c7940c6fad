"""What a learner is made from: its configuration and its network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from edge_hpcr.common.errors import UserError, check_at_least, check_positive, one_of
from edge_hpcr.learner import methods
from edge_hpcr.learner.augment import AugmentConfig
from edge_hpcr.learner.backbones import BackboneConfig, backbone_class
from edge_hpcr.learner.codec import FLOAT, LATENT
from edge_hpcr.learner.device import PRECISIONS
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.network import Network
from edge_hpcr.learner.optimise import KINDS

# Options that earlier versions wrote into checkpoints, results and sweeps, and what they are called now.
FORMER_NAMES = {"as_kept": "encode_incoming", "strong_below": "few_samples"}
GONE = ("stored_views", "weights")  # options that earlier versions wrote, and that no run used


@dataclass(frozen=True)
class LearnerConfig:
    """Everything that decides how a learner learns. The defaults are the paper's."""

    height: int = 32
    width: int = 32
    backbone: str = "reduced_resnet18"
    method: str = "hpcr"
    method_options: dict[str, Any] = field(default_factory=dict)
    memory: MemoryConfig = field(default_factory=lambda: MemoryConfig(samples=200))
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    views: bool = True  # show every image together with one augmented view of it
    plain: bool = True  # False: show the augmented view alone, so that twice as many samples fit into a step
    # While the memory holds fewer samples, a step without plain images is like one of the paper: ten replayed samples
    # for ten incoming ones, each image together with a strong view of it.
    few_samples: int = 0
    encode_incoming: bool = False  # show incoming images as the memory will give them back: see step.py
    replay: int = 10  # samples from memory in a step
    nf: int = 20
    tau: float = 0.09
    optimiser: str = "sgd"
    lr: float = 0.1
    proxy_lr: float | None = None  # None: as the rest of the network
    lr_decay: int | None = None  # steps after which the rate has fallen to 0.7, later to 0.5, and so on
    imprint: bool = False  # a new class's proxy starts at the direction of its first features, not at random
    batch_norm: str = "separate"  # statistics of incoming and replayed images apart, or "joint"
    ema_decay: float | None = 0.99
    compute: str = "float32"  # in which the backbone computes a step; or "bfloat16", "auto": see device.py
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", self.memory.resolved(self.height, self.width))
        one_of("batch_norm", self.batch_norm, ("separate", "joint"))
        one_of("optimiser", self.optimiser, KINDS)
        one_of("precision", self.compute, PRECISIONS)
        if not (self.plain or self.views):
            raise UserError(
                "plain and views are both off: a step needs the image, an augmented view of it, or both"
            )
        check_at_least(1, self, "nf")
        check_at_least(0, self, "replay", "few_samples")
        for name in ("tau", "lr", "proxy_lr"):
            if name != "proxy_lr" or self.proxy_lr is not None:
                check_positive(name, getattr(self, name))
        if self.lr_decay is not None and self.lr_decay < 1:
            raise UserError(f"lr_decay {self.lr_decay}: give a number of steps, or None for a constant rate")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise UserError(f"ema_decay {self.ema_decay}: give a share below 1, or None for no average")

    @classmethod
    def recommended(cls, backbone: str, **changes: Any) -> LearnerConfig:
        """What suits a backbone and a method, with some changes; `memory` keeps what the backbone's trainable part sees."""
        kind = backbone_class(backbone)
        method = methods.method_class(changes.get("method", cls.method))
        fields: dict[str, Any] = {
            "backbone": backbone,
            "height": kind.default_size,
            "width": kind.default_size,
        }
        fields |= {**({} if kind.has_trunk else method.recommended), **kind.recommended, **changes}
        if "method_options" not in changes:  # those of hpcr say nothing to another method
            chosen = fields.get("method_options", {})
            fields["method_options"] = {
                name: value for name, value in chosen.items() if name in method.options()
            }
        return cls(**fields)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LearnerConfig:
        # JSON has no tuples.
        augmented: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values["augment"].items()
        }
        nested = {"memory": MemoryConfig.from_dict(values["memory"]), "augment": AugmentConfig(**augmented)}
        named = {FORMER_NAMES.get(name, name): value for name, value in (values | nested).items()}
        return cls(**{name: value for name, value in named.items() if name not in GONE})


def memory_options(backbone: str, method: str) -> dict[str, Any]:
    """How samples are kept for a backbone and a method, if nobody says otherwise; without a budget."""
    if backbone_class(backbone).has_trunk:
        return {"codec": LATENT}
    return {**methods.method_class(method).recommended_memory}


def suited_memory(memory: MemoryConfig, method: methods.Method) -> MemoryConfig:
    """How the memory must keep images for this method."""
    if not method.edits_images:
        return memory
    if memory.codec == LATENT:
        raise UserError(
            f"method {method.name} edits images, and this backbone keeps latents: choose another backbone or method"
        )
    if memory.codec not in ("raw", FLOAT):
        raise UserError(
            f"codec {memory.codec}: {method.name} edits the images that it keeps, which takes 32-bit floats: choose raw"
        )
    return replace(memory, codec=FLOAT)


def build_network(config: LearnerConfig, device: torch.device) -> Network:
    """The network of a configuration before it has learned anything, with its trunk on the device."""
    made = BackboneConfig(config.height, config.width, config.nf, config.seed)
    backbone = backbone_class(config.backbone)(made)
    if (backbone.trunk is None) == (config.memory.codec == LATENT):
        keeps = (
            "images: choose raw, webp, jpeg or png" if backbone.trunk is None else f"latents: choose {LATENT}"
        )
        raise UserError(
            f"codec {config.memory.codec}: with the backbone {config.backbone} the memory keeps {keeps}"
        )
    return Network(backbone, config.tau, methods.method_class(config.method).linear).to(device)
