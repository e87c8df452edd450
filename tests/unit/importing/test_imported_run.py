"""Records of imported runs: plain values, bounded in number, and the first step with a NaN loss."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.importing import imported_run
from dragoman.importing.imported_run import MAX_LISTED, ImportedRun, LogFailure, transformer_schedule
from dragoman.run.records import LARGEST_NUMBER


def steps_of(run: ImportedRun, kind: str) -> list[int]:
    return [record["step"] for record in run.records if record["kind"] == kind]


@pytest.fixture
def small(monkeypatch) -> ImportedRun:
    monkeypatch.setattr(imported_run, "MAX_RECORDS", 100)
    return ImportedRun()


def test_all_kinds_of_records():
    run = ImportedRun()
    run.add_train(100, loss=2.5)
    run.add_evaluation(100, bleu=20.0)
    run.add_checkpoint(100, path="x")
    run.add_restart(100, cause="y")
    assert [record["kind"] for record in run.records] == ["train", "evaluation", "checkpoint", "restart"]
    assert run.newest_step == 100
    assert not run.is_empty


def test_a_run_that_only_saved_is_empty():
    run = ImportedRun()
    run.add_checkpoint(0)
    run.add_restart(0)
    assert run.is_empty
    assert run.newest_step is None


def test_too_many_training_records_are_thinned_out_evenly_and_all_others_kept(small):
    for step in range(1_000):
        small.add_train(step, loss=1.0)
        if step % 100 == 0:
            small.add_evaluation(step, loss=2.0)
    assert len(small.records) <= 100
    assert steps_of(small, "evaluation") == list(range(0, 1_000, 100))
    steps = steps_of(small, "train")
    assert len(steps) > 30
    assert steps == sorted(steps)
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    assert max(gaps) <= 2 * 1_000 / len(steps)
    assert steps[-1] > 950
    assert small.newest_step == 999


def test_the_number_of_evaluations_is_bounded(small):
    for step in range(1_000):
        small.add_evaluation(step, loss=2.0)
    assert len(small.records) <= 100


@pytest.mark.parametrize("step", [-1, LARGEST_NUMBER + 1])
def test_impossible_steps_are_left_out(step):
    run = ImportedRun()
    run.add_train(step, loss=1.0)
    run.add_evaluation(step, loss=1.0)
    run.add_checkpoint(step)
    run.add_restart(step)
    assert run.records == []


def test_the_first_nan_step_is_kept():
    run = ImportedRun()
    for step, loss in enumerate([3.0, 2.0, math.nan, math.inf, math.nan]):
        run.add_train(step, loss=loss)
    assert (run.first_nan_step, run.last_finite_step) == (2, 1)


def test_a_loss_that_recovers_is_no_failure():
    run = ImportedRun()
    for step, loss in enumerate([3.0, math.nan, 2.0]):
        run.add_train(step, loss=loss)
    assert (run.first_nan_step, run.last_finite_step) == (None, 2)


def test_steps_without_a_loss_say_nothing_about_it():
    run = ImportedRun()
    run.add_train(1, loss=math.nan)
    run.add_train(2, learning_rate=1.0)
    assert run.first_nan_step == 1


def test_nan_is_noticed_in_records_that_are_thinned_out(small):
    for step in range(1_000):
        small.add_train(step, loss=math.nan if step >= 777 else 1.0)
    assert (small.first_nan_step, small.last_finite_step) == (777, 776)


def test_the_transformer_schedule_reaches_the_peak():
    settings = transformer_schedule(0.001, 100, 10_000)
    assert settings == {"schedule": "transformer", "warmup_steps": 10_000, "learning_rate": pytest.approx(1)}


def test_failures_notes_and_facts_are_kept_once_and_bounded():
    run = ImportedRun()
    for number in range(2 * MAX_LISTED):
        for _ in range(2):
            run.add_failure(LogFailure(f"failure {number}", "cause"))
            run.note(f"note {number}")
            run.add_to_fact("hosts", f"host{number}")
    assert len(run.failures) == len(run.notes) == len(run.facts["hosts"]) == MAX_LISTED
    assert len(set(run.notes)) == MAX_LISTED


def test_launches_have_the_steps_they_made():
    run = ImportedRun(source="a.log", line=7)
    run.begin_launch(5.0)
    run.begin_launch()  # another rank
    run.add_train(1, loss=1.0)
    run.add_train(2, loss=1.0)
    run.add_restart(1)
    run.begin_launch()  # the trainer's own line about the same restart
    run.add_train(2, loss=1.0)
    run.launches[-1].end = "finished"
    run.begin_launch()
    steps = [(each.number, each.first_step, each.last_step, each.end) for each in run.launches]
    assert steps == [(1, 1, 2, "unknown"), (2, 2, 2, "finished"), (3, None, None, "unknown")]
    assert (run.launches[0].source, run.launches[0].line, run.launches[0].time) == ("a.log", 7, 5.0)
    assert run.main_launch is run.launches[1]


def test_a_step_after_a_failure_shows_that_the_launch_went_on():
    run = ImportedRun()
    run.begin_launch()
    run.launches[-1].end = "failed"
    run.add_train(1, loss=1.0)
    assert [launch.end for launch in run.launches] == ["unknown"]


def test_a_launch_found_later_is_numbered_in_its_place():
    run = ImportedRun()
    run.add_train(1, loss=1.0)
    run.insert_launch(before=run.launches[0], line=3)
    assert [(launch.number, launch.line, launch.last_step) for launch in run.launches] == [(1, 3, None), (2, None, 1)]


def test_the_same_failure_of_two_launches_is_kept_twice():
    run = ImportedRun()
    for launch in (1, 2, 2):
        run.add_failure(LogFailure("A GPU ran out of memory.", "x", launch=launch))
    assert [failure.launch for failure in run.failures] == [1, 2]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(object()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["loss", "sample", "samples", "path", "cause"]), ANYTHING))
def test_whatever_is_added_can_be_written(figures):
    run = ImportedRun()
    run.add_train(1, **figures)
    run.add_evaluation(1, **figures)
    text = json.dumps(run.records, allow_nan=False, ensure_ascii=False)
    text.encode("utf-8")
    assert "\x1b" not in text
