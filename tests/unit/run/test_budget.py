"""The budget of a run, and what it needs to end within it."""

import math

import pytest

from dragoman.run.budget import END_SECONDS, WRITE_SECONDS, Budget, MeasuredSeconds, SpentRecord, read_spent
from dragoman.run.config import TrainingSettings
from dragoman.run.folder import RunFolder

MEASURED = MeasuredSeconds(start=30.0, step=2.0, evaluation=50.0, checkpoint=4.0)


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        ({}, Budget(math.inf, "none")),
        ({"max_hours": 2.0}, Budget(7_200.0, "time")),
        ({"max_cost": 3.0, "price_per_hour": 6.0}, Budget(1_800.0, "cost")),
        ({"max_hours": 0.4, "max_cost": 3.0, "price_per_hour": 6.0}, Budget(1_440.0, "time")),
        ({"max_hours": 0.5, "max_cost": 3.0, "price_per_hour": 6.0}, Budget(1_800.0, "cost")),
        ({"price_per_hour": 6.0}, Budget(math.inf, "none")),
    ],
)
def test_the_smaller_budget_counts(settings, budget):
    assert Budget.from_settings(TrainingSettings(**settings)) == budget


def test_the_end_of_a_run_takes_what_its_parts_took():
    budget = Budget(10_000.0, "time")
    to_save = 2 * 4.0 + END_SECONDS
    assert MEASURED.to_save == to_save
    assert MEASURED.to_end_after_next_step(budget, is_evaluation_due=False) == 2 * 2.0 + 50.0 + to_save
    assert MEASURED.to_end_after_next_step(budget, is_evaluation_due=True) == 2 * 2.0 + 2 * 50.0 + to_save
    assert MEASURED.to_start_and_end(budget) == 30.0 + 2.0 + 50.0 + to_save


@pytest.mark.parametrize(("seconds", "kept"), [(100.0, 10.0), (1e6, 600.0), (math.inf, 600.0)])
def test_an_evaluation_that_was_never_measured_gets_a_share_of_the_budget(seconds, kept):
    assert MeasuredSeconds().to_evaluate(Budget(seconds, "time")) == kept


def test_what_is_written_is_read(tmp_path):
    run = RunFolder(tmp_path)
    assert read_spent(run) is None
    record = SpentRecord(700.0, "b", 100.0, MEASURED)
    record.write(run)
    assert read_spent(run) == record
    assert record.seconds_before("b") == 600.0
    assert record.seconds_before("c") == 700.0 + WRITE_SECONDS
