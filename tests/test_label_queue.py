"""The order of the queue: informative first, look-alikes last, bounds kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_hpcr.workspace.label_queue import overflow, rank, uncertainty

hash64 = st.integers(0, 2**64 - 1)
priority = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0, 2))


@st.composite
def queues(draw, distinct: bool = False) -> tuple[list[int], list[float], list[int]]:
    """Ids in any order, priorities and hashes; a few hashes are near each other, as in a real stream."""
    base = draw(hash64)
    near = st.integers(0, 15).map(lambda bits: base ^ bits)
    hashes = draw(st.lists(st.one_of(near, hash64), min_size=1, max_size=25, unique=distinct))
    ids = draw(st.permutations(range(1, len(hashes) + 1)))
    return list(ids), draw(st.lists(priority, min_size=len(ids), max_size=len(ids))), hashes


def test_the_smaller_the_margin_the_more_uncertain():
    scores = np.array([[0.8, 0.1, 0.1], [0.1, 0.45, 0.45], [0.0, 1.0, 0.0], [0.6, 0.0, 0.4]])
    np.testing.assert_allclose(uncertainty(scores), [0.3, 1.0, 0.0, 0.8])


def test_the_best_three_say_as_much_as_the_whole_row():
    rows = np.random.default_rng(0).dirichlet(np.ones(20), 50)
    np.testing.assert_array_equal(uncertainty(rows), uncertainty(np.sort(rows, axis=1)[:, :-4:-1]))


def test_one_class_or_none_is_no_obstacle():
    np.testing.assert_allclose(uncertainty(np.array([[1.0], [0.7]])), [0.0, 0.3])
    np.testing.assert_allclose(uncertainty(np.zeros((2, 0))), [1.0, 1.0])
    assert uncertainty(np.zeros((0, 3))).shape == (0,)


def test_unknown_samples_are_above_the_most_uncertain_known_one():
    scores = np.array([[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]])
    values = uncertainty(scores, np.array([False, True, True]))
    assert values[1] == values[2] > values[0]


def test_without_likeness_the_priority_decides_and_then_the_age():
    hashes = [0, 2**20 - 1, (2**20 - 1) << 22, (2**20 - 1) << 44]
    assert rank([4, 3, 2, 1], [0.5, 0.9, 0.5, 0.1], hashes) == [3, 2, 4, 1]


def test_near_duplicates_of_the_first_do_not_fill_the_top():
    burst = [0b0, 0b1, 0b10, 0b100]
    others = [(2**20 - 1) << 22, (2**20 - 1) << 44]
    ranked = rank([1, 2, 3, 4, 5, 6], [1.0, 0.99, 0.98, 0.97, 0.4, 0.3], burst + others)
    assert ranked[:3] == [1, 5, 6]


def test_the_farther_of_two_comes_first_when_both_are_as_uncertain():
    assert rank([1, 2, 3], [1.0, 0.5, 0.5], [0, 0b11, 0b1111]) == [1, 3, 2]


def test_an_empty_queue_has_an_order():
    assert rank([], [], []) == []
    assert overflow([], [], [], [], 0, 0) == []


@given(queues())
def test_the_order_holds_every_sample_once_whatever_order_they_are_given_in(queue):
    ids, priorities, hashes = queue
    ranked = rank(ids, priorities, hashes)
    assert sorted(ranked) == sorted(ids)
    assert priorities[ids.index(ranked[0])] == max(priorities)
    rows = sorted(zip(ids, priorities, hashes, strict=True))
    assert rank(*map(list, zip(*rows, strict=True))) == ranked


@given(queues())
def test_the_order_is_that_of_a_slow_loop(queue):
    ids, priorities, hashes = queue
    left = sorted(zip(ids, priorities, hashes, strict=True), key=lambda row: (-row[1], row[0]))
    expected: list[int] = []
    seen: list[int] = []
    while left:
        values = [(p + 0.05) * min([16, *((h ^ other).bit_count() for other in seen)]) for _, p, h in left]
        sample, _, code = left.pop(values.index(max(values)))
        expected.append(sample)
        seen.append(code)
    assert rank(ids, priorities, hashes) == expected


@pytest.mark.slow
@given(queues(distinct=True), st.data())
def test_an_exact_duplicate_never_outranks_a_distinct_sample_of_equal_priority(queue, data):
    ids, priorities, hashes = queue
    twin = data.draw(st.integers(0, len(ids) - 1))
    new = len(ids) + 1
    ranked = rank([*ids, new], [*priorities, priorities[twin]], [*hashes, hashes[twin]])
    equals = [sample for sample, value in zip(ids, priorities, strict=True) if value == priorities[twin]]
    assert all(ranked.index(sample) < ranked.index(new) for sample in equals)


@pytest.mark.slow
@given(queues(), st.data())
def test_after_the_overflow_has_left_the_queue_is_within_its_bounds_and_no_smaller_than_need_be(queue, data):
    ids, priorities, hashes = queue
    sizes = data.draw(st.lists(st.integers(1, 100), min_size=len(ids), max_size=len(ids)))
    max_samples, max_bytes = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 1500))
    leaving = overflow(ids, priorities, hashes, sizes, max_samples, max_bytes)
    size = dict(zip(ids, sizes, strict=True))
    assert len(set(leaving)) == len(leaving) and set(leaving) <= set(ids)
    ranked = [sample for sample in rank(ids, priorities, hashes) if size[sample] <= max_bytes]
    kept = [sample for sample in ranked if sample not in leaving]
    assert len(kept) == len(ids) - len(leaving) <= max_samples  # what is too large alone has left
    assert sum(size[sample] for sample in kept) <= max_bytes
    assert kept == ranked[: len(kept)]  # those that ranked last have left
    if len(kept) < min(len(ranked), max_samples):
        assert sum(size[sample] for sample in ranked[: len(kept) + 1]) > max_bytes


def test_a_queue_may_be_filled_to_the_last_byte():
    far_apart = [0, 2**20 - 1, (2**20 - 1) << 40]
    assert overflow([1, 2, 3], [3.0, 2.0, 1.0], far_apart, [60, 40, 1], 10, 100) == [3]


def test_a_sample_larger_than_the_queue_does_not_push_out_the_others():
    assert overflow([1, 2, 3], [9.0, 1.0, 1.0], [0, 1 << 40, 7], [500, 10, 10], 10, 100) == [1]
