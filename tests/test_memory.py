"""The replay memory: fair, whole rows, never over its budget, whatever is done to it."""

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from memory_parts import FEATURES, SHAPE, everything, make_memory
from safetensors.numpy import load, save
from scipy import stats

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.codec import encode
from edge_hpcr.learner.memory import MemoryConfig, Replay, ReplayMemory


def image_of(sample_id: int) -> np.ndarray:
    """A picture that only this id has; every third one is flat, so that encoded sizes differ."""
    if sample_id % 3 == 0:
        return np.full(SHAPE, (sample_id % 251, sample_id // 251 % 251, 7), np.uint8)
    return np.random.default_rng(sample_id).integers(0, 256, SHAPE, np.uint8)


def logit_of(sample_id: int, name: int) -> float:
    """Never zero, and exact in 16 bits."""
    return (sample_id * 31 + name * 17) % 97 / 8 + 1


def features_of(sample_id: int) -> np.ndarray:
    return (np.arange(FEATURES) * 7 + sample_id) % 89 / 16 - 2


def offer(memory: ReplayMemory, ids: Any, labels: Any, names: list[int] | None = None) -> None:
    names = list(range(memory.num_classes)) if names is None else names
    memory.update(
        np.stack([image_of(i) for i in ids]),
        np.asarray(labels),
        np.array([[logit_of(i, name) for name in names] for i in ids], np.float32),
        np.stack([features_of(i) for i in ids]).astype(np.float32),
        np.asarray(ids),
    )


def same_state(one: tuple[dict, dict], two: tuple[dict, dict]) -> bool:
    same = all(np.array_equal(one[0][name], two[0][name]) for name in one[0].keys() | two[0].keys())
    return same and one[1] == two[1]


def configs(least_bytes: int) -> st.SearchStrategy[MemoryConfig]:
    budgets = st.one_of(
        st.fixed_dictionaries({"samples": st.integers(1, 30)}),
        st.fixed_dictionaries({"bytes": st.integers(least_bytes, 5000)}),
    )
    return st.builds(
        lambda budget, codec: MemoryConfig(**budget, codec=codec), budgets, st.sampled_from(["raw", "png"])
    )


class AnySequence(RuleBasedStateMachine):
    """Does to the memory whatever it allows, and keeps beside it what each sample should look like."""

    @initialize(config=configs(least_bytes=400), seed=st.integers(0, 1000))
    def start(self, config: MemoryConfig, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.memory = ReplayMemory(config, SHAPE, FEATURES, True, self.rng)
        self.names: list[int] = []  # the classes, in the order of their columns
        self.next_name = 0
        self.next_id = 0
        self.labels: dict[int, int] = {}  # sample id -> name of its class
        self.known: dict[int, set[int]] = {}  # sample id -> names known when it was offered

    def unless_refused(self, action: Any, *arguments: Any) -> bool:
        """Whether the action was carried out; if not, it must have left everything as it was."""
        before = self.memory.state()
        try:
            action(*arguments)
        except UserError:
            assert same_state(before, self.memory.state())
            return False
        return True

    @rule(count=st.integers(1, 6))
    def add_classes(self, count: int) -> None:
        for _ in range(count):
            if self.unless_refused(self.memory.add_class):
                self.names.append(self.next_name)
                self.next_name += 1
            self.the_budget_is_kept()

    @precondition(lambda self: self.names)
    @rule(size=st.integers(1, 30), shift=st.integers(0, 5))
    def update(self, size: int, shift: int) -> None:
        ids = range(self.next_id, self.next_id + size)
        self.next_id += size
        columns = [(i + shift) % len(self.names) for i in ids]
        if self.unless_refused(offer, self.memory, ids, columns, self.names):
            self.note(ids, columns)

    def note(self, ids: range, columns: list[int]) -> None:
        self.labels |= {i: self.names[column] for i, column in zip(ids, columns, strict=True)}
        self.known |= {i: set(self.names) for i in ids}

    @rule(which=st.integers(0, 10**6))
    def remove(self, which: int) -> None:
        sample_id = which % (self.next_id + 1)
        held = sample_id in everything(self.memory).ids
        before = len(self.memory)
        assert self.memory.remove(sample_id) == held
        assert len(self.memory) == before - held
        assert sample_id not in everything(self.memory).ids

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 10**6), column=st.integers(0, 5))
    def relabel(self, which: int, column: int) -> None:
        sample_id, column = which % (self.next_id + 1), column % len(self.names)
        if self.memory.relabel(sample_id, column):
            self.labels[sample_id] = self.names[column]
        else:
            assert sample_id not in everything(self.memory).ids

    @precondition(lambda self: self.names)
    @rule(column=st.integers(0, 5))
    def drop_class(self, column: int) -> None:
        column %= len(self.names)
        expected = int(self.memory.class_counts()[column])
        before = len(self.memory)
        assert self.memory.drop_class(column) == expected
        assert len(self.memory) == before - expected
        self.names.pop(column)

    @rule(config=configs(least_bytes=100))
    def resize(self, config: MemoryConfig) -> None:
        if self.unless_refused(self.memory.resize, config):
            assert self.memory.config == config

    @rule(k=st.integers(0, 20))
    def sample(self, k: int) -> None:
        replay = self.memory.sample(k)
        assert len(replay.ids) == min(k, len(self.memory)) == len(set(replay.slots.tolist()))
        self.check_rows(replay)

    @rule()
    def save_and_load(self) -> None:
        rng = copy.deepcopy(self.rng)
        arrays, facts = self.memory.state()
        loaded = ReplayMemory.from_state(load(save(arrays)), json.loads(json.dumps(facts)), rng)
        assert same_state(loaded.state(), self.memory.state())
        if self.names and len(self.memory):
            # One of them goes on unloaded: the same offers and draws must give the same memory.
            twins = (self.memory, loaded)
            ids = range(self.next_id, self.next_id + 4)
            columns = [i % len(self.names) for i in ids]
            self.next_id += 4
            done = [self.unless_refused(offer, twin, ids, columns, self.names) for twin in twins]
            assert done[0] == done[1]
            if done[0]:
                self.note(ids, columns)
            assert np.array_equal(self.memory.sample(3).ids, loaded.sample(3).ids)
            assert same_state(loaded.state(), self.memory.state())
        self.memory, self.rng = loaded, rng

    @invariant()
    def every_row_belongs_together(self) -> None:
        if hasattr(self, "memory"):
            assert self.memory.num_classes == len(self.names)
            self.check_rows(everything(self.memory))

    def check_rows(self, replay: Replay) -> None:
        assert len(set(replay.ids.tolist())) == len(replay.ids)
        assert replay.logits.shape == (len(replay.ids), len(self.names))
        for row, sample_id in enumerate(replay.ids.tolist()):
            known = self.known[sample_id]
            logits = [logit_of(sample_id, name) if name in known else 0 for name in self.names]
            assert np.array_equal(replay.inputs[row], image_of(sample_id))
            assert self.names[replay.labels[row]] == self.labels[sample_id]
            assert replay.logits[row].tolist() == logits
            assert replay.features[row].tolist() == features_of(sample_id).tolist()
            assert replay.known[row] == len(known & set(self.names))

    @invariant()
    def the_budget_is_kept(self) -> None:
        if not hasattr(self, "memory"):
            return
        config, ids = self.memory.config, everything(self.memory).ids.tolist()
        numbers = (len(self.names) + FEATURES) * 2
        total = len(ids) * (numbers + 2 + 2 + 8)  # and label, known, id
        for sample_id in ids:
            image = image_of(sample_id)
            total += image.nbytes if config.codec == "raw" else len(encode(image, config.codec)) + 33 + 8
        assert self.memory.byte_breakdown()["total"] == total
        if config.bytes is None:
            assert len(ids) <= config.samples
        else:
            assert total <= config.bytes

    @invariant()
    def the_counts_agree(self) -> None:
        if hasattr(self, "memory"):
            labels = everything(self.memory).labels
            expected = (
                np.bincount(labels, minlength=len(self.names)) if len(labels) else [0] * len(self.names)
            )
            assert self.memory.class_counts().tolist() == list(expected)
            assert 0 < self.memory.threshold <= 1


TestAnySequence = pytest.mark.slow(AnySequence.TestCase)
TestAnySequence.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, derandomize=True, database=None
)


# Fairness


def assert_fair(kept: np.ndarray) -> None:
    """`kept[run, position]`: no position of the stream may be likelier to be kept than another."""
    positions = kept.shape[1]
    share = kept.mean(axis=1)
    # Drawing without replacement makes positions of one run compete; this is the exact variance of it.
    variance = (share * (1 - share)).sum() * positions / (positions - 1)
    deviation = kept.sum(axis=0) - share.sum()
    chi_square = (deviation**2).sum() / variance
    assert stats.chi2.sf(chi_square, positions - 1) > 1e-3
    # A trend over the stream would be the likeliest fault: old samples preferred, or new ones.
    line = np.linspace(-1, 1, positions)
    assert abs((deviation * line).sum() / np.sqrt(variance * (line**2).sum())) < 3.5


def kept_positions(memory: ReplayMemory, images: np.ndarray, batch: int, new_class_at: int) -> np.ndarray:
    """Which positions of the stream the memory holds at its end; a class arrives after each `new_class_at`."""
    for start in range(0, len(images), batch):
        if start and start % new_class_at == 0:
            memory.add_class()
        part = images[start : start + batch]
        logits = np.zeros((len(part), memory.num_classes), np.float32)
        memory.update(part, np.zeros(len(part), np.int64), logits, ids=np.arange(start, start + len(part)))
    return np.isin(np.arange(len(images)), everything(memory).ids)


NEVER = 10**9
FAIR_CASES = {
    "a number of samples": (MemoryConfig(samples=13), NEVER),
    "bytes, all of one size": (MemoryConfig(bytes=13 * 62), NEVER),
    "bytes, pictures of different sizes": (MemoryConfig(bytes=1700, codec="png"), NEVER),
    "bytes, classes arriving midway": (MemoryConfig(bytes=1700), 14),
    "bytes, different sizes and classes arriving": (MemoryConfig(bytes=2500, codec="png"), 14),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAIR_CASES)
def test_every_position_of_the_stream_is_equally_likely_to_be_kept(case: str) -> None:
    config, new_class_at = FAIR_CASES[case]
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (56, 4, 4, 3), np.uint8)
    images[::2] = 90  # flat: less than half of the bytes as png
    kept = []
    for seed in range(500):
        memory = make_memory(config, 1, seed, input_shape=(4, 4, 3), feature_size=0)
        kept.append(kept_positions(memory, rng.permutation(images), 7, new_class_at))
    held = np.sum(kept, axis=1)
    assert held.min() >= 5 and held.max() < 50  # else the test would say nothing
    assert_fair(np.array(kept))


@pytest.mark.slow
@pytest.mark.parametrize("room", ["a dropped class", "a larger budget"])
@pytest.mark.parametrize("keep", ["reservoir", "balanced"])
def test_samples_from_before_and_after_more_room_are_equally_likely_to_be_kept(keep: str, room: str) -> None:
    held = []
    for seed in range(100):
        more = MemoryConfig(samples=50, keep=keep)
        dropped = room == "a dropped class"
        memory = make_memory(more if dropped else replace(more, samples=25), 1 + dropped, seed)
        offer(memory, range(150), [0] * 150)
        if dropped:
            offer(memory, range(1000, 1150), [1] * 150)
            memory.drop_class(1)
        memory.resize(more)
        offer(memory, range(150, 300), [0] * 150)
        held.append(((memory.ids() < 150).sum(), (memory.ids() >= 150).sum()))
    old, new = np.mean(held, axis=0)
    # 150 samples came before and 150 after; chance leaves a few places free, or takes a few of either.
    assert old == pytest.approx(new, abs=2)
    assert 22 < old < 26
    assert np.sum(held, axis=1).max() <= 50


def test_an_emptied_memory_begins_anew() -> None:
    memory = make_memory(MemoryConfig(samples=20))
    offer(memory, range(400), [0] * 400)
    for sample_id in everything(memory).ids.tolist():
        memory.remove(sample_id)
    offer(memory, range(400, 420), [0] * 20)
    assert len(memory) == 20
