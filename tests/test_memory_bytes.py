"""The replay memory's bytes: counted as they are, planned as they come true, and as few as promised."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from memory_parts import everything, make_memory

from edge_hpcr.learner.codec import encode
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory

FLOAT32_CIFAR10_BYTES = 12968  # what the authors' program spends on one sample


def cifar10_memory(**budget: Any) -> ReplayMemory:
    return make_memory(MemoryConfig(**budget), 10, input_shape=(32, 32, 3), feature_size=160)


def fill(memory: ReplayMemory, count: int, batch: int = 10, seed: int = 3) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(0, count, batch):
        images = rng.integers(0, 256, (batch, *memory.input_shape), np.uint8)
        labels = rng.integers(0, memory.num_classes, batch)
        logits = rng.normal(0, 5, (batch, memory.num_classes))
        memory.update(images, labels, logits, rng.normal(size=(batch, memory.feature_size)))


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


@pytest.mark.parametrize(
    ("side", "features", "classes", "in_the_paper"),
    [
        (32, 160, 10, 1.06),  # CIFAR10
        (32, 160, 100, 1.08),  # CIFAR100
        (84, 640, 100, 1.03),  # MiniImageNet
        (64, 640, 200, 1.07),  # TinyImageNet
    ],
)
def test_the_overhead_in_numbers_is_the_papers(
    side: int, features: int, classes: int, in_the_paper: float
) -> None:
    memory = make_memory(
        MemoryConfig(samples=200), classes, input_shape=(side, side, 3), feature_size=features
    )
    assert memory.overhead()["numbers"] == pytest.approx(in_the_paper, abs=0.01)


def test_the_overhead_in_bytes_is_that_of_the_held_samples() -> None:
    memory = cifar10_memory(samples=50, codec="webp")
    fill(memory, 50)
    parts = memory.byte_breakdown()
    expected = parts["total"] / (parts["total"] - parts["logits"] - parts["features"])
    assert memory.overhead()["bytes"] == pytest.approx(expected, rel=0.001)
    assert cifar10_memory(samples=50).overhead()["bytes"] == pytest.approx(3424 / 3084)


def test_arriving_classes_make_samples_leave_and_the_plan_says_how_many_stay() -> None:
    memory = cifar10_memory(bytes=100_000)
    fill(memory, 60)
    held = [len(memory)]
    while memory.num_classes < memory.planned_capacity() - 1:
        before = memory.byte_breakdown()["total"]
        memory.add_class()
        held.append(len(memory))
        assert memory.byte_breakdown()["total"] <= 100_000 and before <= 100_000
        assert memory.planned_capacity() >= len(memory)
    assert held[0] == 100_000 // 3424 and held[-1] < held[0]
    assert sorted(held, reverse=True) == held


def test_a_smaller_budget_for_pictures_of_all_sizes_is_kept_and_used() -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        memory = make_memory(
            MemoryConfig(bytes=40_000, codec="png"), seed=seed, stores_logits=False, feature_size=0
        )
        images = rng.integers(0, 256, (150, *memory.input_shape), np.uint8)
        images[rng.random(150) < 0.7] //= 255  # nearly flat: a third of the bytes
        memory.update(images, np.zeros(150, np.int64))
        for budget in (20_000, 9_000, 3_000):
            memory.resize(MemoryConfig(bytes=budget, codec="png"))
            assert budget - 400 < memory.byte_breakdown()["total"] <= budget


def test_only_samples_that_may_be_kept_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []

    def counting_encode(*arguments: Any) -> bytes:
        encoded.append(1)
        return encode(*arguments)

    monkeypatch.setattr("edge_hpcr.learner.rows.encode", counting_encode)
    memory = make_memory(MemoryConfig(samples=10, codec="png"))
    fill(memory, 1000)
    # The 10 first, then the n-th with probability 10/n, and a few that lost their place within a batch.
    assert 10 + 10 * np.log(1000 / 10) * 0.5 < len(encoded) < 10 + 10 * np.log(1000 / 10) * 2


def test_the_process_really_takes_no_more_than_the_budget_and_a_batch() -> None:
    """Counted by the allocator, at the peak: filling, growing classes, shrinking, another codec."""
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
        assert tracemalloc.get_traced_memory()[1] <= budget + batch + 3 * page
        memory.resize(small)
        assert tracemalloc.get_traced_memory()[0] <= budget // 3 + 3 * page
    finally:
        tracemalloc.stop()


def test_small_pictures_that_left_for_large_ones_are_really_gone() -> None:
    budget = 300_000
    config = MemoryConfig(bytes=budget, codec="png")
    memory = make_memory(config, input_shape=(64, 64, 3), feature_size=0, stores_logits=False)
    flat = np.zeros((1400, 64, 64, 3), np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), np.uint8)
    tracemalloc.start()
    try:
        memory.update(flat, np.zeros(len(flat), np.int64))
        assert len(memory) > 1000
        for image in noise:
            memory.update(image[None], np.zeros(1, np.int64))
        assert len(memory) < 700
        assert tracemalloc.get_traced_memory()[0] <= budget + 30_000
    finally:
        tracemalloc.stop()


def test_a_budget_beyond_any_machine_costs_nothing_before_it_is_used() -> None:
    memory = make_memory(MemoryConfig(bytes=10**15))
    fill(memory, 10)
    assert len(memory) == 10 and memory.planned_capacity() > 10**12


@pytest.mark.parametrize("codec", ["raw", "png", "webp", "jpeg"])
def test_the_plan_for_a_codec_comes_true_once_images_are_held(codec: str) -> None:
    memory = cifar10_memory(bytes=60_000, codec=codec)
    assert memory.planned_capacity() >= 10
    fill(memory, 200)
    assert len(memory) == pytest.approx(memory.planned_capacity(), abs=2)


def test_sixteen_bits_keep_logits_and_features_to_three_digits() -> None:
    rng = np.random.default_rng(0)
    logits, features = rng.uniform(-11.2, 11.2, (50, 10)), rng.exponential(1, (50, 160))
    for precision, digits in (("float16", 2**-11), ("float32", 2**-24)):
        memory = cifar10_memory(samples=50, precision=precision)
        memory.update(np.zeros((50, 32, 32, 3), np.uint8), np.zeros(50, np.int64), logits, features)
        replay = everything(memory)
        assert replay.logits.dtype == replay.features.dtype == np.float32
        assert np.allclose(replay.logits, logits, rtol=digits, atol=1e-6)
        assert np.allclose(replay.features, features, rtol=digits, atol=1e-6)
