"""What the tests of the replay memory share."""

from typing import Any

import numpy as np

from edge_hpcr.learner.memory import MemoryConfig, Replay, ReplayMemory

SHAPE = (8, 8, 3)
FEATURES = 5


def make_memory(config: MemoryConfig, classes: int = 1, seed: int = 0, **changes: Any) -> ReplayMemory:
    settings: dict[str, Any] = {"input_shape": SHAPE, "feature_size": FEATURES, "stores_logits": True}
    memory = ReplayMemory(config, **(settings | changes), rng=np.random.default_rng(seed))
    for _ in range(classes):
        memory.add_class()
    return memory


def everything(memory: ReplayMemory) -> Replay:
    return memory.at(np.arange(len(memory)))
