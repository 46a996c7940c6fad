"""Cross-validation over the memory: every sample is asked about by a copy that did not learn it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from browser_parts import wait_for
from test_live_trunk import PATIENCE, SIZE, photo

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import cross_validation
from edge_hpcr.learner.cross_validation import FOLDS, CrossValidation, LeftOut
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Workspace

pytestmark = pytest.mark.slow


def new_learner() -> Learner:
    memory = MemoryConfig(bytes=10_000_000, codec="latent")
    return Learner(LearnerConfig.recommended("efficientnet_lite0", height=32, width=32, memory=memory), "cpu")


def clusters(labels: list[int], size: int, spread: float = 0.2) -> np.ndarray:
    """Latents of length one around a direction for each class."""
    centres = np.random.default_rng(0).normal(size=(10, size))
    noise = np.random.default_rng(1).normal(size=(len(labels), size))
    found = centres[labels] + spread * noise
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)[:, None]


def test_each_sample_is_left_out_once_and_the_learner_is_not_touched() -> None:
    learner = new_learner()
    labels = [4, 2, 7] * 8 + [9]  # the last one alone in its class
    learner.observe(clusters(labels, learner.network.feature_size), labels)
    before = learner.rng.bit_generator.state, learner.step, learner.network.proxies.detach().clone()
    validation = CrossValidation(learner)
    steps = 0
    while validation.advance():
        assert validation.result is None
        steps += 1
    assert steps == FOLDS * (1 + (learner.step + 1) // 2)
    found = validation.result
    assert found is not None and found.class_ids == (4, 2, 7, 9)
    assert np.bincount(found.columns).tolist() == [8, 8, 8]  # 9 would not be known without its only sample
    np.testing.assert_allclose(found.scores.sum(1), 1, atol=1e-5)
    # Clusters this far apart: whatever a step does, the nearest proxy is that of the own class.
    assert (found.scores.argmax(1) == found.columns).all()
    assert (learner.rng.bit_generator.state, learner.step) == before[:2]
    assert (learner.network.proxies == before[2]).all()


def test_samples_without_a_pattern_are_not_recognised_when_they_are_left_out() -> None:
    """The proof that nothing leaks: the learner itself would know each of these by heart."""
    noise = new_learner()
    labels = list(range(5)) * 10
    random = np.random.default_rng(2).permutation(labels).tolist()
    noise.observe(clusters(list(range(10)) * 5, noise.network.feature_size, spread=5.0), random)
    found = validated(noise)
    assert (found.scores.argmax(1) == found.columns).mean() < 0.6


def filmed(shots: np.ndarray, labels: list[int], frames: int) -> tuple[np.ndarray, list[int]]:
    """So many nearly identical frames of each of these."""
    noise = np.random.default_rng(3).normal(size=(len(shots) * frames, *shots.shape[1:])) * 1e-3
    return (np.repeat(shots, frames, axis=0) + noise).astype(np.float32), np.repeat(labels, frames).tolist()


def validated(learner: Learner, groups: Callable[[np.ndarray], np.ndarray] | None = None) -> LeftOut:
    validation = CrossValidation(learner, groups)
    while validation.advance():
        pass
    assert validation.result is not None
    return validation.result


def test_the_frames_of_a_burst_are_left_out_together_and_count_as_one() -> None:
    """Six of each picture, without a pattern: a copy that had learned one of them would know the others by heart."""
    noise = new_learner()
    pictures = clusters(list(range(10)), noise.network.feature_size, spread=5.0)
    labels = np.random.default_rng(2).permutation([*range(5)] * 2).tolist()
    noise.observe(*filmed(pictures, labels, frames=6))
    found = validated(noise)
    assert (found.scores.argmax(1) == found.columns).mean() < 0.6
    assert len(found.columns) == 60 and found.weights.sum() == pytest.approx(10)


def test_a_class_of_one_burst_is_asked_about_in_parts_that_say_nothing_of_other_pictures() -> None:
    learner = new_learner()
    pictures = clusters([0, 0, 1], learner.network.feature_size, spread=1.0)
    inputs, labels = filmed(pictures, [0, 0, 1], frames=6)
    learner.observe(inputs, labels, np.arange(18))
    found = validated(learner, groups=lambda ids: ids // 3)  # of each burst two halves
    assert np.bincount(found.columns).tolist() == [12, 6]
    assert found.weights[found.columns == 0].sum() == pytest.approx(2)
    assert not found.weights[found.columns == 1].any()
    one = validated(learner, groups=lambda ids: ids // 6)
    assert np.bincount(one.columns).tolist() == [12], "nothing of the other class is left to learn from"


@contextmanager
def labelled_workspace(folder: Path) -> Iterator[Workspace]:
    """Two classes of twelve labels, none held out."""
    with Workspace.open(folder / "w") as workspace:
        workspace.change_settings(
            image_size=SIZE, idle_steps=1, idle_share=1.0, threads=1, held_out_share=0.0
        )
        ids = [workspace.journal.create_class(name) for name in ("coarse", "fine")]
        for number in range(24):
            workspace.journal.label([workspace.take(photo(number), "test")], ids[number % 2])
        yield workspace


def test_a_live_learner_is_calibrated_before_enough_samples_are_held_out(tmp_path) -> None:
    with labelled_workspace(tmp_path) as workspace:
        live = LiveLearner(workspace)
        live.start()
        try:
            wait_for(lambda: live.predictor.calibration.samples >= 20, "the calibration", PATIENCE)
            assert live.predictor.calibration.unknown_below is not None
            wait_for(lambda: live.phase == "idle", "its end", PATIENCE)
        finally:
            live.stop()
        answers = live.self_test.answers()
        assert sum(count for *_, count in answers) == 24
        for true, said, count in answers:  # a page shows the pictures behind each count
            samples = live.self_test.left_out_samples(true, said)
            assert len(samples) == count
            assert {workspace.journal.sample(each).class_id for each in samples} == {true}


def test_a_copy_that_fails_stops_no_learning_and_what_was_found_is_saved(tmp_path, monkeypatch) -> None:
    def refuse(self: CrossValidation) -> bool:
        raise UserError("a copy of the learner failed")

    with labelled_workspace(tmp_path) as workspace:
        with monkeypatch.context() as patch:
            patch.setattr(cross_validation.CrossValidation, "advance", refuse)
            live = LiveLearner(workspace)
            live.start()
            wait_for(
                lambda: any("a copy of the learner failed" in each for each in live.problems), "it", PATIENCE
            )
            assert not live.failed
            live.stop()
        live = LiveLearner(workspace)
        live.start()
        wait_for(lambda: live.predictor.calibration.samples >= 20, "the calibration", PATIENCE)
        live.stop()
        again = LiveLearner(workspace)
        assert again.predictor.calibration == live.predictor.calibration
