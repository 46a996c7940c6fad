"""ASER_mu: replay and store by adversarial Shapley values of a nearest-neighbour classifier over the features."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.common.errors import check_at_least
from edge_hpcr.learner.memory import Replay, ReplayMemory
from edge_hpcr.learner.methods.er import ER
from edge_hpcr.learner.methods.method import Batch, StepView


@dataclass(frozen=True)
class Config:
    neighbours: int = 3  # k
    per_class: int = 3  # n_c: samples of each class that are compared

    def __post_init__(self) -> None:
        check_at_least(1, self, "neighbours", "per_class")


class ASER(ER):
    """Until the memory is full it is ER. Then it replays samples that help the held classes and stand in the way of the
    incoming ones, and keeps those that help to classify the others."""

    name = "aser"
    order = 120
    Config = Config
    paper_options: ClassVar = {
        "cifar10": {"per_class": 9},
        "cifar100": {"per_class": 2},
        "mini_imagenet": {"per_class": 3},
    }
    source = (
        "Shim et al., AAAI 2021; the program RaptorMai/online-continual-learning was read, whose classifier knows the "
        "number of all classes from the start: here it is of those seen so far, and batch-norm takes its statistics of incoming and replayed images apart"
    )

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        held = view.held
        if len(held) < held.planned_capacity():
            return held.sample(size)
        candidates = held.at(self._balanced(held, view.rng))
        friends = held.at(self._balanced(held, view.rng, without=candidates.slots))
        near = self._features(view, view.plain(candidates.inputs)), torch.from_numpy(candidates.labels)
        score = torch.zeros(len(candidates.slots))
        for sign, others, labels in ((1, friends.inputs, friends.labels), (-1, inputs, columns)):
            if len(others):
                points = self._features(view, view.plain(others)), torch.from_numpy(labels)
                score += sign * shapley(*points, *near, self.config.neighbours).mean(0)
        best = score.argsort(descending=True, stable=True)[:size].numpy()
        return held.at(candidates.slots[best])

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None] | None:
        held, count = view.held, batch.incoming_rows // batch.views
        room = max(0, min(held.planned_capacity() - len(held), count))
        slots: dict[int, int | None] = dict.fromkeys(range(room))
        rows = np.arange(room, count)
        if not len(rows) or not len(held):
            return slots
        features = self._features(view, batch.inputs[:count])
        columns = batch.labels[:count].cpu().numpy()
        # A class that the memory hardly knows would be worth nothing to the samples it holds.
        few = view.rng.uniform(0, held.planned_capacity() / batch.num_classes)
        known = np.bincount(held.labels(), minlength=batch.num_classes)
        minority = rows[known[columns[rows]] < few]
        points = held.at(self._balanced(held, view.rng))
        rest = np.setdiff1d(np.arange(len(held)), points.slots)
        candidates = held.sample_of(rest, self.config.per_class * batch.num_classes, view.rng)
        values = shapley(
            torch.cat([self._features(view, view.plain(points.inputs)), features[minority]]),
            torch.from_numpy(np.concatenate([points.labels, columns[minority]])),
            torch.cat([self._features(view, view.plain(candidates.inputs)), features[rows]]),
            torch.from_numpy(np.concatenate([candidates.labels, columns[rows]])),
            self.config.neighbours,
        ).sum(0)
        stay = len(candidates.slots)
        ranked = values.argsort(descending=True, stable=True).numpy()
        kept, left = ranked[:stay], ranked[stay:]
        newcomers, victims = rows[kept[kept >= stay] - stay], candidates.slots[left[left < stay]]
        return slots | dict(zip(newcomers.tolist(), victims.tolist(), strict=True))

    def _balanced(
        self, held: ReplayMemory, rng: np.random.Generator, without: np.ndarray | None = None
    ) -> np.ndarray:
        """Slots of up to `per_class` samples of each class, at most half of the memory: others must be left to compare."""
        labels, free = held.labels(), np.ones(len(held), bool)
        free[[] if without is None else without] = False
        own = [np.flatnonzero(free & (labels == column)) for column in np.unique(labels)]
        most = min(self.config.per_class, max(1, len(held) // (2 * len(own))))
        drawn = [rng.choice(each, min(most, len(each)), replace=False) for each in own]
        return np.concatenate(drawn)

    @staticmethod
    @torch.no_grad()
    def _features(view: StepView, inputs: Tensor) -> Tensor:
        # On the processor: the sets are small, and what is drawn of them is drawn there.
        return view.network.eval().features(inputs).cpu()


def shapley(points: Tensor, point_labels: Tensor, candidates: Tensor, labels: Tensor, k: int) -> Tensor:
    """What each candidate (column) adds to a k-nearest-neighbour classifier's being right about each point (row).

    With the candidates in the order of their distance: s(N) = hit(N)/N, and s(r) = s(r+1) + (hit(r) - hit(r+1))/k *
    min(k, r)/r, hit = 1 for a candidate of the point's class and 0 for another.
    """
    distances = torch.cdist(points, candidates, compute_mode="donot_use_mm_for_euclid_dist")
    order = distances.argsort(dim=1, stable=True)
    hits = (labels[None] == point_labels[:, None]).gather(1, order).to(points.dtype)
    count = len(candidates)
    rank = torch.arange(1, count)
    steps = (hits[:, :-1] - hits[:, 1:]) / k * rank.clamp(max=k) / rank
    values = torch.cat([steps, hits[:, -1:] / count], dim=1).flip(1).cumsum(1).flip(1)
    return torch.empty_like(values).scatter_(1, order, values)
