"""A dataset as a stream: task by task (classes shuffled by the seed, divided, seen once), or blurry, without tasks.

Task by task, classes may also be of very different size: a long tail.
"""

from dataclasses import dataclass

import numpy as np

from edge_hpcr.bench.datasets import Dataset
from edge_hpcr.common.errors import UserError

VALIDATION_SHARE = 0.1  # of the training set, as the paper chose its hyper-parameters

STREAMS = ("split", "longtail", "blurry")
LONG_TAIL = 100.0  # how many times the images of the rarest class the most frequent one has
# A blurry stream: the most frequent class has this many times the images of the rarest; a class is shown mostly around
# its arrival, again around a later return, and now and then in between.
IMBALANCE = 5.0
LAST_ARRIVAL = 0.75  # of the stream's length
SHARE_AT_ARRIVAL, SHARE_AT_RETURN = 0.6, 0.25
SPREAD = 0.06


@dataclass(frozen=True)
class Task:
    """Indices into the dataset: what to learn in this order, and what to test on."""

    classes: tuple[int, ...]
    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class SplitStream:
    """The tasks of one seed. With `validation` the test images are a held-out tenth of the training set."""

    tasks: tuple[Task, ...]
    class_order: tuple[int, ...]
    test_images: np.ndarray
    test_labels: np.ndarray


def split(
    dataset: Dataset,
    tasks: int,
    seed: int,
    limit: int | None = None,
    passes: int = 0,
    validation: bool = False,
    long_tail: bool = False,
) -> SplitStream:
    """`limit` keeps that many training images per task; `passes` > 0 gives all data shuffled, as often, as one task.

    With `long_tail` the sizes of the classes fall from the whole to a hundredth of it, in an order of their own.
    """
    classes = len(dataset.class_names)
    if not 1 <= tasks <= classes or classes % tasks:
        divisors = ", ".join(str(n) for n in range(1, classes + 1) if classes % n == 0)
        raise UserError(
            f"{tasks} tasks: the {classes} classes of {dataset.name} divide into {divisors} tasks"
        )
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(classes)
    train, test_images, test_labels = _train_and_test(dataset, validation)
    if long_tail:
        train = _long_tailed(train, dataset.train_labels[train], rng)
    made = []
    for group in order.reshape(tasks, -1):
        own = rng.permutation(train[np.isin(dataset.train_labels[train], group)])[:limit]
        made.append(Task(tuple(group.tolist()), own, np.flatnonzero(np.isin(test_labels, group))))
    if passes:
        everything = np.concatenate([task.train for task in made])
        shuffled = np.concatenate([rng.permutation(everything) for _ in range(passes)])
        made = [Task(tuple(order.tolist()), shuffled, np.concatenate([task.test for task in made]))]
    return SplitStream(tuple(made), tuple(order.tolist()), test_images, test_labels)


def blurry(dataset: Dataset, samples: int, seed: int, validation: bool = False) -> SplitStream:
    """Classes that overlap, come back and are imbalanced, as one long task: nothing tells where anything begins."""
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(len(dataset.class_names))  # of their arrival: the same as in `split`
    train, test_images, test_labels = _train_and_test(dataset, validation)
    weights = IMBALANCE ** -rng.permutation(np.linspace(0, 1, len(order)))
    chosen, moments = [], []
    for arrival, class_, weight in zip(
        np.linspace(0, LAST_ARRIVAL, len(order)), order, weights / weights.sum(), strict=True
    ):
        own = rng.permutation(train[dataset.train_labels[train] == class_])[: round(samples * weight)]
        part = rng.random(len(own))
        moment = rng.uniform(arrival, 1, len(own))
        at_arrival = part < SHARE_AT_ARRIVAL
        at_return = ~at_arrival & (part < SHARE_AT_ARRIVAL + SHARE_AT_RETURN)
        moment[at_arrival] = arrival + SPREAD * np.abs(rng.normal(size=at_arrival.sum()))
        moment[at_return] = rng.uniform(arrival, 1) + SPREAD * np.abs(rng.normal(size=at_return.sum()))
        chosen.append(own)
        moments.append(moment)
    stream = np.concatenate(chosen)[np.argsort(np.concatenate(moments), kind="stable")]
    task = Task(tuple(order.tolist()), stream, np.arange(len(test_labels)))
    return SplitStream((task,), task.classes, test_images, test_labels)


def _long_tailed(train: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    classes = np.unique(labels)
    shares = LONG_TAIL ** -rng.permutation(np.linspace(0, 1, len(classes)))
    return np.concatenate(
        [
            own[: max(1, round(share * len(own)))]
            for own, share in zip((train[labels == each] for each in classes), shares, strict=True)
        ]
    )


def _train_and_test(dataset: Dataset, validation: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices to train on, and the images and labels to test on."""
    if not validation:
        return np.arange(len(dataset.train_labels)), dataset.test_images, dataset.test_labels
    train, held_out = _hold_out(dataset.train_labels, np.random.default_rng(0))
    return train, dataset.train_images[held_out], dataset.train_labels[held_out]


def _hold_out(labels: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The same tenth of each class for every seed: what is chosen on it never meets the test set."""
    held_out = np.concatenate(
        [
            rng.permutation(members)[: max(1, round(VALIDATION_SHARE * len(members)))]
            for members in (np.flatnonzero(labels == c) for c in np.unique(labels))
        ]
    )
    kept = np.setdiff1d(np.arange(len(labels)), held_out)
    return kept, np.sort(held_out)
