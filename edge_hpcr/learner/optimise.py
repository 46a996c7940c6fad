"""What follows a step's gradients: an optimiser for a network whose proxies grow, and an average of its weights."""

import copy

import torch
from torch import Tensor

from edge_hpcr.learner.network import Network

KINDS = ("sgd", "adam")
WARM_UP = 10  # steps in which the average forgets its random start


class Optimiser:
    """SGD without momentum, as in the paper, or Adam, whose state of the old classes' proxies stays as it is."""

    def __init__(self, kind: str, lr: float, network: Network, proxy_lr: float | None = None) -> None:
        self._network, self._lr, self._proxy_lr = network, lr, lr if proxy_lr is None else proxy_lr
        self._adam = None
        if kind == "adam":
            rest = [each for name, each in network.named_parameters() if name != "proxies"]
            groups = [{"params": [network.proxies], "lr": self._proxy_lr}, {"params": rest, "lr": lr}]
            self._adam = torch.optim.Adam([group for group in groups if group["params"]])

    @torch.no_grad()
    def step(self) -> None:
        if self._adam is not None:
            self._adam.step()
            return
        # PyTorch's own SGD does the same, but its first one imports PyTorch's compiler: 1.5 s of every start.
        parameters = dict(self._network.named_parameters())
        for lr, group in (
            (self._proxy_lr, [parameters.pop("proxies")]),
            (self._lr, list(parameters.values())),
        ):
            moved = [(each, each.grad) for each in group if each.grad is not None]
            if moved:  # all in one call: on a GPU a call per parameter would take longer than the work
                torch._foreach_add_(*zip(*moved, strict=True), alpha=-lr)

    def follow_proxies(self, kept: list[int]) -> None:
        """The network has a new proxy matrix whose first rows are the old rows `kept`; others are new."""
        if self._adam is None:
            return
        (old,), new = self._adam.param_groups[0]["params"], self._network.proxies
        self._adam.param_groups[0]["params"] = [new]
        for key, value in self._adam.state.pop(old, {}).items():
            if value.shape == old.shape:
                moved = torch.zeros_like(new, requires_grad=False)
                moved[: len(kept)] = value[kept]
                value = moved
            self._adam.state[new][key] = value

    def state(self) -> dict[str, Tensor]:
        states = self._adam.state if self._adam is not None else {}
        return {
            f"{name}.{key}": value
            for name, parameter in self._network.named_parameters()
            for key, value in states.get(parameter, {}).items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        if self._adam is None:
            return
        parameters = dict(self._network.named_parameters())
        for full_name, value in state.items():
            name, key = full_name.rsplit(".", 1)
            # Adam counts its steps in a scalar on the host, which the first checkpoints kept in one dimension.
            self._adam.state[parameters[name]][key] = value.cpu().reshape(()) if key == "step" else value


class WeightAverage:
    """`average <- decay * average + (1 - decay) * live` after every step, batch-norm statistics included."""

    def __init__(self, network: Network, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, live: Network, step: int) -> None:
        decay = min(self.decay, (1 + step) / (WARM_UP + step))
        states = zip(self.network.state_dict().values(), live.state_dict().values(), strict=True)
        for average, current in states:
            if average.is_floating_point():
                average.lerp_(current, 1 - decay)
            else:
                average.copy_(current)  # batch-norm's step counter
