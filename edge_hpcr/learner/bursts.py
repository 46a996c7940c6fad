"""Frames of one thing that come one after the other: they look alike, and together say no more than one picture."""

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

    classes, places = np.unique(columns, return_inverse=True)
    # What all pictures of a camera have in common says nothing of a class.
    middle = np.mean([latents[columns == column].mean(0) for column in classes], axis=0)
    away = latents - middle
    seen = away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-12)
    numbers, found = np.zeros(len(columns), np.int64), 0
    for place in range(len(classes)):
        own = places == place
        count, groups = connected_components(seen[own] @ seen[own].T >= ALIKE, directed=False)
        numbers[own], found = found + groups, found + count
    return numbers


def one_of_each(groups: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Which samples count when every group counts once: its first that is allowed to.

    >>> one_of_each(np.array([7, 3, 7]), np.array([False, True, True])).tolist()
    [False, True, True]
    """
    places = np.flatnonzero(allowed)
    chosen = np.zeros(len(groups), bool)
    chosen[places[np.unique(groups[places], return_index=True)[1]]] = True
    return chosen
