"""The replay memory's bytes, of pictures and of latents: counted as they are, planned as they come true, few as promised."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from memory_parts import make_memory
from rival_parts import observe, rival

from edge_hpcr.learner import methods
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory

FLOAT32_CIFAR10_BYTES = 12968  # what the authors' program spends on one sample


def cifar10_memory(**budget: Any) -> ReplayMemory:
    return make_memory(MemoryConfig(**budget), 10, input_shape=(32, 32, 3), feature_size=160)


def fill(memory: ReplayMemory, count: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(0, count, 10):
        images = rng.integers(0, 256, (10, 32, 32, 3), np.uint8)
        logits = rng.normal(0, 5, (10, 10))
        memory.update(images, rng.integers(0, 10, 10), logits, rng.normal(size=(10, 160)))


def test_a_raw_cifar10_sample_takes_at_most_28_percent_of_float32_storage() -> None:
    memory = cifar10_memory(samples=20)
    fill(memory, 20)
    assert memory.byte_breakdown()["total"] / 20 <= 0.28 * FLOAT32_CIFAR10_BYTES
    assert memory.byte_breakdown() == {
        "image": 20 * 3072,
        "label": 20 * 2,
        "logits": 20 * 10 * 2,
        "features": 20 * 160 * 2,
        "bookkeeping": 20 * 10,
        "total": 20 * 3424,
    }
    assert memory.row_bytes() == 3424 and memory.row_bytes(100) == 452


def test_the_overhead_in_numbers_is_the_papers() -> None:
    cifar10 = cifar10_memory(samples=200)
    mini = make_memory(MemoryConfig(samples=200), 100, input_shape=(84, 84, 3), feature_size=640)
    assert cifar10.overhead()["numbers"] == pytest.approx(1.06, abs=0.01)
    assert mini.overhead()["numbers"] == pytest.approx(1.03, abs=0.01)


def test_the_process_really_takes_no_more_than_the_budget_and_a_batch() -> None:
    """Counted by the allocator: at the peak of filling and growing classes, and after another codec and shrinking."""
    budget, page = 1_500_000, 65536
    memory = cifar10_memory(bytes=budget)
    small = replace(memory.config, bytes=budget // 3)
    tracemalloc.start()
    try:
        fill(memory, 600)
        for _ in range(30):
            memory.add_class()
        batch = 10 * (3072 + 8 * (3072 + 160 + 40))  # the test's own random numbers are in float64
        assert tracemalloc.get_traced_memory()[1] <= budget + batch + 3 * page
        memory.resize(replace(memory.config, codec="png"))
        memory.resize(replace(memory.config, codec="raw"))
        memory.resize(small)
        assert tracemalloc.get_traced_memory()[0] <= budget // 3 + 3 * page
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["raw", "png", "webp", "jpeg"])
def test_the_plan_for_a_codec_comes_true_once_images_are_held(codec: str) -> None:
    memory = cifar10_memory(bytes=60_000, codec=codec)
    assert memory.planned_capacity() >= 10
    fill(memory, 200)
    assert len(memory) == pytest.approx(memory.planned_capacity(), abs=2)


# Latents: 8 bits per number -------------------------------------------------------------------------------------------

LATENT = (2, 3, 5)
ROW = 2 * 3 * 5 + 8 + 2 + 10 + 4 * 2  # codes, scale, label, bookkeeping, features in 16 bits


def memory_of_latents(count: int, **budget: int) -> tuple[ReplayMemory, np.ndarray]:
    """With what it was given."""
    config = MemoryConfig(codec="latent", **budget)
    memory = make_memory(config, input_shape=LATENT, feature_size=4, stores_logits=False)
    given = np.random.default_rng(0).normal(3, 2, (count, *LATENT)).astype(np.float32)
    memory.update(given, np.zeros(count, np.int64), features=np.ones((count, 4)), ids=np.arange(count))
    return memory, given


def test_latents_come_back_within_half_a_step_and_the_same_from_a_checkpoint() -> None:
    memory, given = memory_of_latents(50, samples=20)
    slots = np.arange(20)
    replay = memory.at(slots)
    own = given[replay.ids]
    spread = own.max((1, 2, 3)) - own.min((1, 2, 3))
    worst = np.abs(replay.inputs - own).max((1, 2, 3))
    assert replay.inputs.dtype == np.float32 and (worst <= spread / 255 * 0.51 + 1e-6).all()
    loaded = ReplayMemory.from_state(*memory.state(), np.random.default_rng(0))
    for name in ("ids", "inputs", "labels", "features", "known"):
        assert np.array_equal(getattr(loaded.at(slots), name), getattr(replay, name)), name
    assert loaded.byte_breakdown() == memory.byte_breakdown()


def test_every_byte_of_latents_is_counted_and_the_budget_holds() -> None:
    memory, _ = memory_of_latents(100, bytes=ROW * 20 + 3)
    assert memory.planned_capacity() == 20 and memory.row_bytes() == ROW
    parts = memory.byte_breakdown()
    assert parts["total"] == sum(parts[kind] for kind in parts if kind != "total") == ROW * 20
    assert parts["image"] == 20 * (30 + 8)
    assert memory.overhead()["numbers"] == pytest.approx(34 / 30)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in methods.names()
        if methods.method_class(name).uses_memory and not methods.method_class(name).closed_form
    ],
)
def test_all_that_a_method_keeps_counts_in_the_byte_budget(name: str) -> None:
    kept = rival(name).method.bytes()  # a second network is planned for from the start
    budget = kept + 4_000
    learner = rival(name, memory=MemoryConfig(bytes=budget))
    for seed, labels in enumerate([[0, 1, 0, 1]] * 3 + [[2, 3, 2, 3]] * 3):
        observe(learner, labels, seed)
        if seed == 2:
            learner.end_task()
        parts = learner.byte_breakdown()
        assert parts["method"] == learner.method.bytes() and parts["total"] <= budget
    assert 4 <= len(learner.memory) <= 4_000 // (8 * 8 * 3)
