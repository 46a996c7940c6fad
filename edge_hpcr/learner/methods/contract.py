"""What a method is: a loss over one batch, and a few places where it may differ from plain replay.

The learner runs every method through this contract and knows none of them. The defaults are plain experience replay:
replay at random, offer everything to the reservoir, follow the gradient, classify by the proxies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.network import Network

if TYPE_CHECKING:
    from edge_hpcr.learner.learner import Learner


@dataclass(frozen=True)
class Records:
    """What the memory recorded of the replayed samples, one row for each replayed view."""

    logits: Tensor
    features: Tensor
    known: Tensor


@dataclass(frozen=True)
class Batch:
    """One step's batch after the forward pass, before the update.

    The rows of `images`, `logits`, `features` and `labels`: incoming samples, their augmented views, replayed samples, their augmented views.
    """

    images: Tensor
    logits: Tensor
    features: Tensor
    labels: Tensor
    incoming_rows: int
    distinct_samples: int
    records: Records
    step: int
    tau: float

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def replayed(self) -> slice:
        return slice(self.incoming_rows, None)


@dataclass(frozen=True)
class NoConfig:
    """Of a method without hyper-parameters."""


class Method(ABC):
    """One way of learning. A subclass gives `loss`; the other places serve the methods of the paper's table."""

    Config: ClassVar[type] = NoConfig
    uses_memory: ClassVar[bool] = True
    stores_logits: ClassVar[bool] = False
    stores_features: ClassVar[bool] = False
    # A reference row that sees the whole data shuffled instead of task by task, and how often.
    shuffled_passes: ClassVar[int] = 0
    samples_per_step: ClassVar[int] = 10

    def __init__(self, config: Any = None) -> None:
        self.config = config if config is not None else self.Config()

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """What one step minimises."""

    def choose_replay(self, learner: Learner, images: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        """Which samples to replay beside these incoming ones (MIR and ASER choose; the default draws at random)."""
        return learner.memory.sample(size)

    def choose_stored(self, learner: Learner, batch: Batch) -> np.ndarray | None:
        """Which incoming samples to offer to the memory, as indices (GSS chooses); None offers all of them."""
        return None

    def adjust_gradients(self, learner: Learner, batch: Batch) -> None:
        """After backward, before the optimiser's step and the memory's update.

        A-GEM projects here; GMED edits the samples that were replayed, whose slots are still valid.
        """

    def after_step(self, learner: Learner, batch: Batch) -> None:
        """After the update (OCM refreshes its second model, ER-WA and OBC correct weights)."""

    def class_logits(self, learner: Learner, network: Network, features: Tensor) -> Tensor:
        """Scores for prediction, before the softmax (SCR answers with its nearest class means)."""
        return network.logits(features)

    def state(self) -> dict[str, Tensor]:
        """Tensors of its own that a checkpoint must keep (a second model's weights)."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The counterpart of `state`."""

    def config_dict(self) -> dict[str, Any]:
        return asdict(self.config)
