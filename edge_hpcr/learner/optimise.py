"""What follows a step's gradients: an optimiser for a network whose proxies grow, and an average of its weights."""

import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.network import Network

KINDS = ("sgd", "adam", "muon")
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
MOMENTUM = 0.6  # Muon's
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients that its authors tuned for five iterations
WARM_UP = 10  # steps in which the average forgets its random start
SETTLED = 10**6  # steps after which a class is as old as any


class Optimiser:
    """SGD without momentum, as in the paper; Adam, whose state of the old classes' proxies stays as it is; or Muon.

    Muon is for convolutions followed by batch-norm; all other parameters follow SGD. PyTorch's own do
    the same, but the first of them imports PyTorch's compiler: 1.5 s of every start.
    """

    def __init__(self, kind: str, lr: float, network: Network, proxy_lr: float | None = None) -> None:
        self._network, self._lr, self._proxy_lr = network, lr, lr if proxy_lr is None else proxy_lr
        self._kind = kind
        # By the parameters' names: the mean of the gradient, and Adam's of its square and number of steps.
        self._moments: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, rate: float = 1.0) -> None:
        """Follow the gradients, with this share of the learning rates."""
        parameters = dict(self._network.named_parameters())
        for lr, group in (
            (rate * self._proxy_lr, {"proxies": parameters.pop("proxies")}),
            (rate * self._lr, parameters),
        ):
            plain = []
            for name, each in group.items():
                if each.grad is None:
                    continue
                if self._kind == "adam":
                    self._adam(name, each, each.grad, lr)
                elif self._kind == "muon" and each.dim() == 4:
                    self._muon(name, each, each.grad, lr)
                else:
                    plain.append((each, each.grad))
            if plain:  # all in one call: on a GPU a call per parameter would take longer than the work
                torch._foreach_add_(*map(list, zip(*plain, strict=True)), alpha=-lr)

    def _moments_of(self, name: str, parameter: Tensor, *keys: str) -> dict[str, Tensor]:
        if name not in self._moments:
            self._moments[name] = {key: torch.zeros_like(parameter) for key in keys}
        return self._moments[name]

    def _adam(self, name: str, parameter: Tensor, gradient: Tensor, lr: float) -> None:
        """Kingma and Ba, 2015, algorithm 1."""
        own = self._moments_of(name, parameter, "exp_avg", "exp_avg_sq")
        # A class that comes late begins with the steps of any new one, not with the first's.
        each_row = name in self._network.class_rows()
        steps = own.setdefault("step", torch.zeros((len(parameter), 1) if each_row else ())).add_(1).double()
        rate, spread = (-lr / (1 - BETA1**steps)).to(parameter), (1 - BETA2**steps).sqrt().to(parameter)
        own["exp_avg"].lerp_(gradient, 1 - BETA1)
        own["exp_avg_sq"].mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        deviation = own["exp_avg_sq"].sqrt().div_(spread).add_(EPSILON)
        parameter.add_((own["exp_avg"] * rate).div_(deviation))

    def _muon(self, name: str, weight: Tensor, gradient: Tensor, lr: float) -> None:
        """Jordan et al., 2024: a step of the same size in all directions of a layer.

        Behind batch-norm the length of the weights changes no output. Kept constant, it makes a step as large compared
        with them late in a learner's life as early.
        """
        own = self._moments_of(name, weight, "exp_avg")
        own["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(own["exp_avg"], MOMENTUM)  # Nesterov's
        weight.mul_(len(weight) ** 0.5 / weight.norm())
        weight.sub_(orthogonalised(ahead.flatten(1)).view_as(weight), alpha=lr)

    def follow_proxies(self, kept: list[int] | None = None) -> None:
        """The network has new proxies: first the old rows `kept` (None: all of them), then those of new classes."""
        for name in self._network.class_rows():
            own, rows = self._moments.get(name, {}), self._network.get_parameter(name)
            for key, before in own.items():
                old = before if kept is None else before[kept]
                own[key] = F.pad(old, (0, 0, 0, len(rows) - len(old)))

    def state(self) -> dict[str, Tensor]:
        moments = self._moments.items()
        return {f"{name}.{key}": value for name, own in moments for key, value in own.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for full_name, value in state.items():
            name, key = full_name.rsplit(".", 1)
            parameter = self._network.get_parameter(name)
            if key == "step":
                value = value.cpu()
                if name in self._network.class_rows():  # older checkpoints have one for all classes
                    value = value.reshape(-1, 1).expand(len(parameter), 1).clone()
            else:  # in the parameter's layout, as it was made
                value = torch.empty_like(parameter).copy_(value)
            self._moments.setdefault(name, {})[key] = value


def orthogonalised(matrix: Tensor, iterations: int = 5) -> Tensor:
    """About the nearest matrix whose singular values are all one, by Newton and Schulz' iteration.

    `x <- p x` with `p = a + b xx' + c (xx')^2`: the products of `p` are collected as matrices of the size of the small `xx'`, which takes
    less than half of the multiplications.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    first, third, fifth = NEWTON_SCHULZ
    x = wide / (wide.norm() + 1e-7)
    one = torch.eye(len(x), device=x.device, dtype=x.dtype)

    def polynomial(square: Tensor) -> Tensor:
        return first * one + third * square + fifth * square @ square

    square = x @ x.T
    p = product = polynomial(square)
    for _ in range(iterations - 1):
        square = p @ square @ p
        p = polynomial(square)
        product = p @ product
    x = product @ x
    return x if wide is matrix else x.T


class WeightAverage:
    """`average <- decay * average + (1 - decay) * live` after every step, batch-norm statistics included.

    It spans half of the steps since the newest class came, at the most: a longer one would still hold the network that did
    not know the class, and its proxy's random start, and would not recognise the class for hundreds of steps.
    """

    def __init__(self, network: Network, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        # Steps since each class came; those that are there count as old.
        self.ages = [SETTLED] * network.num_classes

    @torch.no_grad()
    def update(self, live: Network, step: int) -> None:
        newest = min(self.ages, default=SETTLED)
        decay = min(self.decay, (1 + step) / (WARM_UP + step), (1 + newest) / (3 + newest))
        self.ages = [min(age + 1, SETTLED) for age in self.ages]
        averages, current = self.network.state_dict(), live.state_dict()
        real = [name for name, each in averages.items() if each.is_floating_point()]
        # All in one call, as the optimiser does.
        torch._foreach_lerp_([averages[i] for i in real], [current[i] for i in real], 1 - decay)
        for name in averages.keys() - set(real):
            averages[name].copy_(current[name])  # batch-norm's step counter
