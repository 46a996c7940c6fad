"""Where a training step's time goes; measured for `speed`.

All times here are processor time, which other programs disturb less than the wall's clock.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.runner import seconds
from edge_hpcr.learner import learner as learning
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.network import Network

Batches = Iterator[tuple[np.ndarray, np.ndarray]]


def shares(learner: Learner, batches: Batches, steps: int) -> dict[str, float]:
    """The shares of the learner's step, by timers around its parts."""
    parts: list[tuple[Any, str, str]] = [
        (learner.network, "features", "network forward"),
        (Tensor, "backward", "network backward"),
        (learning, "augment", "augmentation"),
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
            timed = _timed(getattr(owner, name), part, spent)
            timers.enter_context(patch.object(owner, name, timed))
        for _ in range(steps):
            whole += seconds(partial(learner.observe, *next(batches)))[1]
    spent["rest"] = whole - sum(spent.values())
    return {part: part_seconds / whole for part, part_seconds in spent.items()}


def _timed(run: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    """The function, whose calls add their time to `spent[part]`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        begun = time.process_time()
        try:
            return run(*args, **kwargs)
        finally:
            spent[part] += time.process_time() - begun

    return call


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
        gradients = 2 if input_shape != images.shape else 1  # images need no gradient
        stride = f", stride {layer.stride[0]}" if layer.stride[0] > 1 else ""
        name = "{2}x{3} {1} to {0} at ".format(*weight_shape) + "{2}x{3}".format(*output_shape) + stride
        rows.append(
            {
                "layer": name,
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
