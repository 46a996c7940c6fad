"""How the live learner tests itself: held-out accuracy, calibration, suspicious labels, what waits in the queue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.bursts import bursts, votes
from edge_hpcr.learner.calibration import FEWEST_SAMPLES, Calibration, calibrate
from edge_hpcr.learner.cross_validation import CrossValidation, LeftOut
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain, held_out_ids
from edge_hpcr.live.suspicious import Suspicion, contradictions, suspicious
from edge_hpcr.live.verdict import Contradiction
from edge_hpcr.workspace.held_out import UNKNOWN_HASH, alike

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

TEST_EVERY_STEPS = 50  # on held-out samples, when nothing waits
TEST_AT_LEAST_EVERY_STEPS = 1000  # even when labels wait
TEST_SHARE = 0.1  # of the time, at most
TEST_BATCH = 64
ENOUGH_HELD_OUT = 200  # samples, to calibrate on them alone
MOST_SUSPECTS, SUSPICIONS_KEPT = 1000, 50


class SelfTest:
    """Tests a live learner, in the thread that learns. `notes` are those of the checkpoint, if there is one."""

    def __init__(self, live: LiveLearner, notes: dict[str, Any]) -> None:
        self._live = live
        tested = notes.get("test_then_train")
        self.test_then_train = TestThenTrain.from_state(tested) if tested else TestThenTrain()
        self.held_out = HeldOut.from_state(notes["held_out"]) if notes else HeldOut()
        self.suspicions: list[Suspicion] = []
        self.contradictions: list[Contradiction] = []
        self._inputs: dict[int, np.ndarray] = {}  # of held-out samples, as the trainable part sees them
        self._tested_step, self._tested_seq, self._next_test = -1, -1, 0.0
        self._validating: CrossValidation | None = None
        self._left_out: LeftOut | None = None
        self._calibrated_on: list[LeftOut] = []
        self._validated_seq = -1
        self._asked_again = 0  # the last queued sample whose priority was refreshed

    def notes(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "test_then_train": self.test_then_train.state(),
            "held_out": self.held_out.state(),
            "suspicious": [asdict(suspicion) for suspicion in self.suspicions],
        }

    def summary(self) -> dict[str, Any]:
        """What the status says."""
        return {
            "test_then_train": self.test_then_train.summary(),
            "held_out": self.held_out.summary(),
            "suspicious": [asdict(suspicion) for suspicion in self.suspicions],
            "answers": self.answers(),
            "contradictions": [asdict(each) for each in self.contradictions],
        }

    def answers(self) -> list[tuple[int, int, int]]:
        """Answers to pictures that were not learned (true class, answer, how many): held out, or left out of copies."""
        counted = Counter({(true, said): count for true, said, count in self.held_out.confusion})
        counted.update((true, said) for _, true, said in self._answers_of_copies())
        return [(true, said, count) for (true, said), count in sorted(counted.items())]

    def left_out_samples(self, true: int, said: int) -> list[int]:
        """Samples of one class that copies which had not learned them called the other; any thread may ask."""
        return [sample_id for sample_id, *answer in self._answers_of_copies() if answer == [true, said]]

    def _answers_of_copies(self) -> list[tuple[int, int, int]]:
        """Samples that copies had not learned, their classes, and what the copies said."""
        left_out = self._left_out_now()
        if left_out is None:
            return []
        class_ids = np.array(left_out.class_ids)
        answers = class_ids[left_out.columns], class_ids[left_out.scores.argmax(1)]
        return list(zip(left_out.ids.tolist(), *(each.tolist() for each in answers), strict=True))

    def _left_out_now(self) -> LeftOut | None:
        """What copies said of the present classes, as long as few samples are held out."""
        found = self._left_out
        if found is None or self.held_out.samples >= ENOUGH_HELD_OUT:
            return None
        return found if found.class_ids == tuple(self._live.learner.class_ids) else None

    def forget(self, sample_id: int) -> None:
        self._inputs.pop(sample_id, None)

    def forget_inputs(self) -> None:
        """Of a learner that was replaced."""
        self._inputs.clear()

    def test_if_due(self, idle: bool) -> None:
        steps = self._live.learner.step - self._tested_step
        labelled = self._tested_seq != self._live.follower.applied
        done = steps > 0 and not self._live.idle_steps_left
        due = idle and (labelled or done or steps >= TEST_EVERY_STEPS)
        if (due or steps >= TEST_AT_LEAST_EVERY_STEPS) and time.monotonic() >= self._next_test:
            begun = time.monotonic()
            if self.test() and idle:
                self._look_at_labels()
                self._refresh_queue()
            self._next_test = time.monotonic() + (time.monotonic() - begun) * (1 - TEST_SHARE) / TEST_SHARE

    def test(self) -> bool:
        """Test on the held-out samples, and calibrate on the same: a threshold more or less is no training.

        False when a label came before all of them were read: it must not wait while a trunk sees them.
        """
        truth = self._load_held_out()
        if truth is None:
            return False
        self._tested_step, self._tested_seq = self._live.learner.step, self._live.follower.applied
        ids = list(truth)
        if not ids or not self._live.learner.class_ids:
            self.held_out.record(self._live.learner.step, np.empty(0, np.int64), np.empty(0, np.int64))
            self._calibrate([])
            return True
        inputs = np.stack([self._inputs[i] for i in ids])
        parts = [self._live.predictor.predict(batch) for batch in _batches(inputs)]
        scores = np.concatenate([part.scores for part in parts])
        similarity = np.concatenate([part.similarity for part in parts])
        class_ids = parts[0].class_ids
        labels = np.array([truth[i] for i in ids])
        self.held_out.record(self._live.learner.step, labels, class_ids[scores.argmax(1)])
        known = np.isin(labels, class_ids)
        columns = np.array([int(np.flatnonzero(class_ids == c)[0]) for c in labels[known]], dtype=np.int64)
        weights = self._weights(inputs[known], columns)
        self._calibrate(
            [
                LeftOut(
                    tuple(class_ids.tolist()),
                    *(scores[known], similarity[known], columns, np.array(ids)[known], weights),
                )
            ]
        )
        return True

    def _weights(self, inputs: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """How much held-out samples say about pictures to come: of a burst some frames may have been learned."""
        if not self._sees_vectors:
            return np.ones(len(columns))
        memory = self._live.learner.memory
        learned = memory.at(np.arange(len(memory)))
        together = bursts(
            np.concatenate([inputs[:, 0], learned.inputs[:, 0]]), np.concatenate([columns, learned.labels])
        )
        own, taught = together[: len(columns)], together[len(columns) :]
        return votes(own) * ~np.isin(own, taught)

    def _calibrate(self, held_out: list[LeftOut]) -> None:
        """On samples that were not learned, and while those are few, on what was left out of copies too."""
        if (left_out := self._left_out_now()) is not None:
            held_out = [*held_out, left_out]
        restored = self._validated_seq == -1 and self._live.predictor.calibration.samples
        if restored and len(self._live.learner.memory) >= FEWEST_SAMPLES:
            return  # of the checkpoint; it stands until the first cross-validation of this process
        if not held_out:
            self._live.predictor.calibration = Calibration()
            return
        self._calibrated_on = held_out
        self.recalibrate()

    def recalibrate(self) -> None:
        """Once more, for another share of samples that may be called unknown."""
        if self._calibrated_on:
            self._live.predictor.calibration = self.calibration_for(
                self._live.workspace.settings.unknown_share
            )

    def calibration_for(self, unknown_share: float) -> Calibration:
        """As it would be with this share; any thread may ask."""
        asked = self._calibrated_on
        if not asked:
            return self._live.predictor.calibration
        scores, similarity, columns, weights = (
            np.concatenate([getattr(each, name) for each in asked])
            for name in ("scores", "similarity", "columns", "weights")
        )
        return calibrate(scores, similarity, columns, unknown_share, weights)

    def validate(self) -> bool:
        """A step of a cross-validation, once for every state of the labels; False when there is nothing to do."""
        if not self.is_validating:
            return False
        if self._validated_seq != self._live.follower.applied or self._validating is None:
            self._validating = CrossValidation(self._live.learner, self._groups)
            self._validated_seq = self._live.follower.applied
        try:
            if self._validating.advance():
                return True
            self._left_out = self._validating.result
            self.test()
            self._live.saving.demand()
        except UserError as error:
            self._live.report(f"confidence could not be calibrated: {error}")
        self._validating = None
        return True

    def _groups(self, ids: np.ndarray) -> np.ndarray:
        """Numbers of groups of samples that look alike; those without a hash stand alone."""
        hashes = self._live.workspace.journal.hashes_of(ids.tolist())
        codes = np.array([hashes.get(each, UNKNOWN_HASH) for each in ids.tolist()], np.uint64)
        groups, alone = np.arange(len(ids)), codes == UNKNOWN_HASH
        groups[~alone] = len(ids) + alike(codes[~alone])
        return groups

    @property
    def is_validating(self) -> bool:
        """Whether a cross-validation of the present labels is possible, and not over yet."""
        # Copies that learn from more than a vector per sample would keep labels waiting.
        if not self._sees_vectors or len(self._live.learner.memory) < FEWEST_SAMPLES:
            return False
        return self._validating is not None or self._validated_seq != self._live.follower.applied

    @property
    def _sees_vectors(self) -> bool:
        """Whether a frozen trunk makes a vector of each picture, which no label has changed."""
        trunk = self._live.learner.network.backbone.trunk
        return trunk is not None and len(trunk.latent_shape) == 1

    def _look_at_labels(self) -> None:
        """Which seem wrong, and which contradict each other; of a large memory, the same part each time is enough."""
        memory = self._live.learner.memory
        if not len(memory):
            self.suspicions, self.contradictions = [], []
            return
        replay = memory.at(np.arange(min(len(memory), MOST_SUSPECTS)))
        features = self._features(replay.inputs)
        classes = np.array(self._live.learner.class_ids)[replay.labels]
        hashes = self._live.workspace.journal.hashes_of(replay.ids.tolist())
        codes = np.array([hashes.get(each, UNKNOWN_HASH) for each in replay.ids.tolist()], np.uint64)
        self.contradictions = contradictions(replay.ids, classes, features, codes)
        self._look_for_mistakes(replay.ids, classes, replay.inputs, features)

    def _features(self, inputs: np.ndarray) -> np.ndarray:
        return np.concatenate([*map(self._live.predictor.features, _batches(inputs))])

    def _look_for_mistakes(
        self, ids: np.ndarray, classes: np.ndarray, inputs: np.ndarray, features: np.ndarray
    ) -> None:
        """Among the learned and the held-out labels: a wrong one of these makes the measured accuracy wrong."""
        frozen = self._sees_vectors
        if not frozen and self._live.idle_steps_left:
            return  # features that do not know the newest labels yet would make those suspicious
        truth = held_out_ids(self._live.workspace)
        measured = {i: self._inputs[i] for i in truth if i in self._inputs}
        looks = [inputs[:, 0] if frozen else features]  # no label has changed what a trunk sees
        if measured:
            others = np.stack([*measured.values()])
            looks.append(others[:, 0] if frozen else self._features(others))
            ids, classes = np.append(ids, [*measured]), np.append(classes, [truth[i] for i in measured])
        features = np.concatenate(looks).astype(np.float32)
        # Features that are learned become alike within a class: there only the pictures themselves tell.
        together = bursts(features, classes) if frozen else self._groups(ids)
        self.suspicions = suspicious(ids, classes, features, together)[:SUSPICIONS_KEPT]

    def _refresh_queue(self) -> None:
        """Ask again about some of the samples that wait: what was news yesterday may be well known today."""
        journal = self._live.workspace.journal
        rows = journal.samples(self._asked_again, TEST_BATCH, state="queued")
        found = {}
        for row in rows:
            if self._live.is_wanted:
                break
            self._asked_again = row.id
            try:
                found[row.id] = self._live.inputs_of(row.id)
            except UserError:
                continue  # somebody has just labelled or dismissed it, or its image is damaged: `verify` says which
        else:
            self._asked_again = self._asked_again if len(rows) == TEST_BATCH else 0
        if found:
            answers = self._live.predictor.answer(np.stack(list(found.values())))
            priorities = [answer.priority for answer in answers]
            journal.set_priorities(dict(zip(found, priorities, strict=True)))

    def _load_held_out(self) -> dict[int, int] | None:
        """Their classes; None when somebody wants the learner meanwhile."""
        wanted = held_out_ids(self._live.workspace)
        self._inputs = {i: kept for i, kept in self._inputs.items() if i in wanted}
        for sample_id in wanted.keys() - self._inputs.keys():
            if self._live.is_wanted:
                return None
            try:
                self._inputs[sample_id] = self._live.inputs_of(sample_id)
            except UserError as error:
                self._live.report(f"a held-out sample is missing: {error}")
        return {i: class_id for i, class_id in wanted.items() if i in self._inputs}


def _batches(inputs: np.ndarray) -> Iterator[np.ndarray]:
    return (inputs[start : start + TEST_BATCH] for start in range(0, len(inputs), TEST_BATCH))
