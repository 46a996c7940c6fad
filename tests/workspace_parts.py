"""What tests of workspaces share: settings of a network that learns in milliseconds, and checkpoints without a learner."""

from pathlib import Path

import numpy as np

from edge_hpcr.learner import checkpoint
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain

FROM_SCRATCH = {"backbone": "reduced_resnet18"}
SMALL = {**FROM_SCRATCH, "image_size": 8}


def write_checkpoint(
    path: Path, step: int, applied: int, samples: int = 5, fingerprint: str | None = None
) -> Path:
    """A checkpoint of a workspace as a learner saves it that has learned so many events; it has no weights."""
    memory = ReplayMemory(MemoryConfig(samples=samples), (8, 8, 3), 0, False, np.random.default_rng(0))
    memory.add_class()
    memory.update(np.zeros((samples, 8, 8, 3), np.uint8), np.zeros(samples, np.int64))
    arrays, facts = memory.state()
    notes = {
        "applied": applied,
        "fingerprint": fingerprint,
        "test_then_train": TestThenTrain().state(),
        "held_out": HeldOut().state(),
        "memory": {"samples": samples, "bytes": {"total": 1000}, "budget": 2000},
        "suspicious": [],
    }
    folder = path / "checkpoints" / f"step-{step:09d}"
    checkpoint.write(folder, {"memory": arrays}, {"memory": facts, "step": step, "notes": notes})
    return folder
