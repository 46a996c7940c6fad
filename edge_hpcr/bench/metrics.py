"""The paper's measures of a run, section V-A. `a[i][j]` is the accuracy on task j's test set after task i."""

from collections.abc import Sequence

import numpy as np

Matrix = Sequence[Sequence[float]]


def average_accuracies(a: Matrix) -> list[float]:
    """`A_i`: the mean over the tasks seen so far, after each task."""
    return [float(np.mean(row[: i + 1])) for i, row in enumerate(a)]


def final_accuracy(a: Matrix) -> float:
    """`A_T`."""
    return average_accuracies(a)[-1]


def averaged_anytime_accuracy(a: Matrix) -> float:
    """`AAA`: the mean of all `A_i`."""
    return float(np.mean(average_accuracies(a)))


def final_forgetting(a: Matrix) -> float:
    """`F_T`: what was lost since the best time, over the T-1 earlier tasks (the paper's mean, not its program's)."""
    last = len(a) - 1
    if last == 0:
        return 0.0
    return float(np.mean([max(a[i][j] for i in range(j, last)) - a[last][j] for j in range(last)]))


def summary(a: Matrix) -> dict[str, float]:
    return {"A_T": final_accuracy(a), "AAA": averaged_anytime_accuracy(a), "F_T": final_forgetting(a)}


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half-width of its 95 % confidence interval (t distribution); one value has no interval."""
    if len(values) < 2:
        return float(np.mean(values)), None
    from scipy import stats  # here, because its import would double the time of every --help

    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(np.mean(values)), float(half)
