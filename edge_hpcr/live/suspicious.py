"""Labels that look wrong: what is said of a sample by all the others, without that sample and the rest of its burst."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from edge_hpcr.learner.bursts import directions, group_sums, unit, votes
from edge_hpcr.live.verdict import Contradiction
from edge_hpcr.workspace.held_out import ALIKE_BITS, UNKNOWN_HASH

# Pictures of its own class, and one more of the other: a class that has just begun is no evidence.
FEWEST_OTHERS = 2
# A difference of cosines; chosen on photographs of CIFAR100 among whose labels a few were exchanged. Without it, right
# labels of unusual pictures would be marked as well.
MARGIN = 0.25
SAME = 0.9  # cosine of two features that can be of the same picture


@dataclass(frozen=True)
class Suspicion:
    sample_id: int
    class_id: int
    suggested: int  # the class whose samples it resembles
    strength: float  # by how much more than those of its own class, as a difference of cosines


def suspicious(
    ids: np.ndarray, classes: np.ndarray, features: np.ndarray, bursts: np.ndarray
) -> list[Suspicion]:
    """The strongest first: samples that are much nearer to another class's mean than to their own without their burst.

    `bursts` are numbers of groups of a class's samples that look alike, each of which counts as one picture. Leaving a
    sample's burst out keeps its label, which was given to all of them at once, from speaking for it. The features should
    not have been trained with the labels: a network that has learned a wrong label by heart moves the sample to the
    others of that class, and one that has not learned a right label yet has not.

    >>> left, right = [[1.0, 0.1], [1, 0.2], [1, 0.3]], [[-1.0, 0.1], [-1, 0.2], [-1, 0.3]]
    >>> labels, features = np.array([1, 1, 1, 2, 2, 2, 2]), np.array([*left, *right, left[0]])
    >>> found = suspicious(np.arange(7), labels, features, bursts=np.arange(7))
    >>> [(each.sample_id, each.suggested) for each in found]
    [(6, 1)]
    """
    known, columns = np.unique(classes, return_inverse=True)
    if len(known) < 2:
        return []
    shots, shot = np.unique(np.stack([columns, bursts]), axis=1, return_inverse=True)
    counts, weights = np.bincount(shots[0]), votes(shot)
    looks = directions(features, columns, weights)
    pictures = looks * weights[:, None]
    sums = group_sums(pictures, columns)
    cosines = looks @ unit(sums).T
    others = sums[columns] - group_sums(pictures, shot)[shot]
    own = (looks * unit(others)).sum(1)
    rows = np.arange(len(ids))
    cosines[rows, columns] = -np.inf
    cosines[:, counts <= FEWEST_OTHERS] = -np.inf
    nearest = cosines.argmax(1)
    strength = cosines[rows, nearest] - own
    found = [
        Suspicion(int(ids[row]), int(classes[row]), int(known[nearest[row]]), float(strength[row]))
        for row in np.flatnonzero((strength > MARGIN) & (counts[columns] > FEWEST_OTHERS))
    ]
    return sorted(found, key=lambda suspicion: (-suspicion.strength, suspicion.sample_id))


def contradictions(
    ids: np.ndarray, classes: np.ndarray, features: np.ndarray, hashes: np.ndarray
) -> list[Contradiction]:
    """Pictures that look the same, by hash and by feature, and have different labels; the most first."""
    looks = unit(features)
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row in np.flatnonzero(hashes != UNKNOWN_HASH):
        near = (np.bitwise_count(hashes ^ hashes[row]) <= ALIKE_BITS) & (hashes != UNKNOWN_HASH)
        near &= (classes != classes[row]) & (looks @ looks[row] >= SAME)
        for other in np.flatnonzero(near):
            one, two = sorted((int(classes[row]), int(classes[other])))
            found[one, two] |= {int(ids[row]), int(ids[other])}
    listed = [Contradiction(one, two, tuple(sorted(samples))) for (one, two), samples in found.items()]
    return sorted(listed, key=lambda each: (-len(each.samples), each.one, each.other))
