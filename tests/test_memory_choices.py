"""Which samples the memory draws and keeps, and what it refuses, with nothing changed."""

from dataclasses import asdict

import numpy as np
import pytest
from memory_parts import SHAPE, make_memory

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory


def fill(memory: ReplayMemory, labels: list[int], first_id: int = 0) -> None:
    """One sample after the other, whose grey value is its id."""
    for place, label in enumerate(labels, start=first_id):
        image = np.full((1, *SHAPE), place % 256, np.uint8)
        numbers = np.zeros((1, memory.num_classes), np.float32), np.full((1, 5), 0.25, np.float32)
        memory.update(image, np.array([label]), *numbers, ids=np.array([place]))


@pytest.mark.parametrize(
    ("incoming", "size", "rows"),
    [
        ([0, 0, 1], 13, [4, 4, 4, 4]),
        ([3] * 6, 9, [3, 3, 3, 6]),
    ],
)
def test_an_even_draw_fills_up_what_the_incoming_samples_leave(incoming, size, rows):
    memory = make_memory(MemoryConfig(samples=40, draw="even"), classes=4)
    fill(memory, [0, 1, 2, 3] * 10)
    for _ in range(3):
        drawn = memory.sample(size, np.array(incoming, np.int64))
        assert len(set(drawn.slots.tolist())) == size
        assert np.bincount([*incoming, *drawn.labels], minlength=4).tolist() == rows


@pytest.mark.parametrize("draw", ["deck", "even"])
def test_draws_continue_from_a_checkpoint_and_can_be_taken_back(draw):
    memory = make_memory(MemoryConfig(samples=30, draw=draw), classes=3)
    fill(memory, [0] * 15 + [1] * 10 + [2] * 5)
    memory.sample(7)
    memory._rng = np.random.default_rng(5)
    copy, before = ReplayMemory.from_state(*memory.state(), np.random.default_rng(5)), memory.drawn()
    first = memory.sample(8).ids.tolist()
    assert copy.sample(8).ids.tolist() == first
    memory.undraw(before)
    memory._rng = np.random.default_rng(5)
    assert memory.sample(8).ids.tolist() == first


def test_each_sample_of_a_class_is_equally_likely_to_stay_in_a_balanced_memory():
    """40 of class 0 come before and 40 after class 1, whose arrival makes room short."""
    kept = np.zeros(100)
    for seed in range(150):
        memory = make_memory(MemoryConfig(samples=20, keep="balanced"), classes=2, seed=seed)
        fill(memory, [0] * 40 + [1] * 20 + [0] * 40)
        kept[memory.ids()] += 1
    own = np.concatenate([kept[:40], kept[60:]])
    # 10 of 80 stay: 19 times in 150 on average, with a deviation of 4. Thirds of the stream: 27 samples each.
    for third in np.array_split(own, 3):
        assert abs(third.mean() - 18.75) < 4


def test_options_that_are_gone_are_read_where_they_changed_nothing_and_named_where_they_did():
    kept = asdict(MemoryConfig(samples=4))
    assert MemoryConfig.from_dict({**kept, "side": None, "precision": "float16"}) == MemoryConfig(samples=4)
    with pytest.raises(UserError, match="side=24"):
        MemoryConfig.from_dict({**kept, "side": 24})


@pytest.mark.parametrize("settings", [{}, {"samples": 10, "bytes": 10_000}, {"bytes": -5}])
def test_no_budget_two_or_a_negative_one_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(UserError):
        MemoryConfig(**settings)
