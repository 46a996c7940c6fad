"""What several methods are built from: a look one step ahead, and the network of the last task."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.memory import Replay
from edge_hpcr.learner.methods.method import Method, StepView
from edge_hpcr.learner.network import Network

PREFIX = "previous."  # of the previous network's tensors in a method's state


def cross_entropy(network: Network, plain: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(network.logits(network.features(plain)), labels)


def after_virtual_step(
    view: StepView,
    inputs: np.ndarray,
    columns: np.ndarray,
    loss: Callable[[Network, Tensor, Tensor], Tensor] = cross_entropy,
) -> Network:
    """A copy of the network, one SGD step further on the loss of these samples; in evaluation mode.

    On a copy, because the pass moves batch-norm's statistics; in the copy they stay moved, as after a real step.
    """
    network = copy.deepcopy(view.network).train(len(inputs) > 1)
    with torch.enable_grad():
        loss(network, view.plain(inputs), torch.from_numpy(columns).to(view.device)).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=view.lr)
    return network.eval().requires_grad_(False)


@torch.no_grad()
def most_enlarged(
    view: StepView,
    drawn: Replay,
    later: Network,
    measure: Callable[[Network, Tensor, Tensor], Tensor],
    size: int,
) -> Replay:
    """So many of the drawn samples: those whose measure a virtual step enlarges most."""
    samples, labels = view.samples(drawn)
    growth = measure(later, samples, labels) - measure(view.network.eval(), samples, labels)
    most = growth.argsort(descending=True, stable=True)[:size].cpu().numpy()
    return view.held.at(drawn.slots[most])


class KeepsPrevious(Method):
    """Distils from a frozen copy of the network, made at the end of each task. A subclass with hooks of its own calls these."""

    needs_boundaries = True
    previous: Network | None = None  # None: the first task has not ended

    @property
    def old_classes(self) -> int:
        """How many classes the previous network knows: they are the first columns."""
        return 0 if self.previous is None else self.previous.num_classes

    def end_task(self, view: StepView) -> None:
        self.previous = self._copy()

    def drop_class(self, column: int) -> None:
        if self.previous is not None and column < self.old_classes:
            self.previous.keep_proxies([each for each in range(self.old_classes) if each != column])

    def bytes(self) -> int:
        return sum(tensor.nbytes for name, tensor in self.state().items() if not name.startswith(PREFIX))

    def network_bytes(self) -> int:
        """Of the second network, also before it is there: that it will be is certain."""
        return sum(tensor.nbytes for tensor in self.network.state_dict().values())

    def state(self) -> dict[str, Tensor]:
        if self.previous is None:
            return {}
        return {PREFIX + name: tensor for name, tensor in self.previous.state_dict().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        kept = {name.removeprefix(PREFIX): t for name, t in state.items() if name.startswith(PREFIX)}
        self.previous = self._copy() if kept else None
        if self.previous is not None:
            self.previous.take_over(kept)

    def _copy(self) -> Network:
        return copy.deepcopy(self.network).eval().requires_grad_(False)
