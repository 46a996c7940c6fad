"""A step in bfloat16: what it computes in it, what stays float32, and how a run says so."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.step import forward

CPU = torch.device("cpu")
SMALL = LearnerConfig(
    height=16, width=16, nf=8, method="hpcr", memory=MemoryConfig(samples=40), lr=0.01, compute="bfloat16"
)


def batch(seed: int, count: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 16, 16, 3), np.uint8), rng.integers(0, 4, count)


def gradient(compute: str) -> torch.Tensor:
    """Of all parameters, from the first step of the same learner."""
    learner = Learner(replace(SMALL, compute=compute), CPU)
    learner.observe(*batch(0, count=20))
    return torch.cat([parameter.grad.flatten() for parameter in learner.network.parameters()])


@pytest.mark.computes
def test_a_step_in_bfloat16_goes_where_a_step_in_float32_goes() -> None:
    rounded, exact = gradient("bfloat16"), gradient("float32")
    # Noise through 17 layers: rounding turns many a ReLU over, but a wrong gradient would point elsewhere.
    assert torch.cosine_similarity(rounded, exact, dim=0) > 0.8
    assert 0.8 < rounded.norm() / exact.norm() < 1.25
    assert not torch.equal(rounded, exact)


class Convolutions(TorchDispatchMode):
    """Notes the types that convolutions compute in."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "convolution" in func.__name__:
            self.types |= {each.dtype for each in args[:3] if isinstance(each, torch.Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["hpcr", "ocm", "onpro"])  # two whose rotated images are most of the step
@pytest.mark.parametrize(("compute", "expected"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_a_step_computes_its_convolutions_in_the_precision_and_a_prediction_in_float32(
    compute: str, expected: torch.dtype, method: str
) -> None:
    learner = Learner(replace(SMALL, compute=compute, method=method), CPU)
    learner.observe(*batch(0))
    learner.end_task()
    with Convolutions() as learning:
        learner.observe(*batch(2))
    with Convolutions() as predicting:
        learner.predict(batch(1)[0])
    assert learning.types == {expected}
    assert predicting.types == {torch.float32}


def test_weights_statistics_proxies_losses_and_records_stay_float32() -> None:
    learner = Learner(SMALL, CPU)
    for seed in range(3):
        learner.observe(*batch(seed))
    inputs, columns = batch(9)
    step = forward(learner, inputs, columns, learner._choose_replay(inputs, columns))
    tensors = [step.features, step.logits, learner.method.loss(step)]
    tensors += [step.records.logits, step.records.features, *learner.network.state_dict().values()]
    tensors += learner.average.network.state_dict().values()
    assert {each.dtype for each in tensors if each.is_floating_point()} == {torch.float32}
