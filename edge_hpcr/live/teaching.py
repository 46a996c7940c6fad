"""How the live learner takes in what the journal says: its events as small operations, and each of those done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.records import Event

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner
    from edge_hpcr.live.predictor import Answer


@dataclass(frozen=True)
class Teach:
    """A sample to test on, and to learn unless it is held out."""

    sample_id: int
    class_id: int
    held_out: bool
    fresh: bool  # nobody has said anything of it before; otherwise the learner may know it, and it is no test
    corrected: bool  # it had another class before: the memory has been offered it already
    seq: int
    at: float


@dataclass(frozen=True)
class Relabel:
    """The memory's label changes. Without a `Teach` after it (a merge, or its undoing), nobody looked at the image."""

    sample_id: int
    class_id: int
    was: int | None = None  # the class that it was learned as; None: it was held out
    taught_anew: bool = False


@dataclass(frozen=True)
class Forget:
    sample_id: int
    was: int | None = None  # as above


@dataclass(frozen=True)
class Close:
    """A class is gone."""

    class_id: int


@dataclass(frozen=True)
class Done:
    """Everything of this event has been given."""

    seq: int


Operation = Teach | Relabel | Forget | Close | Done


def operations(event: Event) -> Iterable[Operation]:
    for move in event.moves:
        learned = None if move.was_held_out else move.was
        if move.now is None:
            yield Forget(move.sample_id, learned)
            continue
        # A label says something about an image; a merge, or undoing one, only about names.
        taught = move.was is None or event.kind in ("label", "correct")
        if move.was is not None:
            yield Relabel(move.sample_id, move.now, learned, taught)
        if taught:
            fresh, corrected = event.kind == "label" and move.was is None, move.was is not None
            yield Teach(move.sample_id, move.now, move.held_out, fresh, corrected, event.seq, event.at)
    for class_id in event.closed:
        yield Close(class_id)
    yield Done(event.seq)


class Follower:
    """The operations that wait, and the last event of which everything was done.

    Labels of several events may share a step. `next` hands out work, `done` says that it was done: then a checkpoint
    may name `applied`, provided that no event is half done (`whole`).
    """

    def __init__(self, applied: int) -> None:
        self.applied = applied
        self.read = applied  # the last event whose operations have been put here
        self.whole = True
        self.labels_waiting = 0
        self._waiting: deque[Operation] = deque()
        self._reached = applied

    @property
    def oldest_waiting(self) -> float | None:
        """When the first label that waits was given."""
        return next((operation.at for operation in self._waiting if isinstance(operation, Teach)), None)

    def put(self, events: Iterable[Event]) -> None:
        for event in events:
            for operation in operations(event):
                self._waiting.append(operation)
                self.labels_waiting += isinstance(operation, Teach)
            self.read = event.seq

    def next(self, most: int) -> list[Teach] | Relabel | Forget | Close | None:
        """The labels at the front, up to so many, or else the one operation there; None when nothing waits."""
        batch: list[Teach] = []
        while self._waiting and len(batch) < most:
            operation = self._waiting[0]
            if isinstance(operation, Done):
                self._pass_end()
            elif isinstance(operation, Teach):
                if any(operation.sample_id == teach.sample_id for teach in batch):
                    break  # labelled anew before the learner came to it: one after the other
                batch.append(operation)
                self._take()
                self.labels_waiting -= 1
            elif batch:
                break
            else:
                self._take()
                return operation
        if not batch:
            self.done()
        return batch or None

    def done(self) -> None:
        """What `next` gave has been done."""
        while self._waiting and isinstance(self._waiting[0], Done):
            self._pass_end()
        self.applied = self._reached

    def _take(self) -> None:
        self._waiting.popleft()
        self.whole = False

    def _pass_end(self) -> None:
        end = self._waiting.popleft()
        if isinstance(end, Done):
            self._reached = end.seq
        self.whole = True


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
                self._correct(work, None if work.taught_anew else work.class_id)
                if (
                    not work.taught_anew
                ):  # nobody labels it again, so nothing else would make the learner follow
                    self._live.idle_steps_left = self._live.workspace.settings.idle_steps
                    self._live.predictor.refresh()
            elif isinstance(work, Forget):
                self._live.learner.forget(work.sample_id)
                self._live.self_test.forget(work.sample_id)
                self._correct(work, None)
            else:
                self._drop(work.class_id)
                self._live.self_test.held_out.drop(work.class_id)
            if isinstance(work, Relabel | Forget):
                self._drop_if_unlearned(work.was)
        except UserError as error:
            # One label that cannot be learned (an image that is gone, a class too many for the budget) must not
            # stop all others. It stays in the journal.
            self._live.report(str(error))

    def _drop_if_unlearned(self, class_id: int | None) -> None:
        """Nothing that was learned of the class may be left: then the learner must not answer with it.

        The journal is ahead of the learner: what is kept of the class may be about to move to another, as in a merge.
        """
        learner = self._live.learner
        if class_id not in learner.class_ids or learner.keeps_any(class_id):
            return
        if not self._live.workspace.journal.has_trained_label(class_id):
            self._drop(class_id)

    def _drop(self, class_id: int) -> None:
        if class_id in self._live.learner.class_ids:
            self._live.learner.drop_class(class_id)
            self._live.predictor.refresh()

    def _correct(self, work: Relabel | Forget, class_id: int | None) -> None:
        """Let a method that keeps statistics instead of samples move one to another class, or out."""
        learner = self._live.learner
        if not learner.method.closed_form or work.was not in learner.class_ids:
            return
        try:
            inputs = self._live.inputs_of(work.sample_id)[None]
        except UserError as error:
            self._live.report(f"sample {work.sample_id} stays learned as before: {error}")
            return
        learner.unlearn(inputs, [work.was])
        if class_id is not None:
            learner.observe(inputs, [class_id])
        self._live.predictor.refresh()

    def _teach(self, batch: list[Teach]) -> None:
        """Test on the labels, then train on those that are not held out."""
        images = {}
        for teach in batch:
            try:
                images[teach.sample_id] = self._live.prepare(self._live.workspace.image(teach.sample_id))
            except UserError as error:
                # After a restart labels are learned again that were undone since: those may have lost their image.
                if self._live.workspace.journal.labels_of([teach.sample_id]):
                    self._live.report(f"a label could not be learned: {error}")
        batch = [teach for teach in batch if teach.sample_id in images]
        if not batch:
            return
        encoder = self._live.predictor.encoder
        inputs = {i: encoder.encode_sample(i, image) for i, image in images.items()}
        asked = np.stack([inputs[teach.sample_id] for teach in batch])
        before = self._live.predictor.answer(asked)
        for teach, answer in zip(batch, before, strict=True):
            if not teach.fresh:
                continue
            # The first labels of a class cannot be right: they would only measure how many classes came together.
            if teach.class_id not in self._live.learner.class_ids:
                self._live.self_test.test_then_train.of_new_classes += 1
                continue
            best = answer.best[0] if answer.best else None
            self._live.self_test.test_then_train.record(teach.class_id, best)
        for corrected in (False, True):
            chosen = [t for t in batch if not t.held_out and t.corrected == corrected]
            if chosen:
                self._observe(chosen, images, inputs)
                self._live.predictor.refresh()
        self._live.idle_steps_left = self._live.workspace.settings.idle_steps
        now = time.time()
        after = self._live.predictor.answer(asked)
        self._live.recent += [
            Learned(t.seq, t.sample_id, t.class_id, said, says, t.held_out, now - t.at)
            for t, said, says in zip(batch, before, after, strict=True)
        ]

    def _observe(
        self, chosen: list[Teach], images: dict[int, np.ndarray], inputs: dict[int, np.ndarray]
    ) -> None:
        """One step on all of them; if that cannot be done, one at a time, so that only those are left out that fail."""
        learner, ids = self._live.learner, [teach.sample_id for teach in chosen]
        try:
            learner.observe(
                learner.encode(np.stack([images[i] for i in ids]), np.stack([inputs[i] for i in ids])),
                [teach.class_id for teach in chosen],
                np.array(ids),
                remember=not chosen[0].corrected,
            )
        except UserError as error:
            if len(chosen) == 1:
                self._live.report(f"the label of sample {chosen[0].sample_id} could not be learned: {error}")
            else:
                for teach in chosen:
                    self._observe([teach], images, inputs)
