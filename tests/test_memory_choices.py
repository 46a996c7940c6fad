"""Which samples the memory draws and keeps, and in how many bytes."""

import numpy as np
import pytest
from memory_parts import SHAPE, everything, make_memory

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.learner import LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory


def fill(memory: ReplayMemory, labels: list[int], first_id: int = 0) -> None:
    """One sample after the other, whose grey value is its id."""
    for place, label in enumerate(labels, start=first_id):
        image = np.full((1, *SHAPE), place % 256, np.uint8)
        numbers = np.zeros((1, memory.num_classes), np.float32), np.full((1, 5), 0.25, np.float32)
        memory.update(image, np.array([label]), *numbers, ids=np.array([place]))


def restored(memory: ReplayMemory, seed: int) -> ReplayMemory:
    return ReplayMemory.from_state(*memory.state(), np.random.default_rng(seed))


def test_a_deck_draws_every_class_once_before_any_class_twice():
    memory = make_memory(MemoryConfig(samples=40, draw="deck"), classes=4)
    fill(memory, [0] * 30 + [1] * 5 + [2] * 3 + [3] * 2)
    drawn = [memory.sample(2).labels.tolist() for _ in range(10)]
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        assert sorted(first + second) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("incoming", "size", "rows"),
    [
        ([0, 0, 1], 13, [4, 4, 4, 4]),
        # The incoming ones alone are more than a class's share: the others have the rest among them.
        ([3] * 6, 9, [3, 3, 3, 6]),
        ([], 8, [2, 2, 2, 2]),
    ],
)
def test_an_even_draw_fills_up_what_the_incoming_samples_leave(incoming, size, rows):
    memory = make_memory(MemoryConfig(samples=40, draw="even"), classes=4)
    fill(memory, [0, 1, 2, 3] * 10)
    for _ in range(3):
        drawn = memory.sample(size, np.array(incoming, np.int64))
        assert len(set(drawn.slots.tolist())) == size
        assert np.bincount([*incoming, *drawn.labels], minlength=4).tolist() == rows


def test_an_even_draw_takes_what_there_is_when_only_incoming_classes_are_held():
    memory = make_memory(MemoryConfig(samples=9, draw="even"), classes=3)
    fill(memory, [1, 1, 1])
    assert sorted(memory.sample(5, np.array([1, 1, 1, 1, 2])).ids.tolist()) == [0, 1, 2]


@pytest.mark.parametrize("draw", ["deck", "even", "least_used"])
def test_a_draw_has_no_sample_twice_and_no_more_than_there_are(draw):
    memory = make_memory(MemoryConfig(samples=9, draw=draw), classes=3)
    fill(memory, [0, 0, 0, 0, 0, 1, 1, 2, 2])
    assert len(make_memory(MemoryConfig(samples=9, draw=draw), classes=3).sample(4).slots) == 0
    for size in (4, 9, 50):
        slots = memory.sample(size).slots.tolist()
        assert len(slots) == len(set(slots)) == min(size, 9)


def test_a_deck_follows_classes_that_lose_their_samples_or_leave():
    memory = make_memory(MemoryConfig(samples=9, draw="deck"), classes=3)
    fill(memory, [0, 0, 1, 1, 2, 2])
    memory.sample(3)
    memory.drop_class(0)
    assert sorted(memory.sample(2).labels.tolist()) == [0, 1]
    for sample in (2, 3):
        memory.remove(sample)
    assert set(memory.sample(5).labels.tolist()) == {1}


def test_the_least_used_samples_come_first_and_a_newcomer_is_no_favourite():
    memory = make_memory(MemoryConfig(samples=8, draw="least_used"))
    fill(memory, [0] * 6)
    seen = np.concatenate([memory.sample(3).ids for _ in range(2)])
    assert sorted(seen.tolist()) == [0, 1, 2, 3, 4, 5]
    for _ in range(8):
        memory.sample(3)
    fill(memory, [0], first_id=6)
    counts = np.bincount(np.concatenate([memory.sample(3).ids for _ in range(7)]), minlength=7)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("draw", ["deck", "even", "least_used"])
def test_draws_continue_from_a_checkpoint_and_can_be_taken_back(draw):
    memory = make_memory(MemoryConfig(samples=30, draw=draw), classes=3)
    fill(memory, [0] * 15 + [1] * 10 + [2] * 5)
    memory.sample(7)
    memory._rng = np.random.default_rng(5)
    copy, before = restored(memory, 5), memory.drawn()
    first = memory.sample(8).ids.tolist()
    assert copy.sample(8).ids.tolist() == first
    memory.undraw(before)
    memory._rng = np.random.default_rng(5)
    assert memory.sample(8).ids.tolist() == first


@pytest.mark.parametrize(
    "config",
    [
        MemoryConfig(samples=4, codec="webp", quality=40),
        MemoryConfig(samples=4, codec="jpeg", side=6),
        MemoryConfig(samples=4),
    ],
)
def test_the_memory_says_how_it_would_give_images_back(config):
    images = np.random.default_rng(0).integers(0, 256, (4, *SHAPE), np.uint8)
    memory = make_memory(config)
    said = memory.as_kept(images)
    assert len(memory) == 0
    numbers = np.zeros((4, memory.num_classes), np.float32), np.full((4, 5), 0.25, np.float32)
    memory.update(images, np.zeros(4, np.int64), *numbers)
    assert np.array_equal(memory.at(np.arange(4)).inputs, said)
    assert np.array_equal(said, images) == (config.codec == "raw")


def test_uses_are_counted_in_bytes_where_they_are_kept():
    plain, counted = (make_memory(MemoryConfig(samples=4, draw=draw)) for draw in ("random", "least_used"))
    assert counted.row_bytes() == plain.row_bytes() + 4
    fill(counted, [0] * 4)
    counted.resize(MemoryConfig(samples=4))
    assert counted.row_bytes() == plain.row_bytes() and len(counted.sample(4).ids) == 4


def test_a_balanced_memory_keeps_rare_classes_whole():
    memory = make_memory(MemoryConfig(samples=30, keep="balanced"), classes=3)
    fill(memory, ([0] * 20 + [1] * 3) * 10 + [2] * 4)
    counts = memory.class_counts()
    assert counts.tolist() == [13, 13, 4]


def test_a_balanced_memory_of_bytes_keeps_to_its_budget():
    config = MemoryConfig(bytes=5_000, keep="balanced", codec="png")
    memory = make_memory(config, classes=3)
    rng = np.random.default_rng(3)
    for _ in range(60):
        image = rng.integers(0, 256, (1, *SHAPE), np.uint8)
        memory.update(image, rng.integers(0, 3, 1), np.zeros((1, 3)), np.zeros((1, 5)))
        assert memory.byte_breakdown()["total"] <= 5_000
    assert np.ptp(memory.class_counts()) <= 1


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


def test_a_balanced_memory_continues_from_a_checkpoint():
    memory = make_memory(MemoryConfig(samples=10, keep="balanced"), classes=2)
    fill(memory, [0] * 30 + [1] * 3)
    copy = restored(memory, 1)
    memory._rng = np.random.default_rng(1)
    for each in (memory, copy):
        fill(each, [0] * 20 + [1] * 20, first_id=33)
    assert memory.ids().tolist() == copy.ids().tolist()


@pytest.mark.parametrize("codec", ["raw", "webp", "png"])
def test_images_kept_smaller_cost_less_and_come_back_in_their_size(codec):
    large, small = (make_memory(MemoryConfig(samples=4, codec=codec, side=side)) for side in (None, 4))
    image = np.zeros((1, *SHAPE), np.uint8)
    image[:, :, 4:] = 200
    for memory in (large, small):
        memory.update(image, np.array([0]), np.zeros((1, 1)), np.zeros((1, 5)))
    got = everything(small).inputs[0].astype(int)
    assert got.shape == SHAPE
    assert got[:, 1].mean() < 60 < 140 < got[:, 6].mean()  # the left half is dark, the right half bright
    if codec == "raw":  # at this size an encoded image is mostly header
        assert small.byte_breakdown()["image"] == 4 * 4 * 3 < large.byte_breakdown()["image"]
    small.resize(MemoryConfig(samples=4, codec=codec))
    assert everything(small).inputs.shape == (1, *SHAPE)


def test_records_in_8_bits_are_near_and_take_half_of_16():
    memory = make_memory(MemoryConfig(samples=4, precision="int8"), classes=2)
    halves = make_memory(MemoryConfig(samples=4), classes=2)
    logits, features = np.array([[11.1, -3.3]]), np.array([[0.9, -0.1, 0.2, 0.0, 0.37]])
    for each in (memory, halves):
        each.update(np.zeros((1, *SHAPE), np.uint8), np.array([0]), logits, features)
    held = everything(memory)
    np.testing.assert_allclose(held.logits, logits, atol=1 / 16)
    np.testing.assert_allclose(held.features, features, atol=1 / 254 + 1e-6)
    ours, theirs = memory.byte_breakdown(), halves.byte_breakdown()
    assert (ours["logits"], ours["features"]) == (2, 5) and theirs["features"] == 10
    memory.add_class()
    memory.extend_logits(2, np.full(5, 2.0, np.float32))
    np.testing.assert_allclose(everything(memory).logits[0, 2], 2 * features.sum(), atol=0.1)
    memory.resize(MemoryConfig(samples=4, precision="float32"))
    np.testing.assert_allclose(everything(memory).features, features, atol=1 / 254 + 1e-6)


def test_numbers_that_8_bits_cannot_hold_stay_at_the_largest():
    memory = make_memory(MemoryConfig(samples=4, precision="int8"))
    memory.update(np.zeros((1, *SHAPE), np.uint8), np.array([0]), np.array([[1e6]]), np.full((1, 5), -9.0))
    held = everything(memory)
    assert held.logits[0, 0] == 127 / 8 and (held.features == -1).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"draw": "often"}, "draw"),
        ({"keep": "all"}, "keep"),
        ({"side": 0}, "at least one pixel"),
        ({"side": 8, "codec": "latent"}, "keeps no images"),
    ],
)
def test_a_choice_that_cannot_be_honoured_is_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        MemoryConfig(samples=4, **wrong)


@pytest.mark.parametrize(
    ("budget", "side", "chosen"),
    [
        ({"bytes": 2_600_000}, 32, ("webp", 75)),
        ({"bytes": 2_600_000}, 8, ("raw", 90)),  # a file's head is larger than what encoding saves
        ({"samples": 200}, 32, ("raw", 90)),  # bytes are no matter
    ],
)
def test_auto_encodes_images_where_bytes_count_and_encoding_saves_some(budget, side, chosen):
    config = LearnerConfig(height=side, width=side, memory=MemoryConfig(codec="auto", **budget)).memory
    assert (config.codec, config.quality) == chosen


def test_auto_leaves_a_codec_that_was_chosen_alone():
    config = LearnerConfig(memory=MemoryConfig(bytes=9_000_000, codec="jpeg", quality=33)).memory
    assert (config.codec, config.quality) == ("jpeg", 33)
