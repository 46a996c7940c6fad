"""Samples that show the same thing at the same moment: what a trunk says of the frames of a burst is nearly the same."""

import numpy as np

# A cosine of latents, seen from the middle of the classes. Neighbouring frames of a thing that is moved or turned have more,
# other pictures of its class less, also where a camera that stands still sees much the same in all of them.
ALIKE = 0.75


def bursts(latents: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The number of each sample's burst: two of a class that look alike are in one, also when others stand between them.

    >>> shown = np.array([[1, 0, 0], [0.9, 0.2, 0], [0, 0, 1], [-1, 0, 0], [-1, 0, 0]])
    >>> bursts(shown, np.array([7, 7, 7, 8, 9])).tolist()
    [0, 0, 1, 2, 3]
    """
    from scipy.sparse.csgraph import connected_components  # a start must not wait for it

    seen = directions(latents, columns, np.ones(len(columns)))
    numbers, found = np.zeros(len(columns), np.int64), 0
    for column in np.unique(columns):
        own = columns == column
        count, groups = connected_components(seen[own] @ seen[own].T >= ALIKE, directed=False)
        numbers[own], found = found + groups, found + count
    return numbers


def directions(latents: np.ndarray, columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Unit vectors from the middle of the classes: what all pictures of a camera have in common says nothing of a class."""
    _, places = np.unique(columns, return_inverse=True)
    sums = group_sums(latents * weights[:, None], places)
    middle = (sums / np.bincount(places, weights)[:, None]).mean(0)
    return unit(latents - middle)


def votes(groups: np.ndarray) -> np.ndarray:
    """The weight of each sample when every group counts once.

    >>> votes(np.array([7, 3, 7])).tolist()
    [0.5, 1.0, 0.5]
    """
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return 1 / sizes[places]


def group_sums(vectors: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The sum of each group's vectors, `[groups, ...]`."""
    sums = np.zeros((places.max() + 1, vectors.shape[1]))
    np.add.at(sums, places, vectors)
    return sums


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
