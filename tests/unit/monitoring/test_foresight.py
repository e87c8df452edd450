"""What was expected beside what came, for a run that begins and for one that goes on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.prediction import NUM_FIRST_STEPS, NUM_SKIPPED_STEPS, predict_from_steps
from dragoman.monitoring.watcher import Foresight, expected_before
from dragoman.run.folder import RunFolder

SLOW_BEGINNING = [100.0] * NUM_SKIPPED_STEPS


def write_records(run: RunFolder, *records: object) -> None:
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def predicted(seconds: object, workers: int = 2) -> dict[str, object]:
    return {"kind": "prediction", "workers": workers, "seconds_per_step": {"predicted": seconds}}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path)


def test_first_steps_make_a_prediction_once_and_those_that_warm_up_do_not_count():
    foresight = Foresight(num_workers=3)
    seen = [foresight.learn(seconds) for seconds in SLOW_BEGINNING + [2.0] * NUM_FIRST_STEPS]
    assert seen[:-1] == [None] * (len(seen) - 1)
    assert seen[-1].seconds == pytest.approx(2.0)
    assert (seen[-1].basis, seen[-1].num_workers) == ("first steps", 3)
    assert foresight.learn(5.0) is None


def test_nothing_is_compared_as_long_as_nothing_is_expected():
    assert Foresight().compare(1.0) == {}


def test_what_came_is_compared_with_what_was_rehearsed():
    foresight = Foresight()
    foresight.expect(predict_from_steps([2.0, 2.0], 1))
    compared = foresight.compare(2.5)
    assert compared == {"predicted_seconds_per_step": pytest.approx(2.0), "prediction_error": pytest.approx(0.25)}
    assert all(foresight.learn(7.0) is None for _ in range(30))


def test_a_resumed_run_keeps_its_prediction():
    foresight = Foresight(2, expected_seconds=4.0)
    assert all(foresight.learn(7.0) is None for _ in range(30))
    assert foresight.compare(3.0)["prediction_error"] == pytest.approx(-0.25)


def test_the_last_prediction_for_as_many_workers_counts(run):
    write_records(run, predicted(1.0), {"kind": "train", "workers": 2}, predicted(2.0), predicted(3.0, workers=4))
    assert expected_before(run, 2) == 2.0
    assert expected_before(run, 4) == 3.0
    assert expected_before(run, 8) is None


def test_a_run_without_records_expected_nothing(run):
    assert expected_before(run, 2) is None


@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats(), st.lists) | st.just({"predicted": "2"}))
def test_a_damaged_prediction_is_none(tmp_path_factory, damage):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    write_records(run, {"kind": "prediction", "workers": 2, "seconds_per_step": damage})
    assert expected_before(run, 2) is None
    write_records(run, predicted([damage]))
    assert expected_before(run, 2) is None
