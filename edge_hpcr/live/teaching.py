"""How the live learner takes in what the journal says: labels, corrections, undone labels, classes that are gone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.following import Close, Forget, Relabel, Teach
from edge_hpcr.live.predictor import Answer

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner


@dataclass(frozen=True)
class Learned:
    """The learner's reply to one label."""

    seq: int
    sample_id: int
    class_id: int
    before: Answer  # what it said before it learned the label
    after: Answer
    held_out: bool
    seconds: float  # since the label was acknowledged


class Teaching:
    """Teaches a live learner, in the thread that learns."""

    def __init__(self, live: LiveLearner) -> None:
        self._live = live

    def do(self, work: list[Teach] | Relabel | Forget | Close) -> None:
        try:
            if isinstance(work, list):
                self._teach(work)
            elif isinstance(work, Relabel):
                self._live.learner.relabel(work.sample_id, work.class_id)
            elif isinstance(work, Forget):
                self._live.learner.forget(work.sample_id)
                self._live.self_test.forget(work.sample_id)
            elif work.class_id in self._live.learner.class_ids:
                self._live.learner.drop_class(work.class_id)
                self._live.self_test.held_out.drop(work.class_id)
                self._live.predictor.refresh()
        except UserError as error:
            # One label that cannot be learned (an image that is gone, a class too many for the budget) must not
            # stop all others. It stays in the journal.
            self._live.report(str(error))

    def _teach(self, batch: list[Teach]) -> None:
        """Test on the labels, then train on those that are not held out."""
        images = {}
        for teach in batch:
            try:
                images[teach.sample_id] = self._live.prepare(self._live.workspace.image(teach.sample_id))
            except UserError as error:
                self._live.report(f"a label could not be learned: {error}")
        batch = [teach for teach in batch if teach.sample_id in images]
        if not batch:
            return
        pixels = np.stack([images[teach.sample_id] for teach in batch])
        before = self._live.predictor.answer(pixels)
        for teach, answer in zip(batch, before, strict=True):
            if teach.fresh:
                self._live.self_test.test_then_train.record(
                    teach.class_id, answer.best[0] if answer.best else None
                )
        for corrected in (False, True):
            chosen = [t for t in batch if not t.held_out and t.corrected == corrected]
            if chosen:
                self._observe(chosen, images)
                self._live.predictor.refresh()
        self._live.idle_steps_left = self._live.workspace.settings.idle_steps
        now = time.time()
        after = self._live.predictor.answer(pixels)
        self._live.recent += [
            Learned(t.seq, t.sample_id, t.class_id, said, says, t.held_out, now - t.at)
            for t, said, says in zip(batch, before, after, strict=True)
        ]

    def _observe(self, chosen: list[Teach], images: dict[int, np.ndarray]) -> None:
        """One step on all of them; if that cannot be done, one at a time, so that only those are left out that fail."""
        try:
            self._live.learner.observe(
                np.stack([images[teach.sample_id] for teach in chosen]),
                [teach.class_id for teach in chosen],
                np.array([teach.sample_id for teach in chosen]),
                remember=not chosen[0].corrected,
            )
        except UserError as error:
            if len(chosen) == 1:
                self._live.report(f"the label of sample {chosen[0].sample_id} could not be learned: {error}")
            else:
                for teach in chosen:
                    self._observe([teach], images)
