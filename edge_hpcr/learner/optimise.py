"""Optimisers for a network whose proxies grow: what they remember of old classes stays as it is."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from edge_hpcr.learner.network import Network


class PlainSGD:
    """Without momentum, as the method wants it, with as much of the interface of PyTorch's as is needed here.

    PyTorch's own does the same in a step, but the first one made in a process imports PyTorch's compiler, which is
    almost as large as the rest of it: a second and a half of every start.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters)}]
        self.state: dict[Tensor, dict[str, Tensor]] = {}  # there is nothing to remember
        self._lr = lr

    @torch.no_grad()
    def step(self) -> None:
        moved = [each for each in self.param_groups[0]["params"] if each.grad is not None]
        if moved:  # all in one call: on a GPU a call a parameter would take longer than the work
            torch._foreach_add_(moved, [each.grad for each in moved], alpha=-self._lr)


KINDS = {"sgd": PlainSGD, "adam": torch.optim.Adam}


class Optimiser:
    def __init__(self, kind: str, lr: float, network: Network) -> None:
        self._network = network
        self._names = [name for name, _ in network.named_parameters()]
        self._optimiser: Any = KINDS[kind](network.parameters(), lr=lr)

    def step(self) -> None:
        self._optimiser.step()

    def follow_proxies(self, kept: list[int]) -> None:
        """The network has a new proxy matrix whose first rows are the old rows `kept`; others are new."""
        parameters = self._optimiser.param_groups[0]["params"]
        index = self._names.index("proxies")
        old, new = parameters[index], self._network.proxies
        parameters[index] = new
        state = self._optimiser.state.pop(old, {})
        if state:
            self._optimiser.state[new] = {key: _moved(value, old, new, kept) for key, value in state.items()}

    def state(self) -> dict[str, Tensor]:
        parameters = self._optimiser.param_groups[0]["params"]
        return {
            f"{name}.{key}": value
            for name, parameter in zip(self._names, parameters, strict=True)
            for key, value in self._optimiser.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        parameters = dict(zip(self._names, self._optimiser.param_groups[0]["params"], strict=True))
        for full_name, value in state.items():
            name, key = full_name.rsplit(".", 1)
            # Adam counts its steps in a scalar on the host, which the first checkpoints kept in one dimension.
            self._optimiser.state[parameters[name]][key] = value.cpu().reshape(()) if key == "step" else value


def _moved(value: Tensor | None, old: Tensor, new: Tensor, kept: list[int]) -> Tensor | None:
    if value is None or value.shape != old.shape:
        return value
    moved = torch.zeros_like(new, requires_grad=False)
    moved[: len(kept)] = value[kept]
    return moved
