"""A dataset as a stream of tasks."""

import numpy as np
import pytest

from edge_hpcr.bench.split import IMBALANCE, blurry, split
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


def test_the_classes_of_the_tasks_follow_the_class_order(digits):
    stream = split(digits, 5, 0)
    assert tuple(c for task in stream.tasks for c in task.classes) == stream.class_order


def test_a_limit_keeps_that_many_images_a_task(digits):
    assert [len(task.train) for task in split(digits, 5, 0, limit=7).tasks] == [7] * 5


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


def test_a_blurry_stream_shows_an_image_once_and_is_one_task_with_every_class(digits):
    stream = blurry(digits, 600, seed=0)
    (task,) = stream.tasks
    assert len(set(task.train.tolist())) == len(task.train) == pytest.approx(600, abs=10)
    assert set(digits.train_labels[task.train].tolist()) == set(range(10)) == set(task.classes)
    assert len(task.test) == len(digits.test_labels)


def test_classes_of_a_blurry_stream_overlap_come_back_and_are_imbalanced(digits):
    (task,) = blurry(digits, 700, seed=2).tasks
    labels = digits.train_labels[task.train]
    counts = np.bincount(labels)
    assert counts.max() / counts.min() == pytest.approx(IMBALANCE, rel=0.25)
    first = [int(np.flatnonzero(labels == c)[0]) for c in task.classes]
    last = [int(np.flatnonzero(labels == c)[-1]) for c in task.classes]
    assert first == sorted(first), "classes arrive in the order of the seed"
    overlaps = sum(last[i] > first[i + 1] for i in range(9))
    assert overlaps >= 8, "a class is still shown after the next one has arrived"
    returns = sum(last[i] > first[min(i + 4, 9)] for i in range(6))
    assert returns >= 4, "early classes are seen again long after their time"


def test_a_blurry_stream_follows_its_seed(digits):
    assert not np.array_equal(blurry(digits, 300, 0).tasks[0].train, blurry(digits, 300, 1).tasks[0].train)
    np.testing.assert_array_equal(
        blurry(digits, 300, 1).tasks[0].train, blurry(digits, 300, 1).tasks[0].train
    )


def test_a_long_tail_has_a_hundred_times_as_many_images_of_one_class_as_of_another(digits):
    whole, tail = split(digits, 5, seed=1), split(digits, 5, seed=1, long_tail=True)
    assert [task.classes for task in tail.tasks] == [task.classes for task in whole.tasks]
    sizes = np.bincount(digits.train_labels[np.concatenate([task.train for task in tail.tasks])])
    of_all = np.bincount(digits.train_labels)
    shares = np.sort(sizes / of_all)
    assert shares[-1] == 1 and shares[0] == pytest.approx(0.01, abs=0.5 / of_all.min())
    assert (np.diff(shares) > 0).all() and len(tail.test_labels) == len(whole.test_labels)
