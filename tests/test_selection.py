"""The order of the queue: informative first, look-alikes last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_hpcr.live.predictor import Answer
from edge_hpcr.workspace.selection import UNKNOWN, rank

hash64 = st.integers(0, 2**64 - 1)
priority = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0, 2))


@st.composite
def queues(draw) -> tuple[list[int], list[float], list[int]]:
    """Ids in any order, priorities and hashes; a few hashes are near each other, as in a real stream."""
    base = draw(hash64)
    near = st.integers(0, 15).map(lambda bits: base ^ bits)
    hashes = draw(st.lists(st.one_of(near, hash64), min_size=1, max_size=25))
    ids = draw(st.permutations(range(1, len(hashes) + 1)))
    return list(ids), draw(st.lists(priority, min_size=len(ids), max_size=len(ids))), hashes


@pytest.mark.parametrize(
    ("confidences", "unknown", "priority"),
    [
        ((0.8, 0.1, 0.1), False, 0.3),
        ((0.45, 0.45, 0.1), False, 1.0),
        ((1.0,), False, 0.0),
        ((), False, 1.0),
        ((0.9, 0.1), True, UNKNOWN),
    ],
)
def test_the_smaller_the_margin_the_more_a_label_would_tell(confidences, unknown, priority):
    answer = Answer(tuple(enumerate(confidences)), 0.5, unknown)
    assert answer.priority == pytest.approx(priority)


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
