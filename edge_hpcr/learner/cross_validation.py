"""What the learner would say of samples that it has not seen, asked of small copies that learn from parts of the memory.

Held-out samples answer the same better, but there are few of them while there are few labels. With a frozen trunk a copy
learns in a second, so it is done in idle time, a step at a time. The frames of a burst are left out together: a copy that
has learned one of them would know the others by heart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np

from edge_hpcr.learner.bursts import bursts, one_of_each
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig

FOLDS = 4
# Whose copies need no rehearsal: the more they learn, the nearer they are to the learner.
FOLDS_OF_CLOSED_FORMS = 10
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


class CrossValidation:
    """One cross-validation of a learner's memory as it is now; `advance` until `result` is there.

    Of a burst one picture is asked about, and of a class with a single burst none: a copy knows nothing else of it. `fair`
    says of samples, by their ids, which may be asked about: those that nobody chose for being difficult.
    """

    def __init__(self, learner: Learner, fair: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        labels = learner.memory.labels()
        order = np.random.default_rng(learner.step).permutation(len(labels))[:MOST_SAMPLES]
        inputs, columns = learner.memory.at(order).inputs, labels[order]
        ids = learner.memory.ids()[order]
        together = bursts(inputs[:, 0, : learner.network.feature_size], columns)
        asked = one_of_each(together, fair(ids) if fair else np.ones(len(ids), bool))
        places = np.argsort(together, kind="stable")  # by class, so that folds share every class
        self._inputs, self._columns = inputs[places], columns[places]
        self._ids, self._asked = ids[places], asked[places]
        self.folds = FOLDS_OF_CLOSED_FORMS if learner.method.closed_form else FOLDS
        self._folds = together[places] % self.folds
        # A copy that has learned less than the learner is less sure, and one that has learned more is surer. In the steps
        # that took the labels, the learner had half of the samples on average.
        self._rehearsals = 0 if learner.method.closed_form else min(MOST_STEPS, (learner.step + 1) // 2)
        self._class_ids = tuple(learner.class_ids)
        self._method = learner.method
        self._config = replace(
            learner.config, memory=MemoryConfig(samples=MOST_SAMPLES, codec=learner.memory.config.codec)
        )
        self._device, self._averaged = learner.device, learner.average is not None
        self._work, self._begun, self._steps_done = self._steps(), time.monotonic(), 0
        self.result: LeftOut | None = None

    def advance(self) -> bool:
        """One more step; whether there is more to do."""
        self._steps_done += 1
        return next(self._work, None) is not None

    def close(self) -> None:
        """End it before its time. It and its work refer to each other, so its copy of the learner would stay for minutes."""
        self._work.close()

    @property
    def seconds_left(self) -> float:
        """How long it will take at the speed that it had so far, with all that happened in between."""
        left = max(0, self.folds * (1 + self._rehearsals) - self._steps_done)
        return left * (time.monotonic() - self._begun) / max(1, self._steps_done)

    def _steps(self) -> Generator[bool, None, None]:
        scores = np.zeros((len(self._columns), len(self._class_ids)), np.float32)
        similarity = np.zeros(len(self._columns), np.float32)
        answered = np.zeros(len(self._columns), bool)
        for fold in range(self.folds):
            left_out = self._folds == fold
            # A class that would lose its only sample cannot be asked about.
            left_out &= np.isin(self._columns, self._columns[~left_out])
            asked = left_out & self._asked
            if not asked.any():
                continue
            copy = Learner(self._config, self._device)
            copy.method.follow(self._method)
            copy.observe(self._inputs[~left_out], self._columns[~left_out])
            yield True
            for _ in range(self._rehearsals):
                if copy.rehearse() is None:
                    break
                yield True
            said = copy.predict(self._inputs[asked], averaged=self._averaged)
            scores[np.ix_(asked, said.class_ids)] = said.scores
            similarity[asked], answered = said.similarity, answered | asked
        self.result = LeftOut(
            self._class_ids,
            *(each[answered] for each in (scores, similarity, self._columns, self._ids)),
        )
