"""What the learner says of stored samples now, for pages that show many of them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer, Predictor

KEPT_BYTES = 32_000_000  # of what the trainable part sees of the samples that were asked about last
BATCH = 64
FRESH_SECONDS = 2.0  # an answer is not asked for again before that


class SampleAnswers:
    """Answers about samples; reading their images takes time, so those are read once, and not all in one question.

    Any thread may ask.
    """

    def __init__(self, live: LiveLearner) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._forget(live.predictor)

    def _forget(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._inputs: OrderedDict[int, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._answers: dict[int, tuple[float, Answer]] = {}

    def of(self, ids: Iterable[int], seconds: float) -> dict[int, Answer]:
        """The answers about these samples, as far as their images can be read within so many seconds."""
        deadline = time.monotonic() + seconds
        wanted = [*dict.fromkeys(ids)]
        with self._lock:
            if self._predictor is not self._live.predictor:  # another network
                self._forget(self._live.predictor)
            stale = time.monotonic() - FRESH_SECONDS
            asked = [i for i in wanted if i not in self._answers or self._answers[i][0] < stale]
        for start in range(0, len(asked), BATCH):
            self._ask(asked[start : start + BATCH], deadline)
        with self._lock:
            return {i: self._answers[i][1] for i in wanted if i in self._answers}

    def _ask(self, ids: list[int], deadline: float) -> None:
        predictor, inputs = self._predictor, {}
        for sample_id in ids:
            with self._lock:
                found = self._inputs.get(sample_id)
            if found is None and time.monotonic() < deadline:
                try:
                    found = self._live.inputs_of(sample_id)
                except UserError:
                    continue  # its image is gone: there is nothing to ask about
                self._keep(sample_id, found)
            if found is not None:
                inputs[sample_id] = found
        if not inputs:
            return
        answers = predictor.answer(np.stack([*inputs.values()]))
        now = time.monotonic()
        with self._lock:
            if predictor is self._predictor:
                self._answers |= {i: (now, answer) for i, answer in zip(inputs, answers, strict=True)}

    def _keep(self, sample_id: int, inputs: np.ndarray) -> None:
        with self._lock:
            if sample_id not in self._inputs:
                self._bytes += inputs.nbytes
            self._inputs[sample_id] = inputs
            while self._bytes > KEPT_BYTES:
                old, dropped = self._inputs.popitem(last=False)
                self._bytes -= dropped.nbytes
                self._answers.pop(old, None)
