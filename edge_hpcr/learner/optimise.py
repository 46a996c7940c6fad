"""What follows a step's gradients: an optimiser for a network whose proxies grow, and an average of its weights."""

import copy
from collections import Counter

import torch
from torch import Tensor

from edge_hpcr.learner.network import Network

KINDS = ("sgd", "adam")
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
WARM_UP = 10  # steps in which the average forgets its random start


class Optimiser:
    """SGD without momentum, as in the paper, or Adam, whose state of the old classes' proxies stays as it is.

    PyTorch's own do the same, but the first of them imports PyTorch's compiler: 1.5 s of every start.
    """

    def __init__(self, kind: str, lr: float, network: Network, proxy_lr: float | None = None) -> None:
        self._network, self._lr, self._proxy_lr = network, lr, lr if proxy_lr is None else proxy_lr
        # Adam's, by the parameters' names: the means of the gradient and of its square, and the number of steps.
        self._moments: dict[str, dict[str, Tensor]] | None = {} if kind == "adam" else None
        self._steps: Counter[str] = Counter()

    @torch.no_grad()
    def step(self, rate: float = 1.0) -> None:
        """Follow the gradients, with this share of the learning rates."""
        parameters = dict(self._network.named_parameters())
        for lr, group in (
            (rate * self._proxy_lr, {"proxies": parameters.pop("proxies")}),
            (rate * self._lr, parameters),
        ):
            moved = {name: each for name, each in group.items() if each.grad is not None}
            if self._moments is not None:
                for name, each in moved.items():
                    self._adam(name, each, lr)
            elif moved:  # all in one call: on a GPU a call per parameter would take longer than the work
                gradients = [each.grad for each in moved.values() if each.grad is not None]
                torch._foreach_add_(list(moved.values()), gradients, alpha=-lr)

    def _adam(self, name: str, parameter: Tensor, lr: float) -> None:
        """Kingma and Ba, 2015, algorithm 1."""
        assert self._moments is not None and parameter.grad is not None
        if name not in self._moments:
            first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
            self._moments[name] = {"exp_avg": first, "exp_avg_sq": second}
        own, gradient = self._moments[name], parameter.grad
        self._steps[name] += 1
        steps = self._steps[name]
        own["exp_avg"].lerp_(gradient, 1 - BETA1)
        own["exp_avg_sq"].mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        deviation = (own["exp_avg_sq"].sqrt() / (1 - BETA2**steps) ** 0.5).add_(EPSILON)
        parameter.addcdiv_(own["exp_avg"], deviation, value=-lr / (1 - BETA1**steps))

    def follow_proxies(self, kept: list[int]) -> None:
        """The network has new proxies whose first rows are the old rows `kept`; others are new."""
        for name in self._network.class_rows():
            own, rows = (self._moments or {}).get(name, {}), self._network.get_parameter(name)
            for key in own:
                moved = torch.zeros_like(rows, requires_grad=False)
                moved[: len(kept)] = own[key][kept]
                own[key] = moved

    def state(self) -> dict[str, Tensor]:
        moments = (self._moments or {}).items()
        state = {f"{name}.{key}": value for name, own in moments for key, value in own.items()}
        return state | {f"{name}.step": torch.tensor(float(steps)) for name, steps in self._steps.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        if self._moments is None:
            return
        for full_name, value in state.items():
            name, key = full_name.rsplit(".", 1)
            if key == "step":
                self._steps[name] = int(value)
            else:
                self._moments.setdefault(name, {})[key] = value


class WeightAverage:
    """`average <- decay * average + (1 - decay) * live` after every step, batch-norm statistics included."""

    def __init__(self, network: Network, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, live: Network, step: int) -> None:
        decay = min(self.decay, (1 + step) / (WARM_UP + step))
        averages, current = list(self.network.state_dict().values()), list(live.state_dict().values())
        real = [place for place, each in enumerate(averages) if each.is_floating_point()]
        # All in one call, as the optimiser does.
        torch._foreach_lerp_([averages[i] for i in real], [current[i] for i in real], 1 - decay)
        for place in set(range(len(averages))).difference(real):
            averages[place].copy_(current[place])  # batch-norm's step counter
