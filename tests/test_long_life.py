"""A long life: 2,000 classes come, some go, some labels are corrected, and the memory never grows beyond its bytes."""

import numpy as np
import pytest

from edge_hpcr import Learner, MemoryConfig

CLASSES, TOGETHER, BUDGET = 2000, 100, 12_000_000


def pictures(first: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Two 8x8 pictures of each class: a coarse pattern of the class, and noise."""
    patterns = np.random.default_rng(5).integers(0, 200, (CLASSES, 2, 2, 3), np.uint8)
    chosen = np.repeat(patterns[first : first + number], 2, 0).repeat(4, 1).repeat(4, 2)
    return chosen + rng.integers(0, 40, chosen.shape, np.uint8)


@pytest.mark.slow
def test_two_thousand_classes_come_and_go_within_the_bytes_of_the_memory(small_learner, tmp_path):
    learner = small_learner(nf=2, height=8, width=8, memory=MemoryConfig(bytes=BUDGET), imprint=True)
    rng, sample, dropped = np.random.default_rng(0), 0, set[int]()
    for first in range(0, CLASSES, TOGETHER):
        ids = np.arange(sample, sample + 2 * TOGETHER)
        learner.observe(
            pictures(first, TOGETHER, rng), np.repeat(np.arange(first, first + TOGETHER) + 1, 2), ids
        )
        sample += len(ids)
        assert learner.byte_breakdown()["total"] <= BUDGET and len(learner.memory) > 0
        if first % 400 == 0:
            dropped.add(first + 1)
            learner.drop_class(first + 1)
            held = learner.memory.ids()
            assert learner.relabel(int(held[-1]), first + 2)
            assert learner.forget(int(held[0])) and not learner.forget(int(held[0]))
        if first == 1000:
            learner.save(tmp_path / "half")
            learner, _ = Learner.load(tmp_path / "half", device="cpu")
    assert learner.class_ids == [each for each in range(1, CLASSES + 1) if each not in dropped]
    answer = learner.predict(pictures(0, 5, rng))
    assert answer.scores.shape == (10, CLASSES - len(dropped)) and np.allclose(
        answer.scores.sum(1), 1, atol=1e-3
    )
    learner.save(tmp_path / "end")
    again, _ = Learner.load(tmp_path / "end", device="cpu")
    np.testing.assert_array_equal(
        again.predict(pictures(7, 1, np.random.default_rng(1))).scores,
        learner.predict(pictures(7, 1, np.random.default_rng(1))).scores,
    )
    assert learner.rehearse() is not None
