"""Cross-validation over the memory: every sample is asked about by a copy that did not learn it."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from browser_parts import wait_for
from live_parts import PATIENCE, learning, photo

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import cross_validation
from edge_hpcr.learner.cross_validation import FOLDS, CrossValidation, LeftOut
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.workspace import Workspace

pytestmark = pytest.mark.slow

SIZE = 32  # the smallest that the trunk takes


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
    learner.observe(clusters(labels, learner.network.feature_size, spread=1.0), labels)
    before = learner.rng.bit_generator.state, learner.step, learner.network.proxies.detach().clone()
    validation = CrossValidation(learner)
    steps = 0
    while validation.advance():
        assert validation.result is None and validation.seconds_left >= 0
        steps += 1
    assert steps == FOLDS * (1 + (learner.step + 1) // 2)
    found = validation.result
    assert found is not None and found.class_ids == (4, 2, 7, 9)
    assert np.bincount(found.columns).tolist() == [8, 8, 8]  # 9 would not be known without its only sample
    np.testing.assert_allclose(found.scores.sum(1), 1, atol=1e-5)
    # In so many dimensions, whatever a step does, the nearest proxy is that of the own class.
    assert (found.scores.argmax(1) == found.columns).all()
    assert (learner.rng.bit_generator.state, learner.step) == before[:2]
    assert (learner.network.proxies == before[2]).all()


def filmed(shots: np.ndarray, labels: list[int], frames: int) -> tuple[np.ndarray, list[int]]:
    """So many nearly identical frames of each of these."""
    noise = np.random.default_rng(3).normal(size=(len(shots) * frames, *shots.shape[1:])) * 1e-3
    return (np.repeat(shots, frames, axis=0) + noise).astype(np.float32), np.repeat(labels, frames).tolist()


def validated(learner: Learner, fair: Callable[[np.ndarray], np.ndarray] | None = None) -> LeftOut:
    validation = CrossValidation(learner, fair)
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
    assert (found.scores.argmax(1) == found.columns).sum() < 10
    assert np.bincount(found.columns).tolist() == [2] * 5, "ten pictures, and not sixty"


def test_of_a_burst_a_picture_is_asked_about_that_nobody_picked_for_being_difficult() -> None:
    learner = new_learner()
    labels = [0, 1] * 6
    learner.observe(clusters(labels, learner.network.feature_size, spread=1.0), labels, np.arange(12))
    found = validated(learner, fair=lambda ids: ids >= 4)
    assert sorted(found.ids.tolist()) == list(range(4, 12))


def test_of_a_class_with_a_single_burst_nothing_is_said() -> None:
    learner = new_learner()
    learner.observe(*filmed(clusters([3, 4], learner.network.feature_size), [3, 4], frames=12))
    assert not len(validated(learner).ids)


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


def test_a_copy_that_fails_stops_no_learning_and_what_was_found_is_saved(tmp_path, monkeypatch) -> None:
    def refuse(self: CrossValidation) -> bool:
        raise UserError("a copy of the learner failed")

    with labelled_workspace(tmp_path) as workspace:
        with monkeypatch.context() as patch:
            patch.setattr(cross_validation.CrossValidation, "advance", refuse)
            with learning(workspace) as live:
                problem = "a copy of the learner failed"
                wait_for(lambda: any(problem in each for each in live.problems), "it", PATIENCE)
                assert not live.failed
        with learning(workspace) as live:
            wait_for(lambda: live.predictor.calibration.samples >= 20, "the calibration", PATIENCE)
        again = LiveLearner(workspace)
        assert again.predictor.calibration == live.predictor.calibration


def test_one_that_a_label_ends_leaves_no_copy_of_the_learner_behind(tmp_path) -> None:
    with labelled_workspace(tmp_path) as workspace:
        workspace.change_settings(idle_share=0.0)  # nothing is measured by itself
        with learning(workspace) as live:
            assert live.wait_until_caught_up(PATIENCE)
            gc.disable()
            try:
                live.call(live.self_test.validate).result(PATIENCE)
                ended = weakref.ref(live.self_test._validating)
                workspace.journal.label([workspace.take(photo(24), "test")], 1)
                live.notify()
                assert live.wait_until_caught_up(PATIENCE)
                live.call(live.self_test.validate).result(PATIENCE)
                assert live.self_test._validating is not None and ended() is None
            finally:
                gc.enable()
