"""A step runs wherever the learner was told to: nothing on the way assumes the host's memory.

No GPU is needed: fake tensors carry a device and refuse to meet a tensor of another one, but hold no numbers. The
device is "meta" and not "cuda", as autograd wants a real driver before it walks back over CUDA tensors, fake or not.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.methods import Batch
from edge_hpcr.learner.network import Network
from edge_hpcr.learner.optimise import KINDS, Optimiser, WeightAverage
from edge_hpcr.learner.step import forward

ELSEWHERE = torch.device("meta")


def move(network: Network) -> None:
    """`network.to` of fake tensors; PyTorch's own cannot replace the parameters of a module by fake ones."""
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty_like(parameter, device=ELSEWHERE)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=ELSEWHERE))


@pytest.fixture(scope="module")
def fake() -> FakeTensorMode:
    # NumPy arrays become real host tensors first; they are let in as fake ones of the host.
    return FakeTensorMode(allow_non_fake_inputs=True)


@pytest.fixture(scope="module")
def learner(fake: FakeTensorMode) -> Learner:
    """Three classes, the last of them new, and records of all kinds in memory, so that every method has its work."""
    # "initial" would read a proxy back to the host, and a fake one has no numbers.
    config = LearnerConfig(height=8, width=8, nf=4, method="hpcr", method_options={"distil_new": "zero"})
    learner = Learner(config, device="cpu")
    rng = np.random.default_rng(0)
    with fake:
        learner.device = ELSEWHERE
        move(learner.network)
        learner.optimiser = Optimiser("sgd", 0.1, learner.network)
        learner.average = WeightAverage(learner.network, 0.9)
        learner.add_class(3)
        learner.add_class(5)
        numbers = rng.random((4, 2 + learner.network.feature_size), np.float32)
        pictures = rng.integers(0, 256, (4, 8, 8, 3), np.uint8)
        learner.memory.update(pictures, np.array([0, 1, 0, 1]), numbers[:, :2], numbers[:, 2:])
        learner.add_class(7)
    return learner


def images(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 8, 8, 3), np.uint8)


def give(learner: Learner, name: str) -> None:
    """Another method, with its own modules on the learner's device."""
    learner.network.extra.clear()
    learner.network.linear = methods.method_class(name).linear
    learner.method = methods.create(name)
    learner.method.begin(learner.view)
    learner.network.keep_proxies([])  # all classes come anew, for what the method keeps of them
    for _ in learner.class_ids:
        learner.network.append_proxy(torch.zeros(learner.network.feature_size, device=ELSEWHERE))
        learner.method.add_class()
    move(learner.network)


def forward_and_backward(learner: Learner) -> tuple[Batch, Tensor]:
    columns = np.array([2, 2, 0])
    # Drawn here: some methods choose by losses, which fake tensors do not have.
    batch = forward(learner, images(3), columns, learner.memory.sample(4))
    loss = learner.method.loss(batch)
    loss.backward()
    return batch, loss


def all_elsewhere(tensors: Iterable[Tensor]) -> bool:
    return all(isinstance(tensor, FakeTensor) and tensor.device == ELSEWHERE for tensor in tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in methods.names() if not methods.method_class(name).closed_form]
)
def test_forward_and_backward_of_every_method_stay_on_the_learners_device(
    name: str, fake: FakeTensorMode, learner: Learner
) -> None:
    with fake:
        give(learner, name)
        batch, loss = forward_and_backward(learner)
    records = (batch.records.logits, batch.records.features, batch.records.known)
    assert all_elsewhere([batch.logits, batch.features, batch.labels, *records, loss])
    # SCR does not train the proxies.
    gradients = [each.grad for each in learner.network.parameters() if each.grad is not None]
    assert all_elsewhere(gradients) and len(gradients) >= len(list(learner.network.parameters())) - 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_update_and_the_average_stay_on_the_learners_device(
    kind: str, fake: FakeTensorMode, learner: Learner
) -> None:
    with fake:
        give(learner, "er")
        learner.optimiser = Optimiser(kind, 0.1, learner.network)
        forward_and_backward(learner)
        learner.optimiser.step()
        learner.average.update(learner.network, step=0)
        # A class that comes and goes takes its rows of the optimiser's state along.
        learner.add_class(9)
        forward_and_backward(learner)
        learner.optimiser.step()
        learner.drop_class(9)
    assert all_elsewhere(learner.network.state_dict().values())
    assert all_elsewhere(learner.average.network.state_dict().values())
    state = learner.optimiser.state().items()
    assert all_elsewhere(value for name, value in state if not name.endswith(".step"))


def test_prediction_stays_on_the_learners_device(fake: FakeTensorMode, learner: Learner) -> None:
    method = methods.create("hpcr")
    with fake, torch.no_grad():
        network = learner.average.network
        inputs = learner.to_device(images(2))
        features = network.features(inputs)
        answers = [method.classifier(learner.view, network)(features, inputs), network.similarities(features)]
    assert all_elsewhere(answers)


# How often the host waits for the device ------------------------------------------------------------------------------

# What gives the host numbers of a tensor, and operations whose results' sizes depend on them: on a GPU the host waits.
ASKING = frozenset({"cpu", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__"})
ASKING_INSIDE = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "bincount",
    "is_nonzero",
    "equal",
)


class Questions(TorchFunctionMode):
    """Notes by what the host asks a tensor for its numbers, on the processor too, where no copy shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ASKING:
            self.asked.append(name)
        return func(*args, **(kwargs or {}))


class QuestionsInside(TorchDispatchMode):
    """The same for what PyTorch's own functions ask."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        chosen = args[1] if name.startswith("index") and isinstance(args[1], list) else []
        by_mask = any(each is not None and each.dtype == torch.bool for each in chosen)
        if by_mask or name.startswith(ASKING_INSIDE):
            self.asked.append(name)
        return func(*args, **(kwargs or {}))


def asked(call: Callable[[], object]) -> list[str]:
    with Questions() as questions, QuestionsInside() as inside:
        call()
    return questions.asked + inside.asked


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["er", "pcr", "hpcr"])
def test_the_host_asks_the_device_once_in_a_step(name: str, compute: str) -> None:
    learner = Learner(LearnerConfig(height=8, width=8, nf=4, method=name, compute=compute), device="cpu")
    learner.observe(images(6), [3, 5, 7, 3, 5, 7])
    assert asked(lambda: learner.observe(images(6), [3, 5, 7, 3, 5, 7])) == ["cpu"]
    assert asked(learner.rehearse) == ["cpu"]
