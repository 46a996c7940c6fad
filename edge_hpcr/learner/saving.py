"""A learner as a checkpoint, and back: one that was saved continues bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint, methods
from edge_hpcr.learner.backbones import NoBackbone
from edge_hpcr.learner.config import LearnerConfig
from edge_hpcr.learner.memory import ReplayMemory
from edge_hpcr.learner.optimise import SETTLED

if TYPE_CHECKING:
    from edge_hpcr.learner.learner import Learner


def save(learner: Learner, folder: Path, notes: dict[str, Any]) -> None:
    tensors = {
        "network": learner.network.state_dict(),
        "optimiser": learner.optimiser.state(),
        "method": learner.method.state(),
    }
    if learner.average is not None:
        tensors["average"] = learner.average.network.state_dict()
    arrays = {
        group: {name: tensor.detach().cpu().numpy() for name, tensor in members.items()}
        for group, members in tensors.items()
    }
    arrays["memory"], memory_facts = learner.memory.state()
    trunk = learner.network.backbone.trunk
    facts = {
        "config": asdict(learner.config),
        "method_options": learner.method.config_dict(),
        "class_ids": learner.class_ids,
        "step": learner.step,
        "rng": learner.rng.bit_generator.state,
        "memory": memory_facts,
        "strides": {
            group: {name: _dense_strides(tensor) for name, tensor in members.items()}
            for group, members in tensors.items()
        },
        "trunk": trunk.sha256 if trunk else None,
        "ages": None if learner.average is None else learner.average.ages,
        "notes": notes,
    }
    checkpoint.write(folder, arrays, facts)


def load(
    kind: type[Learner], folder: Path, device: str | torch.device, weights: str | None
) -> tuple[Learner, dict[str, Any]]:
    arrays, facts = checkpoint.read(folder)
    facts["config"]["weights"] = weights or facts["config"].get("weights")
    try:
        return _restored(kind, arrays, facts, device), facts["notes"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        # Every file is as it was written, so another version wrote it.
        raise UserError(f"checkpoint {folder} is of another version of the learner ({error})") from error


def _restored(
    kind: type[Learner],
    arrays: dict[str, dict[str, np.ndarray]],
    facts: dict[str, Any],
    device: str | torch.device,
) -> Learner:
    config = LearnerConfig.from_dict(facts["config"])
    # All options as they were, whatever their defaults are now; but those that are gone since.
    method = methods.method_class(config.method)
    stored = method.options_then(facts.get("method_options", config.method_options))
    asked, options = (
        {name: value for name, value in each.items() if name in method.options()}
        for each in (config.method_options, stored)
    )
    learner = kind(replace(config, method_options=options), device)
    learner.config = replace(learner.config, method_options=asked)
    trunk, learned = learner.network.backbone.trunk, facts.get("trunk")
    if learned and (trunk is None or trunk.sha256 != learned):
        raise NoBackbone(
            f"the weights of the backbone {learner.config.backbone} here are not those it learned with (SHA-256 "
            f"{learned[:12]}…): install the same ones"
        )
    learner.class_ids = [int(class_id) for class_id in facts["class_ids"]]
    learner.step = facts["step"]
    learner.rng.bit_generator.state = facts["rng"]
    learner.memory = ReplayMemory.from_state(arrays["memory"], facts["memory"], learner.rng)

    def tensors(group: str) -> dict[str, Tensor]:
        strides = facts.get("strides", {}).get(group, {})  # the first checkpoints have none
        return {name: _tensor(a, strides.get(name), learner.device) for name, a in arrays[group].items()}

    learner.network.take_over(tensors("network"))
    if learner.average is not None:
        learner.average.network.take_over(tensors("average"))
        # Older checkpoints say nothing of them.
        learner.average.ages = facts.get("ages") or [SETTLED] * len(learner.class_ids)
    learner.optimiser.follow_proxies(kept=[])
    learner.optimiser.load_state(tensors("optimiser"))
    learner.method.load_state(tensors("method"))
    learner.changed()
    return learner


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's strides; those of a copy without gaps and shared elements if it has any."""
    return torch.empty_like(tensor, device="meta").stride()


def _tensor(array: np.ndarray, strides: Sequence[int] | None, device: torch.device) -> Tensor:
    """The array in fresh memory of PyTorch's, in the layout that it had.

    Which kernel computes a tensor, and so the last bits of the result, depends on its layout and alignment.
    """
    source = torch.from_numpy(array)
    fresh = torch.empty_strided(source.shape, strides or source.stride(), dtype=source.dtype, device=device)
    return fresh.copy_(source)
