"""GSS-greedy, gradient-based sample selection: keep samples whose gradients differ from those that are held."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import losses
from edge_hpcr.learner.methods.contract import Batch, Method, StepView
from edge_hpcr.learner.methods.per_sample import PerSample
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

    # Of the batch that is stored next: the id of each newcomer, and its score.
    coming: tuple[Batch, dict[int, float]] | None = None

    def begin(self, view: StepView) -> None:
        self.scores = PerSample(FIRST, torch.float32)

    def loss(self, batch: Batch) -> Tensor:
        return losses.replay_cross_entropy(batch.logits, batch.labels)

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None] | None:
        held, count = view.held, batch.incoming_rows // batch.views
        inputs, labels = batch.inputs[:count], batch.labels[:count]
        network, room = view.network.eval(), min(count, held.capacity() - len(held))
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
        slots = slots or dict(replacements(np.array(self.scores.of(held.ids())), scores, view.rng))
        self.coming = batch, {int(batch.ids[row]): float(scores[row]) for row in slots}
        return slots

    def after_step(self, view: StepView, batch: Batch) -> None:
        # What a refused step chose is not stored.
        new = self.coming[1] if self.coming is not None and self.coming[0] is batch else {}
        self.scores.follow(view.held.ids(), new)
        self.coming = None

    def _gradients_of_held(self, view: StepView) -> Iterator[Tensor]:
        held = len(view.held)
        size = min(self.config.batch_size, held)
        number = min(self.config.batches, held // size) if held else 0
        for slots in view.rng.permutation(held)[: number * size].reshape(number, size):
            drawn = view.held.at(slots)
            labels = torch.from_numpy(drawn.labels).to(view.device)
            yield gradient(view.network, view.plain(drawn.inputs), labels)

    def state(self) -> dict[str, Tensor]:
        return self.scores.state("scores")

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.scores.load_state(state, "scores")


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
