"""Log lines exactly as the seeds' system prints them, and records beside them."""

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.prediction import predict_from_steps
from dragoman.diagnosis.verdict import Verdict
from dragoman.monitoring import buffered_file
from dragoman.monitoring.console import RunConsole, format_seconds
from dragoman.monitoring.sinks import Sinks
from dragoman.monitoring.watcher import RunWatcher, Sample, Watcher, seeds_duration

FIGURES = {
    "loss": 1.63476,
    "seconds_per_step": 1.9461,
    "target_tokens_per_second": 12_345.6,
    "learning_rate": 9.882e-4,
    "gradient_norm": 0.51234,
    "padding_share": 0.083,
}
EVALUATION = {"loss": 1.65721, "bleu": 26.415, "seconds": 12.34, "signature": "nrefs:1|case:mixed"}
SAMPLE = Sample(source=["<s>", "▁The", "▁tour"], target=["<s>", "▁Nur"], prediction=["<s>", "▁Die"])


@pytest.fixture
def watched(tmp_path):
    """A watcher, and what it leaves: lines of log.txt and records."""
    with (
        Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", 0) as sinks,
        RunConsole(tmp_path / "log.txt", num_steps=1_000) as console,
    ):
        yield (
            RunWatcher(console, sinks, num_steps=1_000),
            lambda: (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines(),
            lambda: [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()],
        )


def test_training_lines_are_the_seeds(watched):
    watcher, lines, _ = watched
    watcher.trained(61_700, FIGURES, None)
    assert lines()[0] == "*** Global step 61700: ***     Train loss: 1.6348 "
    assert lines()[1] == "time per step = 0:00:1.946"


def test_sample_lines_are_the_seeds(watched):
    watcher, lines, _ = watched
    watcher.trained(100, FIGURES, SAMPLE)
    assert lines()[-3:] == [
        "***     Train Source[0]:     <s> ▁The ▁tour",
        "***     Train Target[0]:     <s> ▁Nur",
        "***     Train Prediction[0]: <s> ▁Die",
    ]


def test_evaluation_lines_are_the_seeds_and_bleu_comes_with_its_signature(watched):
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


def test_parts_of_a_step_are_told_and_kept(watched):
    watcher, lines, records = watched
    watcher.trained(100, FIGURES | {"attribution": {"forward": 1.0, "exposed_communication": 3.0}}, None)
    assert lines()[3] == "***     A step: waiting for the network 75%, forward 25%"
    assert records()[0]["attribution"] == {"forward": 1.0, "exposed_communication": 3.0}


def test_a_prediction_is_told_with_advice_and_problems_and_every_record_says_how_wrong_it_was(watched):
    watcher, lines, records = watched
    rehearsed = predict_from_steps([2.0, 2.0], 2)
    watcher.predicted(0, replace(rehearsed, advice=["A faster port."], problems=["A slow host."]))
    watcher.trained(100, FIGURES, None)
    assert lines()[0].startswith("Predicted: 2 s a step")
    assert lines()[1:3] == ["What would help: A faster port.", "PROBLEM: A slow host."]
    prediction, train = records()
    assert (prediction["kind"], prediction["seconds_per_step"]["predicted"]) == ("prediction", 2.0)
    assert train["predicted_seconds_per_step"] == 2.0
    assert train["prediction_error"] == pytest.approx(FIGURES["seconds_per_step"] / 2 - 1)


def test_where_nothing_was_rehearsed_the_first_steps_make_a_prediction(watched):
    watcher, lines, records = watched
    for step in range(1, 41):
        watcher.progressed(step, 0.5)
    [prediction] = records()
    assert (prediction["kind"], prediction["basis"]) == ("prediction", "first steps")
    assert lines() == []


def test_the_verdict_is_told_and_kept_and_none_is_not(watched):
    watcher, lines, records = watched
    watcher.judged(9, Verdict("unknown", 0.0, 0.0, "Nobody knows."))
    assert (lines(), records()) == ([], [])
    watcher.judged(9, Verdict("network", 0.7, 0.9, "The run is network-bound.", misleading=["The GPU seemed busy."]))
    assert lines() == ["The run is network-bound.", "The GPU seemed busy."]
    [record] = records()
    assert (record["kind"], record["step"], record["bottleneck"]) == ("verdict", 9, "network")


def test_a_failed_save_is_a_sentence_and_a_record(watched):
    watcher, lines, records = watched
    error = "The checkpoint of step 7 could not be written to /run/checkpoints: Read-only file system."
    watcher.save_failed(7, error)
    assert lines()[-1].startswith(error)
    assert "training goes on" in lines()[-1]
    (record,) = records()
    assert (record["kind"], record["step"], record["error"]) == ("checkpoint_failed", 7, error)


def test_an_outage_is_told_once_and_so_is_its_end(watched, monkeypatch):
    watcher, lines, records = watched
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
    with monkeypatch.context() as outage:
        outage.setattr(buffered_file, "_write_all", fail)
        for step in range(1, 6):
            watcher.trained(step, FIGURES, None)
            watcher.progressed(step)
        assert records() == []
    watcher.trained(6, FIGURES, None)
    watcher.progressed(6)
    watcher.progressed(7)
    assert [record["step"] for record in records()] == [1, 2, 3, 4, 5, 6]
    told = [line for line in lines() if "disk" in line]
    assert len(told) == 2
    assert "cannot be written: there is no space left on the disk. Training goes on" in told[0]
    assert told[1] == "The disk takes lines again: those that waited are written."


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_terminal_that_is_a_file_on_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    refused = pytest.raises(OSError, match="No space left")  # closing tries once more; it is no part of the run
    with refused, Path("/dev/full").open("w") as full, monkeypatch.context() as redirected:
        redirected.setattr(sys, "stdout", full)
        console = RunConsole(tmp_path / "log.txt", num_steps=10)
        console.say("a sentence")
        console.log("x" * 20_000)
    assert (tmp_path / "log.txt").read_text() == "a sentence\n" + "x" * 20_000 + "\n"


def test_lines_reach_standard_output_too(tmp_path, capsys):
    with RunConsole(tmp_path / "log.txt", num_steps=10) as console:
        console.log("a regular line")
        console.say("a sentence")
    assert capsys.readouterr().out.splitlines() == ["a regular line", "a sentence"]


@pytest.mark.parametrize("text", ["▁[bold] ▁[/] ▁[link=x]", "a" * 500, "▁: smile :", ":smile: ▁:warning:"])
def test_text_is_shown_as_it_is(tmp_path, capsys, text):
    """Sample text is data: brackets are no markup, `:smile:` no picture, long lines are not folded."""
    with RunConsole(tmp_path / "log.txt", num_steps=10) as console:
        console.log(text)
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == text + "\n"
    assert capsys.readouterr().out == text + "\n"


def test_a_continued_run_appends_to_its_log(tmp_path):
    for text in ("first", "second"):
        with RunConsole(tmp_path / "log.txt", num_steps=10) as console:
            console.log(text)
    assert (tmp_path / "log.txt").read_text() == "first\nsecond\n"


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
def test_durations_are_printed_as_the_seeds_print_them(seconds, text):
    assert seeds_duration(seconds) == text


@given(st.floats(0, 1e6))
def test_durations_can_be_read_back(seconds):
    hours, minutes, rest = seeds_duration(seconds).split(":")
    assert int(hours) * 3600 + int(minutes) * 60 + float(rest) == pytest.approx(seconds, abs=6e-4)
    assert len(minutes) == 2


@pytest.mark.parametrize(("seconds", "text"), [(271, "0:04:31"), (0.4, "0:00:00"), (176_400, "2 days, 1:00:00")])
def test_durations_for_people(seconds, text):
    assert format_seconds(seconds) == text


def test_other_ranks_keep_silent(capsys):
    watcher = Watcher()
    watcher.say("text")
    watcher.restarted(1, {})
    watcher.progressed(1)
    watcher.trained(1, FIGURES, SAMPLE)
    watcher.evaluated(1, EVALUATION)
    watcher.saved(1, {"path": "x"})
    watcher.save_failed(1, "error")
    assert capsys.readouterr() == ("", "")
