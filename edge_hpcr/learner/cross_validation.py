"""What the learner would say of samples that it has not seen, asked of small copies that learn from parts of the memory.

Held-out samples answer the same better, but there are few of them while there are few labels. With a frozen trunk a copy
learns in a second, so it is done in idle time, a step at a time. The frames of a burst are left out together: a copy that
has learned one of them would know the others by heart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from edge_hpcr.learner.bursts import bursts, votes
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig

FOLDS = 4
MOST_STEPS = 200  # of rehearsal in each fold
MOST_SAMPLES = 400


@dataclass(frozen=True)
class LeftOut:
    """Answers about samples, each by a copy that did not learn it; column c stands for `class_ids[c]`."""

    class_ids: tuple[int, ...]
    scores: np.ndarray
    similarity: np.ndarray
    columns: np.ndarray  # the true ones
    ids: np.ndarray  # the samples
    weights: np.ndarray  # how much each says about pictures to come: a burst as much as one picture


class CrossValidation:
    """One cross-validation of a learner's memory as it is now; `advance` until `result` is there.

    Of a class with a single burst, groups of its frames are left out instead, so that something can be said; but those are
    known from their neighbours, and have no weight. `groups` gives samples, by their ids, the numbers of these groups, which
    are not to be divided; without it each stands alone.
    """

    def __init__(self, learner: Learner, groups: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        labels = learner.memory.labels()
        order = np.random.default_rng(learner.step).permutation(len(labels))[:MOST_SAMPLES]
        inputs, columns = learner.memory.at(order).inputs, labels[order]
        ids = learner.memory.ids()[order]
        alike = groups(ids) if groups else np.arange(len(order))
        together, weights = _together(inputs, columns, alike)
        places = np.lexsort((together, columns))  # so that folds share every class
        self._inputs, self._columns = inputs[places], columns[places]
        self._ids, self._weights = ids[places], weights[places]
        begins = np.flatnonzero(np.diff(together[places], prepend=-1) | np.diff(self._columns, prepend=-1))
        self._folds = np.searchsorted(begins, np.arange(len(order)), side="right") % FOLDS
        # A copy that has learned less than the learner is less sure, and one that has learned more is surer. In the steps
        # that took the labels, the learner had half of the samples on average.
        self._rehearsals = min(MOST_STEPS, (learner.step + 1) // 2)
        self._class_ids = tuple(learner.class_ids)
        self._config = replace(
            learner.config, memory=MemoryConfig(samples=MOST_SAMPLES, codec=learner.memory.config.codec)
        )
        self._device, self._averaged = learner.device, learner.average is not None
        self._work = self._steps()
        self.result: LeftOut | None = None

    def advance(self) -> bool:
        """One more step; whether there is more to do."""
        return next(self._work, None) is not None

    def _steps(self) -> Iterator[bool]:
        scores = np.zeros((len(self._columns), len(self._class_ids)), np.float32)
        similarity = np.zeros(len(self._columns), np.float32)
        asked = np.zeros(len(self._columns), bool)
        for fold in range(FOLDS):
            left_out = self._folds == fold
            # A class that would lose its only sample cannot be asked about.
            left_out &= np.isin(self._columns, self._columns[~left_out])
            if not left_out.any():
                continue
            copy = Learner(self._config, self._device)
            copy.observe(self._inputs[~left_out], self._columns[~left_out])
            yield True
            for _ in range(self._rehearsals):
                if copy.rehearse() is None:
                    break
                yield True
            said = copy.predict(self._inputs[left_out], averaged=self._averaged)
            scores[np.ix_(left_out, said.class_ids)] = said.scores
            similarity[left_out], asked = said.similarity, asked | left_out
        self.result = LeftOut(
            self._class_ids,
            *(each[asked] for each in (scores, similarity, self._columns, self._ids, self._weights)),
        )


def _together(inputs: np.ndarray, columns: np.ndarray, alike: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of groups that are left out together, and how much each sample says about pictures to come."""
    shots = bursts(inputs[:, 0], columns)
    weights = votes(shots)
    for column in np.unique(columns):
        own = columns == column
        if len(np.unique(shots[own])) == 1:
            shots[own], weights[own] = len(columns) + alike[own], 0.0
    return shots, weights
