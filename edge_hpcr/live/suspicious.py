"""Labels that look wrong: what is said of a sample by all the others, without that sample."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from edge_hpcr.live.verdict import Contradiction
from edge_hpcr.workspace.held_out import ALIKE_BITS, UNKNOWN_HASH

FEWEST_OTHERS = 2  # of its own class, and one more of the other: a class that has just begun is no evidence
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


def suspicious(ids: np.ndarray, classes: np.ndarray, features: np.ndarray) -> list[Suspicion]:
    """The strongest first: samples that are much nearer to another class's mean than to their own without them.

    Leaving a sample out keeps its own label from speaking for it. The features should not have been trained with the
    labels: a network that has learned a wrong label by heart moves the sample to the others of that class, and one
    that has not learned a right label yet has not.

    >>> left, right = [[1.0, 0.1], [1, 0.2], [1, 0.3]], [[-1.0, 0.1], [-1, 0.2], [-1, 0.3]]
    >>> found = suspicious(np.arange(7), np.array([1, 1, 1, 2, 2, 2, 2]), np.array([*left, *right, left[0]]))
    >>> [(each.sample_id, each.suggested) for each in found]
    [(6, 1)]
    """
    known, columns, counts = np.unique(classes, return_inverse=True, return_counts=True)
    if len(known) < 2:
        return []
    # From the middle of the classes: what all pictures of a camera have in common says nothing about their classes.
    middle = (_sums(features, columns, len(known)) / counts[:, None]).mean(0)
    directions = _unit(features - middle)
    sums = _sums(directions, columns, len(known))
    cosines = directions @ _unit(sums).T
    own = (directions * _unit(sums[columns] - directions)).sum(1)
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
    directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row in np.flatnonzero(hashes != UNKNOWN_HASH):
        near = (np.bitwise_count(hashes ^ hashes[row]) <= ALIKE_BITS) & (hashes != UNKNOWN_HASH)
        near &= (classes != classes[row]) & (directions @ directions[row] >= SAME)
        for other in np.flatnonzero(near):
            one, two = sorted((int(classes[row]), int(classes[other])))
            found[one, two] |= {int(ids[row]), int(ids[other])}
    listed = [Contradiction(one, two, tuple(sorted(samples))) for (one, two), samples in found.items()]
    return sorted(listed, key=lambda each: (-len(each.samples), each.one, each.other))


def _sums(vectors: np.ndarray, columns: np.ndarray, classes: int) -> np.ndarray:
    sums = np.zeros((classes, vectors.shape[1]))
    np.add.at(sums, columns, vectors)
    return sums


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
