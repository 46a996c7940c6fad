"""A memory of latents: 8 bits a number, every byte counted, saved and loaded the same."""

import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory

SHAPE = (2, 3, 5)
ROW = 2 * 3 * 5 + 8 + 2 + 10 + 4 * 2  # codes, scale, label, bookkeeping, features in 16 bits


def latents(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3, 2, (count, *SHAPE)).astype(np.float32)


def memory_of(**budget: int) -> ReplayMemory:
    config = MemoryConfig(codec="latent", **budget)
    memory = ReplayMemory(config, SHAPE, 4, False, np.random.default_rng(0))
    memory.add_class()
    return memory


def taught(memory: ReplayMemory, count: int) -> np.ndarray:
    given = latents(count)
    memory.update(given, np.zeros(count, np.int64), features=np.ones((count, 4)), ids=np.arange(count))
    return given


def test_what_comes_back_is_within_half_a_step_of_what_was_given() -> None:
    memory = memory_of(samples=50)
    given = taught(memory, 30)
    replay = memory.sample(30)
    own = given[replay.ids]
    spread = own.max((1, 2, 3)) - own.min((1, 2, 3))
    worst = np.abs(replay.inputs - own).max((1, 2, 3))
    assert replay.inputs.dtype == np.float32 and (worst <= spread / 255 * 0.51 + 1e-6).all()


@pytest.mark.parametrize("value", [0.0, -7.5, 1e6])
def test_a_latent_of_one_value_stays_it(value: float) -> None:
    memory = memory_of(samples=5)
    memory.update(np.full((1, *SHAPE), value, np.float32), np.zeros(1, np.int64), features=np.ones((1, 4)))
    assert (memory.sample(1).inputs == np.float32(value)).all()


def test_every_byte_is_counted_and_the_budget_holds() -> None:
    memory = memory_of(bytes=ROW * 20 + 3)
    assert memory.planned_capacity() == 20 and memory.row_bytes() == ROW
    taught(memory, 100)
    parts = memory.byte_breakdown()
    assert parts["total"] == sum(parts[kind] for kind in parts if kind != "total") == ROW * 20
    assert parts["image"] == 20 * (30 + 8)
    assert memory.overhead()["numbers"] == pytest.approx(34 / 30)


def test_it_is_saved_and_loaded_the_same() -> None:
    memory = memory_of(samples=20)
    taught(memory, 50)
    arrays, facts = memory.state()
    loaded = ReplayMemory.from_state(arrays, facts, np.random.default_rng(0))
    slots = np.arange(20)
    for name in ("ids", "inputs", "labels", "features", "known"):
        assert np.array_equal(getattr(loaded.at(slots), name), getattr(memory.at(slots), name)), name
    assert loaded.byte_breakdown() == memory.byte_breakdown()
    arrays["latent_step"][3] = np.nan
    with pytest.raises(UserError, match="latents are not finite"):
        ReplayMemory.from_state(arrays, facts, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.zeros((2, *SHAPE)), r"latents are float64 .*float32 \[N, 2, 3, 5\]"),
        (np.zeros((2, 3, 5), np.float32), r"latents are float32 \[2, 3, 5\]"),
        (np.zeros((0, *SHAPE), np.float32), "empty batch"),
        (np.full((1, *SHAPE), np.inf, np.float32), "not finite"),
    ],
)
def test_bad_latents_are_refused_and_change_nothing(given: np.ndarray, says: str) -> None:
    memory = memory_of(samples=5)
    with pytest.raises(UserError, match=says):
        memory.update(given, np.zeros(len(given), np.int64), features=np.ones((len(given), 4)))
    assert len(memory) == 0 and memory.seen == 0


def test_latents_are_not_turned_into_images_nor_back() -> None:
    memory = memory_of(samples=5)
    with pytest.raises(UserError, match="cannot be kept as raw"):
        memory.resize(MemoryConfig(samples=5, codec="raw"))
    memory.resize(MemoryConfig(bytes=ROW * 3, codec="latent"))
    assert memory.planned_capacity() == 3
