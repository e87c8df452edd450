"""The size of the batch at every step: small at first, doubled at fixed steps, full in the end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.config import TrainingSettings, build_settings
from dragoman.run.errors import UsageError

growths = st.builds(
    lambda first, factor, doubling: BatchGrowth(first, int(first * factor), doubling),
    st.integers(1, 5_000),
    st.floats(1, 40),
    st.integers(1, 50),
)


def test_the_batch_doubles_until_it_is_full():
    growth = BatchGrowth(1_024, 6_000, doubling_steps=10)
    assert [growth.tokens_at(step) for step in (0, 9, 10, 19, 20, 29, 30, 10**9)] == [
        1_024, 1_024, 2_048, 2_048, 4_096, 4_096, 6_000, 6_000,
    ]  # fmt: skip
    assert growth.full_from_step == 30
    assert [step for step in range(100) if growth.is_growing(step)] == [10, 20, 30]


def test_a_batch_that_does_not_grow_is_full_from_the_start():
    growth = BatchGrowth(4_096, 4_096, 10)
    assert growth.full_from_step == 0
    assert (growth.share_at(0), growth.full_steps(3, 50), growth.steps_within(47.9)) == (1, 47, 47)


@given(growths, st.integers(0, 300), st.integers(0, 300))
def test_full_steps_are_the_sum_of_all_shares(growth, begin, num_steps):
    end = begin + num_steps
    expected = sum(growth.tokens_at(step) for step in range(begin, end)) / growth.full_tokens
    assert growth.full_steps(begin, end) == pytest.approx(expected)
    assert growth.tokens_at(growth.full_from_step) == growth.full_tokens
    assert growth.full_from_step == 0 or growth.tokens_at(growth.full_from_step - 1) < growth.full_tokens


@given(growths, st.floats(0, 500))
def test_the_steps_within_an_amount_are_as_many_as_fit(growth, full_steps):
    num_steps = growth.steps_within(full_steps)
    assert growth.full_steps(0, num_steps) <= full_steps + 1e-6
    assert growth.full_steps(0, num_steps + 1) >= full_steps - 1e-6


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"global_batch_tokens": -5},
        {"initial_batch_tokens": -9e9},
        {"batch_doubling_steps": 0.0},
        {"global_batch_tokens": math.inf},
    ],
)
def test_a_damaged_table_has_no_growth(damaged):
    values = {"global_batch_tokens": 4_096, "initial_batch_tokens": 1_024, "batch_doubling_steps": 10}
    assert BatchGrowth.planned(values) == BatchGrowth(1_024, 4_096, 10)
    assert BatchGrowth.planned(values | damaged if damaged else {}) == BatchGrowth(1, 1)


def test_a_first_batch_with_fewer_tokens_than_virtual_workers_is_refused():
    training = {"global_batch_tokens": 4_096, "virtual_workers": 4, "initial_batch_tokens": 3}
    with pytest.raises(UsageError, match=r"initial_batch_tokens must be 0, or at least training\.virtual_workers"):
        build_settings({"data": {"prepared": "p"}, "training": training})


def test_a_first_batch_that_is_larger_than_all_others_does_not_grow():
    assert TrainingSettings(initial_batch_tokens=5_000, global_batch_tokens=4_096).batch_growth.full_from_step == 0
