"""The order of the queue: which unlabelled samples a person should see first, and which leave when it is full.

Pure functions of what the journal keeps of a queued sample: its id, its priority, its perceptual hash, its bytes.
"""

from collections.abc import Sequence

import numpy as np

UNKNOWN = 2.0  # above every known sample, whose uncertainty is at most 1

_ANOTHER_PICTURE = 16  # bits: hashes that differ in more do not differ more in what they show
_LEAST_WEIGHT = 0.05  # so that diversity counts among samples on which the learner is certain, too


def uncertainty(scores: np.ndarray, unknown: np.ndarray | None = None) -> np.ndarray:
    """How much a label would tell, `[N]`, from calibrated probabilities `[N, classes]` or their best few in any order.

    One minus the margin between the two best. Not the entropy: that grows with the number of classes, so that samples
    queued months apart could not be compared, and it cannot be had from the best three. `unknown` marks the samples
    that are near to no class; they come first, all alike, because scores say nothing about strangers.

    >>> uncertainty(np.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])).round(2).tolist()
    [1.0, 0.2]
    """
    # Padded, as there may be fewer than two classes.
    best = np.sort(np.pad(np.asarray(scores, np.float64), ((0, 0), (2, 0))), axis=1)
    result = np.clip(1 - (best[:, -1] - best[:, -2]), 0, 1)
    return result if unknown is None else np.where(unknown, UNKNOWN, result)


def rank(ids: Sequence[int], priorities: Sequence[float], hashes: Sequence[int]) -> list[int]:
    """All ids, the most informative first.

    Greedy: the next is always the one whose priority, times its distance to the nearest one chosen already, is
    largest. So near-duplicates do not fill the top, and exact ones come last. Ties go to the higher priority, then to
    the lower id, which is the older sample.
    """
    order = np.lexsort((np.asarray(ids, np.int64), -np.asarray(priorities, np.float64)))
    weights = np.maximum(np.asarray(priorities, np.float64)[order], 0) + _LEAST_WEIGHT
    codes = np.asarray(hashes, np.uint64)[order]
    nearest = np.full(len(order), _ANOTHER_PICTURE, np.int64)
    chosen = []
    for _ in range(len(order)):
        best = int(np.argmax(weights * nearest))  # the first of equals, hence the sorting above
        chosen.append(ids[order[best]])
        np.minimum(nearest, np.bitwise_count(codes ^ codes[best]), out=nearest)
        nearest[best] = -1  # below every distance, so it is never chosen again
    return chosen


def overflow(
    ids: Sequence[int],
    priorities: Sequence[float],
    hashes: Sequence[int],
    sizes: Sequence[int],
    max_samples: int,
    max_bytes: int,
) -> list[int]:
    """The ids that must leave so that the queue holds at most so many samples and bytes: those that rank last.

    A sample that is larger than the whole queue may be leaves first, or it would push out all the others.
    """
    if len(ids) <= max_samples and sum(sizes) <= max_bytes:
        return []
    bytes_of = dict(zip(ids, sizes, strict=True))
    ranked = rank(ids, priorities, hashes)
    fitting = [sample for sample in ranked if bytes_of[sample] <= max_bytes]
    filled = np.cumsum([bytes_of[sample] for sample in fitting])
    kept = set(fitting[: min(max_samples, int(np.searchsorted(filled, max_bytes, side="right")))])
    return [sample for sample in ranked if sample not in kept]
