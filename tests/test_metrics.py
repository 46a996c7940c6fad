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


def test_forgetting_is_the_loss_since_the_best_time_over_all_tasks_but_the_last():
    # Task 1: best 0.9 before the end, 0.6 at the end. Task 2: 0.8, then 0.3. The mean is over T-1 = 2, not over 3.
    assert metrics.final_forgetting(THREE_TASKS) == pytest.approx((0.3 + 0.5) / 2)
    # The best time of a task may come after the task.
    assert metrics.final_forgetting([[0.2], [0.7, 0.5], [0.4, 0.5, 0.9]]) == pytest.approx((0.3 + 0.0) / 2)


@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=12).filter(
        lambda values: max(values) - min(values) > 1e-3
    )
)
def test_the_interval_is_the_one_that_scipy_gives(values: list[float]):
    mean, half = metrics.mean_and_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high), abs=1e-9)
