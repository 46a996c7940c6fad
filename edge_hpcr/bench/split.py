"""A dataset as a stream of tasks: classes shuffled by the seed, divided, seen once."""

from dataclasses import dataclass

import numpy as np

from edge_hpcr.bench.datasets import Dataset
from edge_hpcr.common.errors import UserError

VALIDATION_SHARE = 0.1  # of the training set, as the paper chose its hyper-parameters


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
) -> SplitStream:
    """`limit` keeps that many training images per task; `passes` > 0 gives all data shuffled, as often, as one task."""
    classes = len(dataset.class_names)
    if not 1 <= tasks <= classes or classes % tasks:
        divisors = ", ".join(str(n) for n in range(1, classes + 1) if classes % n == 0)
        raise UserError(
            f"{tasks} tasks: the {classes} classes of {dataset.name} divide into {divisors} tasks"
        )
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(classes)
    train, test_images, test_labels = _train_and_test(dataset, validation)
    made = []
    for group in order.reshape(tasks, -1):
        own = rng.permutation(train[np.isin(dataset.train_labels[train], group)])[:limit]
        made.append(Task(tuple(group.tolist()), own, np.flatnonzero(np.isin(test_labels, group))))
    if passes:
        everything = np.concatenate([task.train for task in made])
        shuffled = np.concatenate([rng.permutation(everything) for _ in range(passes)])
        made = [Task(tuple(order.tolist()), shuffled, np.concatenate([task.test for task in made]))]
    return SplitStream(tuple(made), tuple(order.tolist()), test_images, test_labels)


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
