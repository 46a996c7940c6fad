"""A dataset as a stream of tasks."""

import numpy as np
import pytest

from edge_hpcr.bench.split import split
from edge_hpcr.common.errors import UserError


def test_every_training_image_comes_once_and_only_in_its_own_task(digits):
    stream = split(digits, tasks=5, seed=3)
    everything = np.concatenate([task.train for task in stream.tasks])
    assert sorted(everything.tolist()) == list(range(len(digits.train_labels)))
    for task in stream.tasks:
        assert set(digits.train_labels[task.train].tolist()) == set(task.classes)
        assert set(stream.test_labels[task.test].tolist()) == set(task.classes)


def test_classes_and_images_are_shuffled_by_the_seed(digits):
    orders = {split(digits, 5, seed).class_order for seed in range(5)}
    assert len(orders) == 5
    one, same = split(digits, 5, 1), split(digits, 5, 1)
    assert one.class_order == same.class_order
    np.testing.assert_array_equal(one.tasks[0].train, same.tasks[0].train)
    assert not np.array_equal(one.tasks[0].train, np.sort(one.tasks[0].train))


def test_the_shuffled_reference_mixes_all_classes_and_passes_as_often_as_asked(digits):
    stream = split(digits, 5, 0, passes=2)
    (task,) = stream.tasks
    assert np.bincount(task.train).tolist() == [2] * len(digits.train_labels)
    assert len(set(digits.train_labels[task.train[:60]].tolist())) > 5
    assert len(task.test) == len(digits.test_labels)


def test_validation_tests_on_a_tenth_of_the_training_set_that_no_seed_trains_on(digits):
    held_out = [split(digits, 5, seed, validation=True) for seed in (0, 1)]
    np.testing.assert_array_equal(held_out[0].test_images, held_out[1].test_images)
    trained = np.concatenate([task.train for task in held_out[0].tasks])
    assert len(trained) + len(held_out[0].test_labels) == len(digits.train_labels)
    assert 0.08 < len(held_out[0].test_labels) / len(digits.train_labels) < 0.12
    missing = np.setdiff1d(np.arange(len(digits.train_labels)), trained)
    np.testing.assert_array_equal(held_out[0].test_images, digits.train_images[missing])


@pytest.mark.parametrize("tasks", [0, 3, 11])
def test_tasks_that_do_not_divide_the_classes_are_refused_with_those_that_do(digits, tasks):
    with pytest.raises(UserError, match="1, 2, 5, 10 tasks"):
        split(digits, tasks, 0)
