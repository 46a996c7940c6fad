"""What the tests of the rivals share: small learners, coloured pictures, a batch made by hand, a slow cross-entropy."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import Learner, LearnerConfig, StepReport
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import Batch, Method, Records

SHADES = {0: (200, 40, 40), 1: (40, 200, 40), 2: (40, 40, 200), 3: (200, 200, 40)}


def rival(name: str, options: dict[str, Any] | None = None, **changes: Any) -> Learner:
    """A small learner of 8x8 images."""
    config = LearnerConfig(8, 8, method=name, method_options=options or {}, nf=4, replay=4)
    config = replace(config, memory=MemoryConfig(samples=12))
    return Learner(replace(config, **changes), device="cpu")


def pictures(labels: Sequence[int], seed: int = 0) -> np.ndarray:
    """Noise around a colour that only the class has."""
    noise = np.random.default_rng(seed).integers(-40, 41, (len(labels), 8, 8, 3))
    return (np.array([SHADES[label] for label in labels])[:, None, None] + noise).astype(np.uint8)


def observe(learner: Learner, labels: list[int], seed: int = 0) -> StepReport:
    return learner.observe(pictures(labels, seed), labels)


def batch_of(
    incoming: list[int], replayed: list[int], views: int = 1, known: list[int] | None = None, classes: int = 4
) -> Batch:
    """Random logits, features and records for rows of these labels."""
    generator, rows = torch.Generator().manual_seed(1), len(incoming) + len(replayed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    features = normal(rows, 5)
    return Batch(
        inputs=torch.rand(rows, 3, 8, 8, generator=generator),
        logits=3 * normal(rows, classes),
        features=features,
        labels=torch.tensor([*incoming, *replayed]),
        incoming_rows=len(incoming),
        distinct_samples=rows // views,
        records=Records(
            3 * normal(len(replayed), classes),
            normal(len(replayed), 5),
            torch.tensor(known or [classes] * len(replayed)),
        ),
        step=0,
        tau=0.09,
        ids=np.arange(len(incoming) // views),
    )


def cross_entropy(logits: Sequence[float], label: int, classes: Iterable[int]) -> float:
    """Of one row, over these classes."""
    return -math.log(math.exp(logits[label]) / sum(math.exp(logits[c]) for c in classes))


def loss_of(name: str, batch: Batch, **options: Any) -> float:
    return methods.create(name, options).loss(batch).item()


def directions(learner: Learner, images: np.ndarray) -> np.ndarray:
    """Of their features, in 64 bits."""
    with torch.no_grad():
        features = learner.network.eval().features(learner.to_device(images)).double().numpy()
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def recorded(method: Method) -> list[tuple[Batch, Tensor]]:
    """The batches whose loss is computed from now on, with the losses."""
    seen, own = [], method.loss

    def spy(batch: Batch) -> Tensor:
        seen.append((batch, own(batch)))
        return seen[-1][1]

    method.loss = spy
    return seen
