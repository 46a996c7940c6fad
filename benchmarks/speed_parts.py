"""Where a training step's time goes, and what the memory costs in time and bytes; measured for `speed`.

All times here are processor time, which other programs disturb less than they do the wall's clock.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from edge_hpcr.learner.codec import CODECS
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory
from edge_hpcr.learner.network import Network

Batches = Iterator[tuple[np.ndarray, np.ndarray]]

COST_CODECS = ("raw", "webp")
COST_SIZES = (200, 2_000, 20_000)

# PyTorch's own names of the operations, by kind.
KINDS = {
    "aten.convolution": "convolution, forward",
    "aten.convolution_backward": "convolution, backward",
    "aten.mm": "matrix products",
    "aten.bmm": "matrix products",
    "aten.native_batch_norm": "batch norm, forward",
    "aten.native_batch_norm_backward": "batch norm, backward",
    "aten.relu_": "relu and add",
    "aten.threshold_backward": "relu and add",
    "aten.add_": "relu and add",
    "aten.add": "relu and add",
}
OTHER = "other"


def seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """On the wall's clock, and on the processor's."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def quartiles(values: np.ndarray) -> dict[str, float]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "q1": float(low), "q3": float(high)}


# Inside a step -------------------------------------------------------------------------------------------------------


def shares(learner: Learner, batches: Batches, steps: int, bar: tqdm) -> dict[str, float]:
    """The shares of the learner's own step, by timers put around its parts for as long as this takes."""
    parts: list[tuple[Any, str, str]] = [
        (learner.network, "features", "network forward"),
        (Tensor, "backward", "network backward"),
        (learner, "_inputs", "augmentation"),
        (learner.memory, "sample", "memory sampling"),
        (learner.memory, "offer", "memory update"),
        (learner.memory, "admit", "memory update"),
        (learner.network, "logits", "losses"),
        (learner.method, "loss", "losses"),
        (learner.optimiser, "step", "optimiser and EMA"),
        (learner.average, "update", "optimiser and EMA"),
    ]
    spent = dict.fromkeys([part for _, _, part in parts], 0.0)
    whole = 0.0
    with ExitStack() as timers:
        for owner, name, part in parts:
            timers.enter_context(_timer(owner, name, part, spent))
        for _ in range(steps):
            whole += seconds(partial(learner.observe, *next(batches)))[1]
            bar.update()
    spent["rest"] = whole - sum(spent.values())
    return {part: part_seconds / whole for part, part_seconds in spent.items()}


@contextmanager
def _timer(owner: Any, name: str, part: str, spent: dict[str, float]) -> Iterator[None]:
    """While it lasts, the calls of `owner.name` add their time to `spent[part]`."""
    timed = getattr(owner, name)
    own = name in vars(owner)

    def call(*args: Any, **kwargs: Any) -> Any:
        begun = time.process_time()
        try:
            return timed(*args, **kwargs)
        finally:
            spent[part] += time.process_time() - begun

    setattr(owner, name, call)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, timed)
        else:
            delattr(owner, name)


class _OperationTimer(TorchDispatchMode):
    """Adds up the time of every operation that PyTorch runs, in the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = dict.fromkeys([*KINDS.values(), OTHER], 0.0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        begun = time.process_time()
        result = func(*args, **(kwargs or {}))
        self.spent[KINDS.get(str(func.overloadpacket), OTHER)] += time.process_time() - begun
        return result


def operations(learner: Learner, batches: Batches, steps: int, bar: tqdm) -> dict[str, float]:
    """Milliseconds of a step by kind of operation."""
    rows = []
    for _ in range(steps):
        with _OperationTimer() as timer:
            learner.observe(*next(batches))
        rows.append(timer.spent)
        bar.update()
    return {kind: float(np.median([row[kind] for row in rows])) * 1e3 for kind in rows[0]}


def layers(network: Network, images: Tensor, calls: int, matmul_gflops: float) -> list[dict[str, Any]]:
    """Each kind of convolution by itself, for one group of images: what it reaches of the matmul's speed."""
    kinds: dict[tuple[Any, ...], list[nn.Conv2d]] = defaultdict(list)

    def note(layer: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kinds[tuple(inputs[0].shape), tuple(output.shape), tuple(layer.weight.shape)].append(layer)

    hooks = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        network.eval().features(images)
    for hook in hooks:
        hook.remove()
    rows = []
    for (input_shape, output_shape, weight_shape), alike in kinds.items():
        layer = alike[0]
        forward, backward = _layer_seconds(layer, input_shape, calls)
        gflop = 2 * np.prod(output_shape) * np.prod(weight_shape[1:]) / 1e9
        gradients = 2 if input_shape != images.shape else 1  # nobody asks for the gradient of the images
        stride = f", stride {layer.stride[0]}" if layer.stride[0] > 1 else ""
        rows.append(
            {
                "layer": "{2}x{3} {1} to {0} at ".format(*weight_shape)
                + "{2}x{3}".format(*output_shape)
                + stride,
                "times": len(alike),
                "forward_ms": forward * 1e3,
                "backward_ms": backward * 1e3,
                "forward_share_of_matmul": gflop / forward / matmul_gflops,
                "backward_share_of_matmul": gradients * gflop / backward / matmul_gflops,
            }
        )
    return rows


def _layer_seconds(layer: nn.Conv2d, input_shape: tuple[int, ...], calls: int) -> tuple[float, float]:
    """One forward, and one backward as the network needs it."""
    first = layer.in_channels == 3
    images = torch.ones(input_shape).to(memory_format=torch.channels_last).requires_grad_(not first)
    inputs = [layer.weight] if first else [layer.weight, images]
    times = []
    for _ in range(calls + 1):
        begun = time.process_time()
        output = layer(images)
        forward = time.process_time() - begun
        gradient = torch.ones_like(output)
        times.append((forward, seconds(partial(torch.autograd.grad, output, inputs, gradient))[1]))
    forward, backward = np.median(times[1:], axis=0)  # the first call chooses its kernels
    return float(forward), float(backward)


# The memory ----------------------------------------------------------------------------------------------------------


def bytes_per_sample(images: np.ndarray, feature_size: int, classes: int) -> dict[str, Any]:
    """What one sample of these images takes in memory by codec, and what float32 throughout would take."""
    float32 = 4 * (int(np.prod(images.shape[1:])) + feature_size + classes)
    sizes = {}
    for codec in CODECS:
        memory = _full_memory(codec, images, feature_size, classes)
        mean = memory.byte_breakdown()["total"] / len(memory)
        sizes[codec] = {"bytes": mean, "share_of_float32": mean / float32}
    return {"float32": float32, **sizes}


def _full_memory(codec: str, images: np.ndarray, feature_size: int, classes: int) -> ReplayMemory:
    rng = np.random.default_rng(0)
    config = MemoryConfig(samples=len(images), codec=codec)
    memory = ReplayMemory(config, images.shape[1:], feature_size, True, rng)
    for _ in range(classes):
        memory.add_class()
    features = rng.uniform(-1, 1, (len(images), feature_size)).astype(np.float32)
    logits = np.zeros((len(images), classes), np.float32)
    memory.update(images, rng.integers(0, classes, len(images)), logits, features)
    return memory


def memory_cost(
    codec: str, batches: Batches, images: np.ndarray, classes: int, rounds: int, calls: int, bar: tqdm
) -> dict[str, Any]:
    """Microseconds to draw a batch of samples and to take one in, by how many are held."""
    feature_size = 160
    small = _full_memory(codec, images[: COST_SIZES[0]], feature_size, classes)
    memories = {size: _repeated(small, size) for size in COST_SIZES}

    def draw(memory: ReplayMemory) -> None:
        memory.sample(10)

    def take_in(memory: ReplayMemory) -> None:
        new_images, labels = next(batches)
        memory.threshold = (
            1.0  # all are admitted and as many leave: the dearest case, the same for every size
        )
        count = len(labels)
        memory.update(
            new_images,
            labels,
            np.zeros((count, classes), np.float32),
            np.zeros((count, feature_size), np.float32),
        )

    operations = {"sample": draw, "update": take_in}
    times: dict[tuple[str, int], list[float]] = {
        (name, size): [] for name in operations for size in COST_SIZES
    }
    for _ in range(rounds):
        for (name, size), kept in times.items():
            call = partial(operations[name], memories[size])
            kept.append(float(np.median([seconds(call)[1] for _ in range(calls)])) * 1e6)
        bar.update()
    smallest, largest = COST_SIZES[0], COST_SIZES[-1]
    return {
        "codec": codec,
        **{
            name: {
                "held": list(COST_SIZES),
                "us": [float(np.median(times[name, size])) for size in COST_SIZES],
                "largest_to_smallest": quartiles(
                    np.array(times[name, largest]) / np.array(times[name, smallest])
                ),
            }
            for name in operations
        },
    }


def _repeated(memory: ReplayMemory, size: int) -> ReplayMemory:
    """A memory of `size` samples, which are those of `memory` over and over."""
    arrays, facts = memory.state()
    times = size // len(memory)
    arrays = {name: np.concatenate([array] * times) for name, array in arrays.items()}
    facts["config"]["samples"] = size
    return ReplayMemory.from_state(arrays, facts, np.random.default_rng(0))
