"""Labels that the learner, trained around them, does not believe."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from edge_hpcr.live.verdict import Contradiction
from edge_hpcr.workspace.held_out import ALIKE_BITS, UNKNOWN_HASH

NEIGHBOURS = 10
FEWEST_SAMPLES = 20
SAME = 0.9  # cosine of two features that can be of the same picture
STRONG = 0.6  # share of the neighbourhood that must speak for one other class


@dataclass(frozen=True)
class Suspicion:
    sample_id: int
    class_id: int
    suggested: int  # the class of most of its neighbours
    strength: float  # the share of the neighbourhood that says so


def suspicious(ids: np.ndarray, classes: np.ndarray, features: np.ndarray) -> list[Suspicion]:
    """The strongest first. A sample's own label has no vote: its nearest neighbours among the others decide.

    The network may have learned a wrong label by heart, and then answers with it; which images lie around it says more.
    """
    if len(ids) < FEWEST_SAMPLES:
        return []
    directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    similarity = directions @ directions.T
    np.fill_diagonal(similarity, -np.inf)
    # A class with few samples cannot fill a neighbourhood; its size must not make it suspicious.
    _, sizes = np.unique(classes, return_counts=True)
    count = int(min(NEIGHBOURS, max(3, sizes.min() - 1), len(ids) - 1))
    nearest = np.argpartition(-similarity, count - 1, axis=1)[:, :count]
    weights = np.maximum(np.take_along_axis(similarity, nearest, axis=1), 0)
    found = []
    for row, (neighbours, weight) in enumerate(zip(nearest, weights, strict=True)):
        votes = {
            int(c): float(weight[classes[neighbours] == c].sum()) for c in set(classes[neighbours].tolist())
        }
        total = sum(votes.values())
        suggested = max(votes, key=lambda c: votes[c])
        if total > 0 and suggested != classes[row] and votes[suggested] / total >= STRONG:
            strength = (votes[suggested] - votes.get(int(classes[row]), 0.0)) / total
            found.append(Suspicion(int(ids[row]), int(classes[row]), suggested, strength))
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
