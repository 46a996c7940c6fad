"""GSS-greedy, gradient-based sample selection: keep samples whose gradients differ from those that are held."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.method import Batch, StepView
from edge_hpcr.learner.network import Network

FIRST = 0.1  # the score of samples that met an empty memory
BATCHES = 10  # n_s: random batches of held samples whose gradients are compared with
BATCH_SIZE = 10


class GSS(ER):
    """Replays at random, as ER. A sample's score is the largest cosine of its gradient with those of held samples."""

    name = "gss"
    order = 115
    source = "Aljundi et al., NeurIPS 2019; the program RaptorMai/online-continual-learning was read"
    gone: ClassVar = {"batches": BATCHES, "batch_size": BATCH_SIZE}

    # Of the batch that is stored next: the id of each newcomer, and its score.
    coming: tuple[Batch, dict[int, float]] | None = None

    def begin(self, view: StepView) -> None:
        super().begin(view)
        self.scores: dict[int, float] = {}  # by sample id, because slots change; in 32 bits, as kept

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None] | None:
        held, count = view.held, batch.incoming_rows // batch.views
        inputs, labels = batch.inputs[:count], batch.labels[:count]
        network, room = view.network.eval(), min(count, held.planned_capacity() - len(held))
        # A full memory refuses a batch whose gradient agrees with that of any held batch: stop at the first.
        refusing = gradient(network, inputs, labels) if room <= 0 else None
        kept: list[Tensor] = []
        for each in self._gradients_of_held(view):
            if refusing is not None and _agree(refusing, each):
                return {}
            kept.append(each)
        if room <= 0 and not kept:
            return {}
        slots: dict[int, int | None] = dict.fromkeys(range(room))
        room = room if room > 0 else count
        scores = similarities(network, inputs[:room], labels[:room], torch.stack(kept) if kept else None)
        slots = slots or dict(replacements(self._scores_of(held.ids()), scores, view.rng))
        self.coming = batch, {int(batch.ids[row]): float(scores[row]) for row in slots}
        return slots

    def after_step(self, view: StepView, batch: Batch) -> None:
        # What a refused step chose is not stored.
        new = self.coming[1] if self.coming is not None and self.coming[0] is batch else {}
        held = view.held.ids().tolist()
        scores = (new.get(each, self.scores.get(each, FIRST)) for each in held)
        self.scores = {each: float(np.float32(score)) for each, score in zip(held, scores, strict=True)}
        self.coming = None

    def _gradients_of_held(self, view: StepView) -> Iterator[Tensor]:
        held = len(view.held)
        size = min(BATCH_SIZE, held)
        number = min(BATCHES, held // size) if held else 0
        for slots in view.rng.permutation(held)[: number * size].reshape(number, size):
            yield gradient(view.network, *view.samples(view.held.at(slots)))

    def _scores_of(self, ids: np.ndarray) -> np.ndarray:
        return np.array([self.scores.get(each, FIRST) for each in ids.tolist()])

    def state(self) -> dict[str, Tensor]:
        ids = torch.tensor(list(self.scores), dtype=torch.int64)
        return {"ids": ids, "scores": torch.tensor(list(self.scores.values()), dtype=torch.float32)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.scores = dict(zip(state["ids"].tolist(), state["scores"].tolist(), strict=True))


def gradient(network: Network, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of the cross-entropy over all parameters, as one vector."""
    loss = F.cross_entropy(network.logits(network.features(inputs)), labels)
    parameters = [each for each in network.parameters() if each.requires_grad]
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])


def similarities(network: Network, inputs: Tensor, labels: Tensor, kept: Tensor | None) -> np.ndarray:
    """The score of each sample: the largest cosine of its own gradient with the rows of `kept`."""
    if kept is None:
        return np.full(len(inputs), FIRST)
    directions = F.normalize(kept, dim=1)
    own = (gradient(network, *each) for each in zip(inputs.split(1), labels.split(1), strict=True))
    return np.array([float((directions @ F.normalize(each, dim=0)).max()) for each in own])


def _agree(one: Tensor, other: Tensor) -> bool:
    """Whether the cosine of two gradients is not negative."""
    return float(one @ other) >= 0


def replacements(held: np.ndarray, coming: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
    """Which newcomer takes which slot: it meets a held sample, likely one with a high score, and wins as C' : c'."""
    weights = (held - held.min()) / (held.max() - held.min() + 0.01) + 1e-9  # all the same: all as likely
    victims = rng.choice(len(held), min(len(coming), len(held)), replace=False, p=weights / weights.sum())
    old, new = (held[victims] + 1) / 2, (coming[: len(victims)] + 1) / 2
    wins = rng.random(len(victims)) * (old + new) < old
    return {row: int(slot) for row, slot in enumerate(victims) if wins[row]}
