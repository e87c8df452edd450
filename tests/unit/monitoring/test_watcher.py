"""Log lines exactly as OpenSeq2Seq prints them, records beside them, and measured steps beside predicted ones."""

import errno
import json
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.diagnosis.prediction import NUM_FIRST_STEPS, NUM_SKIPPED_STEPS, predict_from_steps
from dragoman.diagnosis.step_model import Step
from dragoman.diagnosis.verdict import Verdict
from dragoman.monitoring import buffered_file
from dragoman.monitoring.pace import FinishedStep, Pace, RunLength
from dragoman.monitoring.sinks import RunConsole, Sinks
from dragoman.monitoring.watcher import (
    PredictionCheck,
    PredictionSample,
    RunWatcher,
    Watcher,
    openseq2seq_duration,
    read_known_speed,
)
from dragoman.run.folder import RunFolder
from dragoman.run.units import format_seconds

FIGURES = {
    "loss": 1.63476,
    "seconds_per_step": 1.9461,
    "target_tokens_per_second": 12_345.6,
    "learning_rate": 9.882e-4,
    "gradient_norm": 0.51234,
    "padding_share": 0.083,
}
EVALUATION = {"loss": 1.65721, "bleu": 26.415, "seconds": 12.34, "signature": "nrefs:1|case:mixed"}
SAMPLE = PredictionSample(source=["<s>", "▁The", "▁tour"], target=["<s>", "▁Nur"], prediction=["<s>", "▁Die"])


@pytest.fixture
def watched(tmp_path):
    """A watcher, and functions that read log.txt and the records."""
    with (
        Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", None) as sinks,
        RunConsole(tmp_path / "log.txt", num_steps=1_000) as console,
    ):
        yield (
            RunWatcher(console, sinks, Pace(RunLength(num_steps=1_000, evaluate_every=100))),
            lambda: (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines(),
            lambda: [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()],
        )


def test_training_lines_are_those_of_openseq2seq(watched):
    watcher, lines, _ = watched
    watcher.trained(61_700, FIGURES, None)
    assert lines()[0] == "*** Global step 61700: ***     Train loss: 1.6348 "
    assert lines()[1] == "time per step = 0:00:1.946"


def test_sample_lines_are_those_of_openseq2seq(watched):
    watcher, lines, _ = watched
    watcher.trained(100, FIGURES, SAMPLE)
    assert lines()[-3:] == [
        "***     Train Source[0]:     <s> ▁The ▁tour",
        "***     Train Target[0]:     <s> ▁Nur",
        "***     Train Prediction[0]: <s> ▁Die",
    ]


def test_a_run_that_is_judged_by_chrf_shows_it_first(tmp_path):
    with (
        Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", None) as sinks,
        RunConsole(tmp_path / "log.txt", num_steps=1_000) as console,
    ):
        pace = Pace(RunLength(num_steps=1_000, evaluate_every=100))
        RunWatcher(console, sinks, pace, metric="chrf").evaluated(100, EVALUATION | {"chrf": 54.321})
    assert "step 100: chrF 54.32, BLEU 26.41 on the dev set" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_evaluation_lines_are_those_of_openseq2seq_with_the_signature_of_bleu(watched):
    watcher, lines, _ = watched
    watcher.evaluated(4_001, EVALUATION)
    assert lines()[:2] == ["*** Running evaluation on a validation set:", "***     Validation loss: 1.6572 "]
    assert "step 4001: BLEU 26.4" in lines()[2]
    assert "nrefs:1|case:mixed" in lines()[2]


def test_the_third_line_tells_speed_rate_norm_and_padding(watched):
    watcher, lines, _ = watched
    watcher.trained(100, FIGURES, None)
    expected = "12,346 target tokens/s, learning rate 9.882e-04, gradient norm 0.512, padding 8.3%"
    assert lines()[2] == f"***     {expected}"


def test_each_moment_leaves_its_record(watched):
    watcher, lines, records = watched
    watcher.restarted(50, {"workers": 2})
    watcher.trained(100, FIGURES, None)
    watcher.evaluated(100, EVALUATION)
    watcher.saved(100, {"path": "checkpoints/step-00000100", "bytes": 3})
    kinds = [(record["kind"], record["step"]) for record in records()]
    assert kinds == [("restart", 50), ("train", 100), ("evaluation", 100), ("checkpoint", 100)]
    assert records()[1]["loss"] == FIGURES["loss"]
    assert lines()[0] == "Continuing from the checkpoint of step 50."
    assert lines()[-1] == "*** Saved checkpoint of step 100 to checkpoints/step-00000100"


def test_parts_of_a_step_are_logged_and_recorded(watched):
    watcher, lines, records = watched
    watcher.trained(100, FIGURES | {"attribution": {"forward": 1.0, "exposed_communication": 3.0}}, None)
    assert lines()[3] == "***     A step: waiting for the network 75%, forward 25%"
    assert records()[0]["attribution"] == {"forward": 1.0, "exposed_communication": 3.0}


def test_a_prediction_is_shown_with_advice_and_every_record_has_its_error(watched):
    watcher, lines, records = watched
    rehearsed = replace(predict_from_steps([2.0, 2.0], 2), step=Step({"forward": 2.0}))
    watcher.predicted(0, replace(rehearsed, advice=["A faster port."], problems=["A slow host."]))
    watcher.trained(100, FIGURES, None)
    assert lines()[0].startswith("Predicted: 2 s per step")
    assert lines()[1:5] == [
        "A step: forward 100%.",
        "Expected: about 33 min for 1,000 steps at 2 s a step, and evaluations come on top.",
        "What would help: A faster port.",
        "PROBLEM: A slow host.",
    ]
    prediction, train = records()
    assert (prediction["kind"], prediction["seconds_per_step"]["predicted"]) == ("prediction", 2.0)
    assert train["predicted_seconds_per_step"] == 2.0
    assert train["prediction_error"] == pytest.approx(FIGURES["seconds_per_step"] / 2 - 1)


def test_a_brief_rehearsal_only_says_how_long_the_run_takes(watched):
    watcher, lines, records = watched
    watcher.predicted(0, predict_from_steps([1.4], 2))
    assert lines() == ["Expected: about 23 min for 1,000 steps at 1.4 s a step, and evaluations come on top."]
    assert records()[0]["seconds_per_step"]["predicted"] == 1.4


def test_an_expectation_names_who_disturbed_the_measurement(watched):
    watcher, lines, _ = watched
    watcher.predicted(0, replace(predict_from_steps([1.4], 2), other_load="other programs used 1.4 of 2 cores"))
    assert lines()[1:] == ["This is uncertain: other programs used 1.4 of 2 cores while it was measured."]


def test_without_measurements_the_first_steps_give_a_prediction_and_an_expectation(watched):
    watcher, lines, records = watched
    for step in range(1, 41):
        watcher.progressed(step, FinishedStep(0.5))
    [prediction] = records()
    assert (prediction["kind"], prediction["basis"]) == ("prediction", "first steps")
    assert lines()[-1] == (
        "Expected: about 8 min 14 s for 988 more steps at 0.5 s a step, and evaluations come on top."
    )


def test_loss_speed_and_time_left_are_logged_from_the_first_step_on(watched):
    watcher, lines, _ = watched
    for step in range(1, 12):
        watcher.progressed(step, finished_step(2.0 if step == 1 else 1.0, loss=8.0))
    assert lines() == [
        "step 1: loss 8.000, 500 tokens/s, 33 min left",
        "step 3: loss 8.000, 1,000 tokens/s, 17 min left",  # the slow first step does not count any more
        "step 10: loss 8.000, 1,000 tokens/s, 16 min left",
    ]


def finished_step(seconds: float, loss: float = 1.0) -> FinishedStep:
    return FinishedStep(seconds, num_target_tokens=1_000, loss_sum=500 * loss, num_loss_tokens=500)


def test_a_regular_line_tells_the_time_left(watched):
    watcher, lines, _ = watched
    watcher.progressed(100, finished_step(2.0))
    watcher.trained(100, FIGURES, None)
    assert lines()[-1].endswith("padding 8.3%, 30 min left")


def test_evaluations_join_the_expectation_as_soon_as_one_was_timed(watched):
    watcher, lines, _ = watched
    watcher.progressed(100, finished_step(2.0))
    watcher.evaluated(100, EVALUATION | {"seconds": 60.0})
    assert lines()[-1] == "Expected: about 39 min for 900 more steps at 2 s a step, evaluations included."
    num_lines = len(lines())
    watcher.evaluated(200, EVALUATION)
    assert not any(line.startswith("Expected") for line in lines()[num_lines:])


def test_a_resumed_run_says_how_long_it_still_takes(tmp_path):
    with (
        Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", None) as sinks,
        RunConsole(tmp_path / "log.txt", num_steps=1_000) as console,
    ):
        RunWatcher(console, sinks, Pace(RunLength(1_000), expected_seconds=3.0)).restarted(400, {"workers": 2})
    assert (tmp_path / "log.txt").read_text().splitlines()[1] == (
        "Expected: about 30 min for 600 more steps at 3 s a step, and evaluations come on top."
    )


def test_a_known_verdict_is_shown_and_recorded(watched):
    watcher, lines, records = watched
    watcher.diagnosed(9, Verdict("unknown", 0.0, 0.0, "Nobody knows."))
    assert (lines(), records()) == ([], [])
    watcher.diagnosed(9, Verdict("network", 0.7, 0.9, "The run is network-bound.", misleading=["The GPU seemed busy."]))
    assert lines() == ["The run is network-bound.", "The GPU seemed busy."]
    [record] = records()
    assert (record["kind"], record["step"], record["bottleneck"]) == ("verdict", 9, "network")


def test_a_failed_save_is_a_message_and_a_record(watched):
    watcher, lines, records = watched
    error = "The checkpoint of step 7 could not be written to /run/checkpoints: Read-only file system."
    watcher.save_failed(7, error)
    assert lines()[-1].startswith(error)
    assert "training continues" in lines()[-1]
    (record,) = records()
    assert (record["kind"], record["step"], record["error"]) == ("checkpoint_failed", 7, error)


def test_disk_trouble_and_its_end_are_reported_once(watched, monkeypatch):
    watcher, lines, records = watched
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(buffered_file, "write_all", fail)
        for step in range(1, 6):
            watcher.trained(step, FIGURES, None)
            watcher.progressed(step)
        assert records() == []
    watcher.trained(6, FIGURES, None)
    watcher.progressed(6)
    watcher.progressed(7)
    assert [record["step"] for record in records()] == [1, 2, 3, 4, 5, 6]
    reported = [line for line in lines() if "disk" in line]
    assert len(reported) == 2
    assert "cannot be written: there is no space left on the disk. Training continues" in reported[0]
    assert reported[1] == "The disk accepts writes again: all lines kept in memory are written."


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_progress_without_a_terminal_writes_nothing(watched, capsys):
    watcher, lines, _ = watched
    watcher.progressed(1)
    watcher.trained(2, FIGURES, None)
    num_lines = len(lines())
    watcher.progressed(3)
    assert len(lines()) == num_lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.946, "0:00:1.946"),
        (0.0, "0:00:0.000"),
        (0.7706, "0:00:0.771"),
        (29.65, "0:00:29.650"),
        (61.5, "0:01:1.500"),
        (3_600, "1:00:0.000"),
        (7_384.25, "2:03:4.250"),
        (90_000, "25:00:0.000"),
    ],
)
def test_durations_are_printed_as_openseq2seq_prints_them(seconds, text):
    assert openseq2seq_duration(seconds) == text


@given(st.floats(0, 1e6))
def test_durations_can_be_read_back(seconds):
    hours, minutes, rest = openseq2seq_duration(seconds).split(":")
    assert int(hours) * 3600 + int(minutes) * 60 + float(rest) == pytest.approx(seconds, abs=6e-4)
    assert len(minutes) == 2


@pytest.mark.parametrize(("seconds", "text"), [(271, "0:04:31"), (0.4, "0:00:00"), (176_400, "2 days, 1:00:00")])
def test_durations_for_people(seconds, text):
    assert format_seconds(seconds) == text


def test_other_ranks_are_silent(capsys):
    watcher = Watcher()
    watcher.say("text")
    watcher.restarted(1, {})
    watcher.progressed(1)
    watcher.trained(1, FIGURES, SAMPLE)
    watcher.evaluated(1, EVALUATION)
    watcher.saved(1, {"path": "x"})
    watcher.save_failed(1, "error")
    assert capsys.readouterr() == ("", "")


# The prediction

SLOW_BEGINNING = [100.0] * NUM_SKIPPED_STEPS


def write_records(run: RunFolder, *records: object) -> None:
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def prediction_values(seconds: object, workers: int = 2) -> dict[str, object]:
    return {"kind": "prediction", "step": 0, "workers": workers, "seconds_per_step": {"predicted": seconds}}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path)


def test_the_first_steps_after_warm_up_give_one_prediction():
    check = PredictionCheck(num_workers=3)
    seen = [check.add_step(seconds) for seconds in SLOW_BEGINNING + [2.0] * NUM_FIRST_STEPS]
    assert seen[:-1] == [None] * (len(seen) - 1)
    assert seen[-1].seconds == pytest.approx(2.0)
    assert (seen[-1].basis, seen[-1].num_workers) == ("first steps", 3)
    assert check.add_step(5.0) is None


def test_without_a_prediction_nothing_is_compared():
    assert PredictionCheck().compare(1.0) == {}


def test_measured_steps_are_compared_with_the_prediction():
    check = PredictionCheck()
    check.expect(predict_from_steps([2.0, 2.0], 1))
    compared = check.compare(2.5)
    assert compared == {"predicted_seconds_per_step": pytest.approx(2.0), "prediction_error": pytest.approx(0.25)}
    assert all(check.add_step(7.0) is None for _ in range(30))


def test_smaller_batches_are_expected_to_take_less_time():
    check = PredictionCheck(2, expected_seconds=4.0)
    compared = check.compare(1.1, batch_share=0.25)
    assert compared == {"predicted_seconds_per_step": 1.0, "prediction_error": pytest.approx(0.1)}


def test_a_resumed_run_keeps_its_prediction():
    check = PredictionCheck(2, expected_seconds=4.0)
    assert all(check.add_step(7.0) is None for _ in range(30))
    assert check.compare(3.0)["prediction_error"] == pytest.approx(-0.25)


def test_the_last_prediction_for_the_same_number_of_workers_counts(run):
    write_records(
        run,
        prediction_values(1.0),
        {"kind": "train", "step": 1, "workers": 2},
        prediction_values(2.0),
        prediction_values(3.0, workers=4),
    )
    assert read_known_speed(run, 2).predicted == 2.0
    assert read_known_speed(run, 4).predicted == 3.0
    assert read_known_speed(run, 8).predicted is None


def train_values(seconds: float) -> dict[str, object]:
    return {"kind": "train", "step": 1, "seconds_per_step": seconds}


def test_a_resumed_run_knows_the_speed_it_recorded_last_with_as_many_workers(run):
    write_records(run, prediction_values(9.0), *(train_values(seconds) for seconds in (5.0, 1.0, 2.0, 3.0, 2.0, 9.0)))
    assert read_known_speed(run, 2).recorded == 2.0
    assert read_known_speed(run, 4).recorded is None
    restart = {"kind": "restart", "step": 1, "workers": 4}
    write_records(run, prediction_values(9.0), train_values(5.0), restart, train_values(7.0))
    assert read_known_speed(run, 4).recorded == 7.0
    assert read_known_speed(run, 2).recorded is None
    write_records(run, train_values(5.0))
    assert read_known_speed(run, 2).recorded is None
    write_records(run, prediction_values(9.0), train_values(1.5) | {"batch_share": 0.5})
    assert read_known_speed(run, 2).recorded == 3.0  # of a full step


def test_a_run_without_records_has_no_prediction(run):
    assert read_known_speed(run, 2).recorded is None
    assert read_known_speed(run, 2).predicted is None


@settings(max_examples=30)
@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats(), st.lists) | st.just({"predicted": "2"}))
def test_a_damaged_prediction_is_none(tmp_path_factory, damage):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    write_records(run, {"kind": "prediction", "step": 0, "workers": 2, "seconds_per_step": damage})
    assert read_known_speed(run, 2).predicted is None
    write_records(run, prediction_values([damage]))
    assert read_known_speed(run, 2).predicted is None
