"""The paper's measures, against matrices that were worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edge_hpcr.bench import metrics

THREE_TASKS = [[0.9], [0.5, 0.8], [0.6, 0.3, 0.7]]
shares = st.floats(0, 1)


def test_the_accuracy_after_each_task_is_the_mean_over_the_tasks_seen_so_far():
    assert metrics.average_accuracies(THREE_TASKS) == pytest.approx([0.9, 0.65, 1.6 / 3])


def test_the_final_accuracy_is_the_mean_of_the_last_row():
    assert metrics.final_accuracy(THREE_TASKS) == pytest.approx(1.6 / 3)


def test_the_averaged_anytime_accuracy_is_the_mean_of_the_accuracies_after_each_task():
    assert metrics.averaged_anytime_accuracy(THREE_TASKS) == pytest.approx((0.9 + 0.65 + 1.6 / 3) / 3)


def test_forgetting_is_the_loss_since_the_best_time_over_all_tasks_but_the_last():
    # Task 1: best 0.9 before the end, 0.6 at the end. Task 2: 0.8, then 0.3. The mean is over T-1 = 2, not over 3.
    assert metrics.final_forgetting(THREE_TASKS) == pytest.approx((0.3 + 0.5) / 2)


def test_the_best_time_of_a_task_may_come_after_the_task():
    assert metrics.final_forgetting([[0.2], [0.7, 0.5], [0.4, 0.5, 0.9]]) == pytest.approx((0.3 + 0.0) / 2)


def test_a_task_that_is_better_at_the_end_than_ever_has_negative_forgetting():
    assert metrics.final_forgetting([[0.5], [0.8, 0.6]]) == pytest.approx(-0.3)


def test_one_task_has_an_accuracy_and_nothing_to_forget():
    assert metrics.summary([[0.75]]) == {"A_T": 0.75, "AAA": 0.75, "F_T": 0.0}


def test_what_stands_above_the_diagonal_is_not_looked_at():
    full = [[0.9, 0.1, 0.1], [0.5, 0.8, 0.1], [0.6, 0.3, 0.7]]
    assert metrics.summary(full) == metrics.summary(THREE_TASKS)


def test_the_interval_of_three_values_is_the_one_in_the_tables():
    mean, half = metrics.mean_and_interval([1, 2, 3])
    assert mean == 2
    assert half == pytest.approx(4.3027 / 3**0.5, abs=1e-4)  # t(0.975, 2) = 4.3027, standard deviation 1


def test_one_value_has_no_interval():
    assert metrics.mean_and_interval([0.5]) == (0.5, None)


@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=12).filter(
        lambda values: max(values) - min(values) > 1e-3
    )
)
def test_the_interval_is_the_one_that_scipy_gives(values: list[float]):
    mean, half = metrics.mean_and_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high), abs=1e-9)


@given(
    st.integers(1, 6).flatmap(
        lambda t: st.tuples(*[st.lists(shares, min_size=i, max_size=i) for i in range(1, t + 1)])
    )
)
def test_every_measure_stays_in_its_range(matrix: tuple[list[float], ...]):
    measured = metrics.summary(matrix)
    assert 0 <= measured["A_T"] <= 1 and 0 <= measured["AAA"] <= 1
    assert -1 <= measured["F_T"] <= 1
