"""Mean, median, 95th percentile, drift and outliers of seconds per step."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.report.findings import FEWEST_FOR_DRIFT, StepTimes, describe_step_times


def describe(seconds: list[float], num_steps: list[float] | None = None) -> StepTimes:
    times = describe_step_times(seconds, num_steps or [1.0] * len(seconds))
    assert times is not None
    return times


def test_plain_figures():
    times = describe([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (times.mean, times.median) == (4.0, 3.0)
    assert times.p95 == pytest.approx(8.8)


def test_the_mean_is_over_steps_and_not_over_intervals():
    assert describe([1.0, 2.0], [300, 100]).mean == pytest.approx(1.25)


def test_intervals_without_steps_have_a_mean():
    assert describe([1.0, 3.0], [0, 0]).mean == pytest.approx(2.0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
def test_drift_is_the_last_quarter_against_the_first(factor):
    assert describe([2.0] * 50 + [2.0 * factor] * 50).drift == pytest.approx(factor - 1)


def test_one_slow_interval_is_no_drift():
    assert describe([2.0] * 99 + [50.0]).drift == 0


def test_few_intervals_have_no_drift():
    assert describe([1.0] * (FEWEST_FOR_DRIFT - 1)).drift is None
    assert describe([1.0] * FEWEST_FOR_DRIFT).drift == 0
    assert describe([0.0] * FEWEST_FOR_DRIFT).drift is None
    assert describe([1e-299] * 5 + [1e10] * 5).drift is None


def test_outliers_are_given_by_index():
    seconds = np.random.default_rng(0).normal(1.94, 0.01, 200)
    seconds[[40, 80]] = 3.0, 2.2
    assert describe(seconds.tolist()).outliers == [40, 80]


def test_even_times_and_fast_steps_are_no_outliers():
    assert describe([2.0] * 50 + [2.05]).outliers == []
    assert describe([2.0] * 50 + [2.07]).outliers == [50]
    assert describe([2.0] * 50 + [0.1]).outliers == []


def test_ordinary_noise_has_no_outliers():
    noisy = [np.random.default_rng(seed).normal(2.0, 0.2, 500).tolist() for seed in range(20)]
    assert all(describe(seconds).outliers == [] for seconds in noisy)


def test_without_intervals_there_are_no_figures():
    assert describe_step_times([], []) is None


def test_one_interval_is_enough():
    assert describe([1.5], [10]) == StepTimes(1.5, 1.5, 1.5, None, [])


@given(st.lists(st.tuples(st.floats(-(2**53), 2**53), st.floats(0, 2**53)), min_size=1, max_size=30))
def test_any_numbers_give_figures_that_json_can_hold(rows):
    seconds, num_steps = [row[0] for row in rows], [row[1] for row in rows]
    times = describe(seconds, num_steps)
    slack = 1e-300 + 1e-9 * max(map(abs, seconds))
    for figure in (times.mean, times.median, times.p95):
        assert min(seconds) - slack <= figure <= max(seconds) + slack
    assert all(seconds[index] > times.median for index in times.outliers)
    values = json.loads(json.dumps(times.to_json()))
    assert set(values) == {"mean", "median", "p95", "drift"}
    assert all(value is None or math.isfinite(value) for value in values.values())
