"""GSS-greedy, gradient-based sample selection: keep samples whose gradients differ from those that are held."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method, StepView
from edge_hpcr.learner.network import Network

FIRST = 0.1  # the score of samples that met an empty memory


@dataclass(frozen=True)
class Config:
    batches: int = 10  # n_s: random batches of held samples whose gradients are compared with
    batch_size: int = 10

    def __post_init__(self) -> None:
        for name in ("batches", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: give at least 1")


class GSS(Method):
    """Replays at random, as ER. A sample's score is the largest cosine of its gradient with those of held samples."""

    name = "gss"
    order = 115
    Config = Config
    source = "Aljundi et al., NeurIPS 2019; the program RaptorMai/online-continual-learning was read"

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        # By sample id, because slots change when samples leave.
        self.ids, self.scores = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        # Of the batch that is stored next: the slot of each newcomer, and its score.
        self.coming: tuple[Batch, dict[int, float]] | None = None

    def loss(self, batch: Batch) -> Tensor:
        return losses.replay_cross_entropy(batch.logits, batch.labels)

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None] | None:
        held, count = view.held, batch.incoming_rows // batch.views
        inputs, labels = batch.inputs[:count], batch.labels[:count]
        network, room = view.network.eval(), min(count, held.capacity() - len(held))
        kept = self._gradients_of_held(view) if len(held) else None
        slots: dict[int, int | None] = dict.fromkeys(range(room))
        if room <= 0:
            if kept is None or _highest_cosine(gradient(network, inputs, labels), kept) >= 0:
                return {}
            room = count
        scores = similarities(network, inputs[:room], labels, kept)
        slots = slots or dict(replacements(self._scores_of(held.ids()), scores, view.rng))
        ends = {row: len(held) + row if slot is None else slot for row, slot in slots.items()}
        self.coming = batch, {slot: float(scores[row]) for row, slot in ends.items()}
        return slots

    def after_step(self, view: StepView, batch: Batch) -> None:
        ids = view.held.ids()
        scores = self._scores_of(ids)
        if self.coming is not None and self.coming[0] is batch:
            for slot, score in self.coming[1].items():
                # Under a byte budget some of them may have left again.
                if slot < len(ids) and ids[slot] not in self.ids:
                    scores[slot] = score
        self.coming = None
        self.ids, self.scores = torch.tensor(ids), torch.tensor(scores, dtype=torch.float32)

    def _scores_of(self, ids: np.ndarray) -> np.ndarray:
        known = dict(zip(self.ids.tolist(), self.scores.tolist(), strict=True))
        return np.array([known.get(each, FIRST) for each in ids.tolist()])

    def _gradients_of_held(self, view: StepView) -> Tensor:
        held = len(view.held)
        size = min(self.config.batch_size, held)
        number = min(self.config.batches, held // size)
        gradients = []
        for slots in view.rng.permutation(held)[: number * size].reshape(number, size):
            drawn = view.held.at(slots)
            labels = torch.from_numpy(drawn.labels).to(view.device)
            gradients.append(gradient(view.network, view.plain(drawn.inputs), labels))
        return torch.stack(gradients)

    def state(self) -> dict[str, Tensor]:
        return {"ids": self.ids, "scores": self.scores}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.ids, self.scores = state["ids"].cpu(), state["scores"].cpu()


def gradient(network: Network, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of the cross-entropy over all parameters, as one vector."""
    loss = F.cross_entropy(network.logits(network.features(inputs)), labels)
    parameters = [each for each in network.parameters() if each.requires_grad]
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])


def similarities(network: Network, inputs: Tensor, labels: Tensor, kept: Tensor | None) -> np.ndarray:
    """The score of each sample: the largest cosine of its own gradient with the rows of `kept`."""
    if kept is None:
        return np.full(len(inputs), FIRST)
    rows = range(len(inputs))
    own = (gradient(network, inputs[row : row + 1], labels[row : row + 1]) for row in rows)
    return np.array([_highest_cosine(each, kept) for each in own])


def _highest_cosine(own: Tensor, kept: Tensor) -> float:
    return float(F.cosine_similarity(kept, own[None], dim=1).max())


def replacements(held: np.ndarray, coming: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
    """Which newcomer takes which slot: each meets a held sample, likely one with a high score, and wins against it with
    probability C'/(c' + C'), both scores moved to 0 to 1."""
    weights = (held - held.min()) / (held.max() - held.min() + 0.01) + 1e-9  # all the same: all as likely
    victims = rng.choice(len(held), min(len(coming), len(held)), replace=False, p=weights / weights.sum())
    old, new = (held[victims] + 1) / 2, (coming[: len(victims)] + 1) / 2
    wins = rng.random(len(victims)) * (old + new) < old
    return {row: int(slot) for row, slot in enumerate(victims) if wins[row]}
