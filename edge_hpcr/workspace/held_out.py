"""Which of the labels that come together are kept for measuring: look-alikes stay on one side.

A picture that looks like one that was learned measures nothing. So pictures are held out in groups of look-alikes, never
near one that trains, and of several pictures that come at once a part always trains.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

ALIKE_BITS = (
    3  # of 64: frames of a thing at rest differ in fewer, those of one that is moved or turned in more
)
UNKNOWN_HASH = 0  # of samples that came without one


def alike(hashes: Sequence[int] | np.ndarray, distance: int = ALIKE_BITS) -> np.ndarray:
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
            near = (groups < 0) & (np.bitwise_count(codes ^ codes[unasked.pop()]) <= distance)
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
