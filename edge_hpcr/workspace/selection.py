"""Which samples a person should see first, and which labels are kept for measuring.

Pure functions of what the journal keeps of a sample: its id, its priority, its perceptual hash, its bytes.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

# Of a sample in the queue its priority says how much a label would tell; 0: nobody has ranked it.
UNKNOWN = 2.0  # above every known sample, whose priority is at most 1
# Chosen for measuring when it arrived, by chance and whatever the learner said of it.
DRAWN = 3
DRAWN_EVERY = 4  # of the queue's places one is for a drawn sample
# A label that somebody gave because the queue offered it: such pictures are harder than what comes, and do not measure.
PICKED = -1

_ANOTHER_PICTURE = 16  # bits: hashes that differ in more do not differ more in what they show
_LEAST_WEIGHT = 0.05  # so that diversity counts among samples on which the learner is certain, too


def rank(ids: Sequence[int], priorities: Sequence[float], hashes: Sequence[int]) -> list[int]:
    """All ids, the most informative first; but every fourth is a drawn one, the oldest of them first.

    Greedy: the next is always the one whose priority, times its distance to the nearest one chosen already, is
    largest. So near-duplicates do not fill the top, and exact ones come last. Ties go to the higher priority, then to
    the lower id, which is the older sample.
    """
    drawn = sorted(i for i, priority in zip(ids, priorities, strict=True) if priority >= DRAWN)
    if drawn:
        rest = [each for each in zip(ids, priorities, hashes, strict=True) if each[1] < DRAWN]
        ranked = rank(*zip(*rest, strict=True)) if rest else []
        for place, sample_id in enumerate(drawn):
            ranked.insert(DRAWN_EVERY * (place + 1) - 1, sample_id)
        return ranked
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


# Held out -----------------------------------------------------------------------------------------------------------
# A picture that looks like one that was learned measures nothing. So pictures are held out in groups of look-alikes,
# never near one that trains, and of several pictures that come at once a part always trains.

# Of 64: frames of a thing at rest differ in fewer, those of one that is moved or turned in more.
ALIKE_BITS = 3
UNKNOWN_HASH = 0  # of samples that came without one


def alike(hashes: Sequence[int] | np.ndarray) -> np.ndarray:
    """The number of each picture's group: two that look alike are in one, also when others stand between them.

    >>> alike([0b1, 0b11, 0b1111_1111, 0b111]).tolist()
    [0, 0, 1, 0]
    """
    codes = np.asarray(hashes, np.uint64)
    groups = np.full(len(codes), -1)
    for first in range(len(codes)):
        if groups[first] >= 0:
            continue
        groups[first] = number = groups.max() + 1
        unasked = [first]
        while unasked:  # one at a time: all distances at once would take much memory
            near = (groups < 0) & (np.bitwise_count(codes ^ codes[unasked.pop()]) <= ALIKE_BITS)
            groups[near] = number
            unasked += np.flatnonzero(near).tolist()
    return groups


def choose_held_out(
    fresh: Mapping[int, int],
    trained: Collection[int],
    held_out: Collection[int],
    counts: tuple[int, int],
    share: float,
) -> set[int]:
    """Of these new samples (id: hash) of one class those that are to be kept for measuring.

    `trained` and `held_out` are hashes of the class's earlier samples, `counts` how many labels it has and how many of
    them are held out. One sample alone is held out when its turn has come; its class's first never is.
    """
    labels, kept = counts
    after = labels + len(fresh)
    most = len(fresh) - (len(fresh) > 1 or labels == kept)
    if not share or most < 1:
        return set()
    ids, groups = np.array(list(fresh)), alike(list(fresh.values()))
    chosen: set[int] = set()
    for number in reversed(range(groups.max() + 1)):
        members = set(ids[groups == number].tolist())
        hashes = {fresh[each] for each in members}
        if len(chosen) + len(members) > most or _near(hashes, trained):
            continue
        size = kept + len(chosen) + len(members)
        # One beside a picture that measures would teach what that looks like; but that must not go on for ever.
        beside = size <= 2 * share * after and _near(hashes, held_out)
        if beside or size - len(members) / 2 <= share * after:
            chosen |= members
    return chosen


def _near(some: Collection[int], others: Collection[int]) -> bool:
    known = np.array([each for each in others if each != UNKNOWN_HASH], np.uint64)
    return any(
        (np.bitwise_count(known ^ np.uint64(each)) <= ALIKE_BITS).any()
        for each in some
        if each != UNKNOWN_HASH
    )
