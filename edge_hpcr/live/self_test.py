"""How the live learner tests itself: accuracy on pictures that it did not learn, calibration, what waits in the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.bursts import bursts, one_of_each
from edge_hpcr.learner.calibration import FEWEST_SAMPLES, Calibration, calibrate
from edge_hpcr.learner.cross_validation import CrossValidation, LeftOut
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain, held_out_ids, in_one_place
from edge_hpcr.live.follower import Follower
from edge_hpcr.live.predictor import Predictor
from edge_hpcr.workspace.records import SampleRow
from edge_hpcr.workspace.selection import DRAWN, PICKED, UNKNOWN_HASH, alike
from edge_hpcr.workspace.workspace import Workspace

TEST_EVERY_STEPS = 50  # on held-out samples, when nothing waits
TEST_AT_LEAST_EVERY_STEPS = 1000  # even when labels wait
TEST_SHARE = 0.1  # of the time, at most
TEST_BATCH = 64
ENOUGH_HELD_OUT = 200  # samples, to measure on them alone
MOST_COMPARED = 1000


class SelfTest:
    """Tests a learner in the thread that learns, as its predictor answers. `notes` are those of the checkpoint."""

    def __init__(
        self,
        workspace: Workspace,
        predictor: Predictor,
        follower: Follower,
        notes: dict[str, Any],
        is_wanted: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self._workspace, self._predictor, self._follower = workspace, predictor, follower
        self._learner = predictor.learner
        self._is_wanted, self._report = is_wanted, report
        self.test_then_train = TestThenTrain.model_validate(notes.get("test_then_train", {}))
        self.held_out = HeldOut.model_validate(notes.get("held_out", {}))
        self.validations = 0  # that are over
        self._inputs: dict[int, np.ndarray] = {}  # of held-out samples, as the trainable part sees them
        self._tested_step, self._tested_seq, self._next_test = -1, -1, 0.0
        self._validating: CrossValidation | None = None
        self._validated_seq: int = notes.get("validated", -1)
        # What copies said of samples that they had not learned, and how: checkpoints have only the first.
        self._left_out: dict[int, int] = dict(notes.get("left_out", []))
        self._copies: LeftOut | None = None
        self._calibrated_on: list[LeftOut] = []
        self._asked_again = 0  # the last queued sample whose priority was refreshed

    def figures(self) -> dict[str, Any]:
        """What checkpoints and reports say."""
        return {
            "test_then_train": self.test_then_train.model_dump(),
            "held_out": self.held_out.model_dump(),
        }

    def notes(self) -> dict[str, Any]:
        """What else a checkpoint keeps, so that a workspace that is opened again says what it said before."""
        return {"validated": self._validated_seq, "left_out": list(self._left_out.items())}

    def forget(self, sample_id: int) -> None:
        self._inputs.pop(sample_id, None)

    # Pictures that were not learned -----------------------------------------------------------------------------------

    def test_if_due(self, idle: bool, rehearsing: bool) -> None:
        steps = self._learner.step - self._tested_step
        labelled = self._tested_seq != self._follower.applied
        due = idle and (labelled or (steps > 0 and not rehearsing) or steps >= TEST_EVERY_STEPS)
        if (due or steps >= TEST_AT_LEAST_EVERY_STEPS) and time.monotonic() >= self._next_test:
            begun = time.monotonic()
            if self.test() and idle:
                self.refresh_queue()
            self._next_test = time.monotonic() + (time.monotonic() - begun) * (1 - TEST_SHARE) / TEST_SHARE

    def test(self) -> bool:
        """Test on the held-out samples, and calibrate on the same: a threshold more or less is no training.

        False when a label came before all of them were read: it must not wait while a trunk sees them.
        """
        wanted = held_out_ids(self._workspace)
        if not self._read_held_out(wanted):
            return False
        self._tested_step, self._tested_seq = self._learner.step, self._follower.applied
        said, scores = self._ask_about(self._labelled(self._inputs))
        if len(said) < ENOUGH_HELD_OUT:
            said = self._left_out | said
        rows = self._labelled(said)
        truth, answers = np.array([row.class_id for row in rows]), np.array([said[row.id] for row in rows])
        self.held_out.record(self._learner.step, truth, answers, in_one_place(rows))
        self._calibrate(scores)
        return True

    def _read_held_out(self, wanted: dict[int, int]) -> bool:
        """Whether all that can be read were read before somebody wanted the learner."""
        self._inputs = {i: kept for i, kept in self._inputs.items() if i in wanted}
        for sample_id in wanted.keys() - self._inputs.keys():
            if self._is_wanted():
                return False
            try:
                self._inputs[sample_id] = self._predictor.encoder.of_sample(sample_id)
            except UserError as error:
                self._report(f"a held-out sample is missing: {error}")
        return True

    def _labelled(self, ids: Iterable[int]) -> list[SampleRow]:
        """Those of these samples that have a label still."""
        return [row for row in self._workspace.journal.some(ids) if row.class_id is not None]

    def _ask_about(self, rows: list[SampleRow]) -> tuple[dict[int, int], LeftOut | None]:
        """What the learner says of those of these samples that count, and its scores where it knows the true class."""
        if not rows or not self._learner.class_ids:
            return {}, None
        labels = np.array([row.class_id for row in rows], np.int64)
        counts = self._counts(rows, labels)
        if not counts.any():
            return {}, None
        ids, labels = np.array([row.id for row in rows], np.int64)[counts], labels[counts]
        asked = np.stack([self._inputs[i] for i in ids.tolist()])
        starts = range(0, len(asked), TEST_BATCH)
        parts = [self._predictor.predict(asked[start : start + TEST_BATCH]) for start in starts]
        class_ids = parts[0].class_ids
        scores = np.concatenate([part.scores for part in parts])
        similarity = np.concatenate([part.similarity for part in parts])
        known = np.isin(labels, class_ids)
        columns = (class_ids == labels[known, None]).argmax(1)
        said = dict(zip(ids.tolist(), class_ids[scores.argmax(1)].tolist(), strict=True))
        return said, LeftOut(tuple(class_ids.tolist()), scores[known], similarity[known], columns, ids[known])

    def _counts(self, rows: list[SampleRow], classes: np.ndarray) -> np.ndarray:
        """Which held-out samples say something of pictures to come: of a burst one, if none of it was learned."""
        fair = np.array([row.priority != PICKED for row in rows], bool)
        if not self._sees_vectors:
            return one_of_each(_looks_alike(rows, classes), fair)
        memory, size = self._learner.memory, self._learner.network.feature_size
        slots = np.linspace(0, len(memory) - 1, min(len(memory), MOST_COMPARED)).astype(np.int64)
        learned = memory.at(slots)
        # The memory and a fresh look both have this part of a latent.
        asked = [self._inputs[row.id][0, :size] for row in rows]
        vectors = np.stack([*asked, *learned.inputs[:, 0, :size]])
        known = np.array(self._learner.class_ids, np.int64)[learned.labels]
        together = bursts(vectors, np.concatenate([classes, known]))
        own, taught = together[: len(rows)], together[len(rows) :]
        return one_of_each(own, fair & ~np.isin(own, taught))

    def _fair(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples nobody has picked from the queue for being difficult."""
        picked = [row.id for row in self._workspace.journal.some(ids) if row.priority == PICKED]
        return ~np.isin(ids, picked)

    @property
    def _sees_vectors(self) -> bool:
        """Whether a frozen trunk makes a vector of each picture, which no label has changed."""
        trunk = self._learner.network.backbone.trunk
        return trunk is not None and len(trunk.latent_shape) == 1

    # Calibration ------------------------------------------------------------------------------------------------------

    def _calibrate(self, held_out: LeftOut | None) -> None:
        """On samples that were not learned, and while those are few, on what was left out of copies too."""
        self._calibrated_on = [] if held_out is None else [held_out]
        enough = held_out is not None and len(held_out.ids) >= ENOUGH_HELD_OUT
        copies, now = self._copies, tuple(self._learner.class_ids)
        if not enough and copies is not None and copies.class_ids == now:
            self._calibrated_on.append(copies)
        if not self._is_restored:
            self.recalibrate()

    @property
    def _is_restored(self) -> bool:
        """Whether the calibration is the checkpoint's, which rests on copies that this process has not asked."""
        return self._copies is None and bool(self._left_out) and self._has_enough

    def recalibrate(self) -> None:
        """On the same samples, also for another share of them that may be called unknown."""
        if self._is_restored:
            self._validated_seq = -1
            return
        found = Calibration()
        if asked := self._calibrated_on:
            scores, similarity, columns = (
                np.concatenate([getattr(each, name) for each in asked])
                for name in ("scores", "similarity", "columns")
            )
            found = calibrate(scores, similarity, columns, self._workspace.settings.unknown_share)
        # One of a few labels ago is better than none: a model may be published in this moment.
        if found.is_measured or not self.is_validating:
            self._predictor.calibration = found

    @property
    def _has_enough(self) -> bool:
        return len(self._learner.memory) >= FEWEST_SAMPLES

    @property
    def is_validating(self) -> bool:
        """Whether a cross-validation of the present labels is possible, and not over yet."""
        # Copies that learn from more than a vector per sample would keep labels waiting.
        if not self._sees_vectors or not self._has_enough:
            return False
        return self._validating is not None or self._validated_seq != self._follower.applied

    @property
    def seconds_left(self) -> float | None:
        """Until the present labels are measured; None while nobody can tell."""
        validating = self._validating  # another thread may end it
        return None if validating is None else validating.seconds_left

    def validate(self) -> bool:
        """A step of a cross-validation, once for every state of the labels; False when there is nothing to do."""
        if not self.is_validating:
            return False
        if self._validated_seq != self._follower.applied or self._validating is None:
            if self._validating is not None:
                self._validating.close()
            self._validating = CrossValidation(self._learner, self._fair)
            self._validated_seq = self._follower.applied
        try:
            if self._validating.advance():
                return True
            found = self._validating.result
            assert found is not None
            answers = np.array(found.class_ids)[found.scores.argmax(1)]
            self._copies, self._left_out = found, dict(zip(found.ids.tolist(), answers.tolist(), strict=True))
            self._validating = None
            self.test()
            self.validations += 1
        except UserError as error:
            self._report(f"confidence could not be calibrated: {error}")
            self._validating = None
        return True

    # The queue ---------------------------------------------------------------------------------------------------

    def refresh_queue(self) -> None:
        """Ask again about some of the samples that wait: what was news yesterday may be well known today."""
        journal = self._workspace.journal
        rows = journal.samples(self._asked_again, TEST_BATCH, state="queued")
        found = {}
        for row in rows:
            if self._is_wanted():
                break
            self._asked_again = row.id
            if row.priority >= DRAWN:
                continue
            try:
                found[row.id] = self._predictor.encoder.of_sample(row.id)
            except UserError:
                continue  # somebody has just labelled or dismissed it, or its image is damaged: `verify` says which
        else:
            self._asked_again = self._asked_again if len(rows) == TEST_BATCH else 0
        if found:
            answers = self._predictor.answer(np.stack(list(found.values())))
            priorities = [answer.priority for answer in answers]
            journal.set_priorities(dict(zip(found, priorities, strict=True)))


def _looks_alike(rows: list[SampleRow], classes: np.ndarray) -> np.ndarray:
    """The number of each sample's group of look-alikes in its class; those without a hash stand alone."""
    codes = np.array([row.hash64 for row in rows], np.uint64)
    groups, alone = alike(codes), codes == UNKNOWN_HASH
    groups[alone] = -1 - np.flatnonzero(alone)
    return np.unique(np.stack([groups, classes]), axis=1, return_inverse=True)[1].reshape(-1)
