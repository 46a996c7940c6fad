"""What the replay memory refuses, each in one clear line and with nothing changed."""

from typing import Any

import numpy as np
import pytest
from memory_parts import FEATURES, SHAPE, make_memory

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.memory import MAX_CLASSES, MemoryConfig, ReplayMemory


def batch(size: int = 4, classes: int = 2) -> dict[str, np.ndarray]:
    return {
        "inputs": np.random.default_rng(1).integers(0, 256, (size, *SHAPE), np.uint8),
        "labels": np.arange(size) % classes,
        "logits": np.ones((size, classes), np.float32),
        "features": np.ones((size, FEATURES), np.float32),
    }


def facts(memory: ReplayMemory) -> list[Any]:
    arrays, meta = memory.state()
    return [{name: array.tolist() for name, array in arrays.items()}, meta]


@pytest.mark.parametrize(
    "settings",
    [
        {},  # no budget
        {"samples": 10, "bytes": 10_000},  # two
        {"samples": 0},
        {"bytes": -5},
        {"bytes": 2.5e6},  # not a whole number
        {"samples": 10, "codec": "bmp"},
        {"samples": 10, "quality": 0},
        {"samples": 10, "quality": 101},
        {"samples": 10, "precision": "float8"},
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        MemoryConfig(**settings)


BAD_BATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "images of another size": ({"inputs": np.zeros((4, 9, 8, 3), np.uint8)}, "images"),
    "one image instead of a batch": ({"inputs": np.zeros(SHAPE, np.uint8)}, "images"),
    "images as numbers": ({"inputs": np.zeros((4, *SHAPE), np.float32)}, "uint8"),
    "images as a list": ({"inputs": [[0]]}, "uint8"),
    "an empty batch": (batch(0), "at least 1"),
    "too few labels": ({"labels": np.array([0, 1, 0])}, "labels"),
    "labels as fractions": ({"labels": np.array([0.0, 1.0, 0.0, 1.0])}, "labels"),
    "an unknown class": ({"labels": np.array([0, 1, 2, 0])}, "known classes"),
    "a negative class": ({"labels": np.array([0, 1, -1, 0])}, "-1 is negative"),
    "too few ids": ({"ids": np.array([1])}, "ids"),
    "no logits": ({"logits": None}, "logits"),
    "logits of another width": ({"logits": np.ones((4, 3))}, "logits"),
    "logits of fewer samples": ({"logits": np.ones((3, 2))}, "logits"),
    "logits not finite": ({"logits": np.array([[1, np.inf]] * 4)}, "logits are not finite"),
    "no features": ({"features": None}, "features"),
    "features of another width": ({"features": np.ones((4, FEATURES - 1))}, "features"),
    "features not numbers": ({"features": np.array([[1, 1, np.nan, 1, 1]] * 4)}, "features are not finite"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_changes_nothing(case: str) -> None:
    changes, message = BAD_BATCHES[case]
    memory = make_memory(MemoryConfig(samples=6), 2)
    memory.update(**batch())
    before = facts(memory)
    with pytest.raises(UserError, match=message):
        memory.update(**(batch() | changes))
    assert facts(memory) == before


def test_a_budget_too_small_for_one_sample_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="150 bytes cannot hold one sample"):
        make_memory(MemoryConfig(bytes=150), classes=0)


@pytest.mark.parametrize("budget", [{"samples": 3}, {"bytes": 3 * (192 + 12 + 2 * (3 + FEATURES)) - 1}])
def test_a_class_too_many_for_the_budget_is_refused_and_changes_nothing(budget: dict[str, int]) -> None:
    memory = make_memory(MemoryConfig(**budget), 2)
    memory.update(**batch())
    if memory.config.samples:
        memory.add_class()
    before = facts(memory)
    with pytest.raises(UserError, match="raise the budget"):
        memory.add_class()
    assert facts(memory) == before


def test_a_smaller_budget_must_still_hold_one_sample_a_class() -> None:
    memory = make_memory(MemoryConfig(samples=6), 2)
    memory.update(**batch())
    before = facts(memory)
    for config in (MemoryConfig(samples=1), MemoryConfig(bytes=300), MemoryConfig(bytes=300, codec="png")):
        with pytest.raises(UserError, match="each of 2 classes"):
            memory.resize(config)
    assert facts(memory) == before


def test_a_picture_larger_than_the_whole_budget_is_refused_and_changes_nothing() -> None:
    memory = make_memory(MemoryConfig(bytes=800, codec="png"), classes=1, input_shape=(16, 16, 3))
    flat, noise = (
        np.zeros((1, 16, 16, 3), np.uint8),
        np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), np.uint8),
    )
    rest = {"labels": np.array([0]), "logits": np.ones((1, 1)), "features": np.ones((1, FEATURES))}
    memory.update(flat, **rest)
    before = facts(memory)
    with pytest.raises(UserError, match="whole memory"):
        memory.update(noise, **rest)
    assert facts(memory) == before


def test_a_class_that_does_not_exist_is_neither_dropped_nor_given() -> None:
    memory = make_memory(MemoryConfig(samples=6), 2)
    memory.update(**batch())
    for column in (-1, 2):
        with pytest.raises(UserError, match="2 known classes"):
            memory.drop_class(column)
        with pytest.raises(UserError, match="2 known classes"):
            memory.relabel(0, column)


@pytest.mark.slow
def test_more_classes_than_a_label_can_tell_apart_are_refused() -> None:
    memory = make_memory(MemoryConfig(samples=10**6), MAX_CLASSES, stores_logits=False)
    memory.update(batch(2)["inputs"], np.array([0, MAX_CLASSES - 1]), features=np.ones((2, FEATURES)))
    with pytest.raises(UserError, match="65535"):
        memory.add_class()
    assert memory.sample(2).known.tolist() == [MAX_CLASSES] * 2
    assert sorted(memory.sample(2).labels.tolist()) == [0, MAX_CLASSES - 1]


def test_images_that_are_not_rgb_have_no_memory() -> None:
    for shape in ((8, 8), (8, 8, 1), (0, 8, 3)):
        with pytest.raises(UserError, match="RGB"):
            make_memory(MemoryConfig(samples=6), input_shape=shape)


BAD_ARRAYS: dict[str, Any] = {
    "labels cut short": lambda arrays: arrays | {"label": arrays["label"][:-1]},
    "ids cut short": lambda arrays: arrays | {"id": arrays["id"][:-1]},
    "logits of another width": lambda arrays: arrays | {"logits": arrays["logits"][:, :1]},
    "features of another precision": lambda arrays: (
        arrays | {"features": arrays["features"].astype(np.float32)}
    ),
    "features not finite": lambda arrays: arrays | {"features": arrays["features"] * np.float16(np.nan)},
    "labels beyond the classes": lambda arrays: arrays | {"label": arrays["label"] + np.uint16(2)},
    "records from the future": lambda arrays: arrays | {"known": arrays["known"] + np.uint16(1)},
    "images cut short": lambda arrays: arrays | {"images": arrays["images"][:-1]},
    "no images": lambda arrays: {name: array for name, array in arrays.items() if name != "images"},
}
BAD_META: dict[str, dict[str, Any]] = {
    "a smaller budget": {"config": {"samples": 2}},
    "another codec": {"config": {"samples": 6, "codec": "webp"}},
    "an unknown setting": {"config": {"samples": 6, "colour": "red"}},
    "an impossible threshold": {"threshold": 1.5},
    "no threshold": {"threshold": None},
    "another image size": {"image_shape": [8, 9, 3]},
}


@pytest.mark.parametrize("codec", ["raw", "png"])
@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_a_saved_memory_that_does_not_fit_together_is_refused(case: str, codec: str) -> None:
    memory = make_memory(MemoryConfig(samples=6, codec=codec), 2)
    memory.update(**batch())
    arrays, meta = memory.state()
    ReplayMemory.from_state(arrays, meta, np.random.default_rng(0))
    with pytest.raises(UserError, match="older checkpoint"):
        ReplayMemory.from_state(BAD_ARRAYS[case](arrays), meta, np.random.default_rng(0))


@pytest.mark.parametrize("case", BAD_META)
def test_a_saved_memory_whose_facts_contradict_it_is_refused(case: str) -> None:
    memory = make_memory(MemoryConfig(samples=6), 2)
    memory.update(**batch())
    arrays, meta = memory.state()
    with pytest.raises(UserError):
        ReplayMemory.from_state(arrays, meta | BAD_META[case], np.random.default_rng(0))


def test_saved_images_with_sizes_that_do_not_add_up_are_refused() -> None:
    memory = make_memory(MemoryConfig(samples=6, codec="png"), 2)
    memory.update(**batch())
    arrays, meta = memory.state()
    shifted = arrays["image_sizes"] + np.array([arrays["image_sizes"][1], -arrays["image_sizes"][1], 0, 0])
    for sizes in (arrays["image_sizes"] + 1, shifted):
        with pytest.raises(UserError, match="older checkpoint"):
            ReplayMemory.from_state(arrays | {"image_sizes": sizes}, meta, np.random.default_rng(0))


def test_a_stored_picture_that_was_damaged_is_named_when_it_is_replayed() -> None:
    memory = make_memory(MemoryConfig(samples=6, codec="png"), 2)
    memory.update(**batch())
    arrays, meta = memory.state()
    damaged = arrays["images"].copy()
    damaged[:16] = 0
    loaded = ReplayMemory.from_state(arrays | {"images": damaged}, meta, np.random.default_rng(0))
    with pytest.raises(UserError, match="damaged"):
        loaded.at(np.array([0]))
