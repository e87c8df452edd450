"""The pace of a run: speed and loss of recent steps, and the time left with evaluations and budgets."""

import math
from dataclasses import replace

import pytest

from dragoman.monitoring.pace import FinishedStep, Pace, RunLength
from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.budget import Budget
from dragoman.run.config import build_settings


def make_pace(*steps: FinishedStep, length: RunLength | None = None) -> Pace:
    pace = Pace(length or RunLength(100))
    for step in steps:
        pace.add_step(step)
    return pace


def test_the_first_step_already_tells_speed_loss_and_time_left():
    pace = make_pace(FinishedStep(2.0, num_target_tokens=4_000, loss_sum=9_000.0, num_loss_tokens=1_000))
    assert (pace.seconds_per_full_step, pace.tokens_per_second, pace.loss) == (2.0, 2_000, 9.0)
    assert pace.seconds_left(1) == 198.0


def test_nothing_is_known_before_the_first_step():
    pace = make_pace()
    assert (pace.seconds_per_full_step, pace.tokens_per_second, pace.loss, pace.seconds_left(0)) == (None,) * 4
    assert pace.describe_expectation(0) == ""


def test_only_recent_steps_count():
    pace = make_pace(*(FinishedStep(10.0) for _ in range(5)), *(FinishedStep(1.0) for _ in range(30)))
    assert pace.seconds_per_full_step == 1.0
    slow = make_pace(*(FinishedStep(seconds) for seconds in (9.0, 400.0, 100.0, 200.0, 300.0)))
    assert slow.seconds_per_full_step == 200.0  # a few steps, however long they take


def test_a_loss_that_overflowed_does_not_count():
    pace = make_pace(*(FinishedStep(1.0, 10, loss, 10) for loss in (1.0, 20.0, math.nan, math.inf)))
    assert pace.loss == 2.0


@pytest.mark.parametrize(
    ("num_steps", "step", "number"),
    [(1_000, 0, 10), (1_000, 100, 9), (1_000, 150, 9), (1_050, 0, 11), (50, 0, 1), (100, 100, 0), (150, 150, 0)],
)
def test_evaluations_that_follow_are_counted(num_steps, step, number):
    assert RunLength(num_steps, evaluate_every=100).num_evaluations_after(step) == number


def test_evaluations_count_once_one_was_timed():
    pace = make_pace(FinishedStep(2.0), length=RunLength(1_000, evaluate_every=100))
    assert pace.seconds_left(500) == 1_000
    pace.add_evaluation(500, 30.0)
    assert pace.seconds_left(500) == 1_000 + 5 * 30


def test_the_evaluation_of_the_last_step_is_still_to_come():
    pace = make_pace(FinishedStep(2.0), length=RunLength(250, evaluate_every=100))
    pace.add_evaluation(200, 30.0)
    assert pace.seconds_left(250) == 30
    pace.add_evaluation(250, 30.0)
    assert pace.seconds_left(250) == 0


def settings_with(**training):
    return build_settings({"data": {"prepared": "x"}, "training": {"max_steps": 3_000, **training}})


@pytest.mark.parametrize(
    ("training", "expectation"),
    [
        ({}, "Expected: about 1 h 10 min for 3,000 steps at 1.4 s a step, and evaluations come on top."),
        (
            {"price_per_hour": 12.0, "max_hours": 2.0},
            "Expected: about 1 h 10 min and a cost of about 14.00 for 3,000 steps at 1.4 s a step, and evaluations "
            "come on top.",
        ),
        (
            {"max_hours": 0.5},
            "Expected: 30 min, until training.max_hours ends the run after about 1,285 of 3,000 steps at 1.4 s a step.",
        ),
        (
            {"price_per_hour": 12.0, "max_cost": 4.0, "max_hours": 0.5},
            "Expected: 20 min and a cost of about 4.00, until training.max_cost ends the run after about 857 of "
            "3,000 steps at 1.4 s a step.",
        ),
    ],
)
def test_the_expectation_names_duration_steps_limit_and_cost(training, expectation):
    pace = Pace(RunLength.from_settings(settings_with(**training)), expected_seconds=1.4)
    assert pace.describe_expectation(0) == expectation


def test_a_resumed_run_has_what_is_left_of_its_budget():
    pace = Pace(RunLength.from_settings(settings_with(max_hours=1.0)), expected_seconds=10.0)
    pace.spend(3_000.0)
    assert pace.seconds_left(300) == 600.0
    assert pace.describe_expectation(300) == (
        "Expected: 10 min, until training.max_hours ends the run after about 60 of 2,700 more steps at 10.0 s a step."
    )


def test_a_run_at_its_last_step_expects_nothing():
    assert Pace(RunLength(100), expected_seconds=1.0).describe_expectation(100) == ""


def growing() -> RunLength:
    """Ten steps of a quarter of the batch, ten of half of it, then full ones."""
    return RunLength(100, growth=BatchGrowth(1_024, 4_096, 10))


def test_small_batches_at_the_start_do_not_make_the_rest_look_short():
    pace = make_pace(*(FinishedStep(1.0, batch_share=0.25) for _ in range(5)), length=growing())
    assert pace.seconds_per_full_step == 4.0
    assert pace.seconds_left(5) == 5 * 1.0 + 10 * 2.0 + 80 * 4.0
    assert "95 more steps at 1 s to 4 s a step" in pace.describe_expectation(5)


def test_a_budget_holds_more_steps_while_they_are_small():
    length = replace(growing(), budget=Budget(24.0, "time"))
    expectation = Pace(length, expected_seconds=4.0).describe_expectation(0)
    assert "after about 17 of 100 steps" in expectation  # 10 of 1 s, then 7 of 2 s
