"""A frozen copy of the network as it was when the last task ended, for methods that distil from it."""

import copy

from torch import Tensor

from edge_hpcr.learner.methods.contract import Method, StepView
from edge_hpcr.learner.network import Network

PREFIX = "previous."  # of the copy's tensors in the method's state


class KeepsPrevious(Method):
    """Copies the network at the end of each task. A subclass that has hooks of its own calls these as well."""

    needs_boundaries = True
    network: Network  # the one that learns
    previous: Network | None = None  # None: the first task has not ended

    @property
    def old_classes(self) -> int:
        """How many classes the previous network knows: they are the first columns."""
        return 0 if self.previous is None else self.previous.num_classes

    def begin(self, view: StepView) -> None:
        self.network = view.network

    def end_task(self, view: StepView) -> None:
        self.previous = self._copy()

    def drop_class(self, column: int) -> None:
        if self.previous is not None and column < self.old_classes:
            self.previous.keep_proxies([each for each in range(self.old_classes) if each != column])

    def bytes(self) -> int:
        """Of a second network from the start: a byte budget is planned with it, and no sample leaves when it comes."""
        own = sum(tensor.nbytes for name, tensor in self.state().items() if not name.startswith(PREFIX))
        return own + sum(tensor.nbytes for tensor in self.network.state_dict().values())

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
