"""What a learner tells: how a step went, what it predicts, and why it refused."""

from dataclasses import dataclass

import numpy as np

from edge_hpcr.common.errors import UserError


class LossNotFinite(UserError):
    """The step was not taken: weights, memory, random numbers and statistics are as before it.

    A class that came with the batch stays known, with its first proxy.
    """


@dataclass(frozen=True)
class Prediction:
    """Row i answers for image i; column c of `scores` stands for class `class_ids[c]`."""

    scores: np.ndarray  # probabilities, float32 [N, C]
    similarity: np.ndarray  # cosine to the nearest proxy, float32 [N]
    class_ids: np.ndarray  # int64 [C]

    @property
    def best(self) -> np.ndarray:
        """The most probable class id of each image."""
        return self.class_ids[self.scores.argmax(1)]


@dataclass(frozen=True)
class StepReport:
    step: int
    loss: float
    correct: int  # of the incoming images, as this step's forward pass classified them before it learned them
    replayed: int
    seconds: float
