"""A number for each sample in memory, for methods that score or count what is held."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class PerSample:
    """Numbers by sample id, because slots change when samples leave; others have the `first` one."""

    def __init__(self, first: float, dtype: torch.dtype) -> None:
        self.first = first
        self.ids, self.values = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=dtype)

    def of(self, ids: Iterable[int]) -> list[float]:
        known = dict(zip(self.ids.tolist(), self.values.tolist(), strict=True))
        return [known.get(int(each), self.first) for each in ids]

    def follow(self, held: Iterable[int], new: Mapping[int, float]) -> None:
        """Keep the numbers of these samples, with these new ones, and of no others."""
        held = [int(each) for each in held]
        values = [new.get(each, old) for each, old in zip(held, self.of(held), strict=True)]
        self.ids = torch.tensor(held, dtype=torch.int64)
        self.values = torch.tensor(values, dtype=self.values.dtype)

    def state(self, name: str) -> dict[str, Tensor]:
        return {"ids": self.ids, name: self.values}

    def load_state(self, state: Mapping[str, Tensor], name: str) -> None:
        self.ids, self.values = state["ids"].cpu(), state[name].cpu()
