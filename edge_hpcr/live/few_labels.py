"""Classes that more labels would help, and more rehearsal would not: few samples, and often taken for others."""

from dataclasses import dataclass

import numpy as np

FEW_LABELS = 20
LOW_SHARE = 0.8


@dataclass(frozen=True)
class FewLabels:
    class_id: int
    right: int  # of so many samples, none of which was learned when it was asked about
    samples: int


def leave_one_out(classes: np.ndarray, features: np.ndarray) -> dict[int, tuple[int, int]]:
    """Of each class, how many samples the nearest class mean gets right when they are left out of it, and of how many.

    A class with a single sample has no other to be known by, and is left out.

    >>> leave_one_out(np.array([3, 3, 5, 5]), np.array([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]]))
    {3: (2, 2), 5: (2, 2)}
    """
    known, columns, counts = np.unique(classes, return_inverse=True, return_counts=True)
    directions = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    sums = np.zeros((len(known), features.shape[1]))
    np.add.at(sums, columns, directions)
    cosines = directions @ (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)).T
    others = sums[columns] - directions
    own = (directions * others).sum(1) / np.maximum(np.linalg.norm(others, axis=1), 1e-12)
    cosines[np.arange(len(columns)), columns] = own
    right = cosines.argmax(1) == columns
    measured = zip(known.tolist(), counts.tolist(), strict=True)
    return {c: (int(right[classes == c].sum()), n) for c, n in measured if n > 1}


def want_labels(
    left_out: dict[int, tuple[int, int]], held_out: dict[int, tuple[int, int]]
) -> list[FewLabels]:
    """The classes with few labels that are often taken for others, the worst first; right answers and samples of each."""
    both = (
        FewLabels(c, *(sum(each.get(c, (0, 0))[part] for each in (left_out, held_out)) for part in (0, 1)))
        for c in left_out.keys() | held_out.keys()
    )
    found = [each for each in both if each.samples <= FEW_LABELS and each.right < LOW_SHARE * each.samples]
    return sorted(found, key=lambda each: (each.right / each.samples, each.class_id))
