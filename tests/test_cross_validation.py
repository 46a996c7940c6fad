"""Cross-validation over the memory: every sample is asked about by a copy that did not learn it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from browser_parts import wait_for
from test_live_trunk import PATIENCE, SIZE, photo

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import cross_validation
from edge_hpcr.learner.cross_validation import FOLDS, CrossValidation
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def learner() -> Learner:
    memory = MemoryConfig(bytes=10_000_000, codec="latent")
    return Learner(LearnerConfig.recommended("efficientnet_lite0", height=32, width=32, memory=memory), "cpu")


def clusters(labels: list[int], size: int, spread: float = 0.2) -> np.ndarray:
    """Latents of length one around a direction for each class."""
    centres = np.random.default_rng(0).normal(size=(10, size))
    noise = np.random.default_rng(1).normal(size=(len(labels), size))
    found = centres[labels] + spread * noise
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)[:, None]


def test_each_sample_is_left_out_once_and_the_learner_is_not_touched(learner: Learner) -> None:
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


def test_samples_without_a_pattern_are_not_recognised_when_they_are_left_out(learner: Learner) -> None:
    """The proof that nothing leaks: the learner itself would know each of these by heart."""
    memory = MemoryConfig(bytes=10_000_000, codec="latent")
    config = LearnerConfig.recommended("efficientnet_lite0", height=32, width=32, memory=memory)
    noise = Learner(config, "cpu")
    labels = list(range(5)) * 10
    random = np.random.default_rng(2).permutation(labels).tolist()
    noise.observe(clusters(list(range(10)) * 5, noise.network.feature_size, spread=5.0), random)
    validation = CrossValidation(noise)
    while validation.advance():
        pass
    found = validation.result
    assert found is not None and (found.scores.argmax(1) == found.columns).mean() < 0.6


def test_samples_that_look_alike_are_left_out_together(learner: Learner) -> None:
    """Six of each picture, without a pattern: a copy that had learned one of them would know the others by heart."""
    memory = MemoryConfig(bytes=10_000_000, codec="latent")
    noise = Learner(
        LearnerConfig.recommended("efficientnet_lite0", height=32, width=32, memory=memory), "cpu"
    )
    pictures = clusters(list(range(10)), noise.network.feature_size, spread=5.0)
    labels = np.random.default_rng(2).permutation([*range(5)] * 2)
    noise.observe(np.repeat(pictures, 6, axis=0), np.repeat(labels, 6).tolist(), np.arange(60))
    right = {}
    for name, groups in (("alone", None), ("together", lambda ids: ids // 6)):
        validation = CrossValidation(noise, groups)
        while validation.advance():
            pass
        found = validation.result
        assert found is not None
        right[name] = (found.scores.argmax(1) == found.columns).mean()
    assert right["alone"] > 0.9 and right["together"] < 0.6


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
