"""Messages and records of a run: in log.txt and metrics.jsonl after any crash, and in TensorBoard under its tags."""

import errno
import json
import math
import os
import sys
import time
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dragoman.monitoring import buffered_file
from dragoman.monitoring.sinks import TENSORBOARD_TAGS, MetricsFile, RunConsole, Sinks, TensorBoardFile


def read_records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_each_record_is_one_line_with_time_kind_and_step(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    begin = time.time()
    file.write("train", 50, {"loss": 1.5})
    file.write("evaluation", 50, {"signature": "nrefs:1|größe\n"})
    file.file.close()
    first, second = read_records(tmp_path / "metrics.jsonl")
    assert begin <= first.pop("time") <= second.pop("time") <= time.time()
    assert first == {"kind": "train", "step": 50, "loss": 1.5}
    assert second == {"kind": "evaluation", "step": 50, "signature": "nrefs:1|größe\n"}


def test_a_record_is_on_disk_at_once(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write("train", 1, {})
    assert len(read_records(tmp_path / "metrics.jsonl")) == 1
    file.file.close()


def test_a_continued_run_appends(tmp_path):
    for step in (1, 2):
        file = MetricsFile(tmp_path / "metrics.jsonl")
        file.write("train", step, {})
        file.file.close()
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("half", ['{"time": 1.0, "ki', "{", '{"kind": "gr'])
def test_new_records_after_an_incomplete_line_are_readable(tmp_path, half):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "train", "step": 1}\n' + half.encode() + "ö".encode()[:1])
    file = MetricsFile(path)
    file.write("train", 2, {"loss": 1.0})
    file.file.close()
    lines = path.read_bytes().split(b"\n")
    assert json.loads(lines[0])["step"] == 1
    assert json.loads(lines[2])["step"] == 2
    assert lines[3:] == [b""]


@pytest.mark.parametrize("content", [None, b"", b'{"step": 1}\n'])
def test_a_complete_file_is_not_changed_by_opening_it(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    MetricsFile(path).file.close()
    assert path.read_bytes() == (content or b"")


TRAIN = {
    "loss": 1.5,
    "learning_rate": 0.25,
    "gradient_norm": 2.0,
    "loss_scale": 16_384.0,
    "steps_per_second": 0.5,
    "not_for_tensorboard": 7.0,
}


def test_tensorboard_reads_the_tags_of_openseq2seq(tmp_path):
    file = TensorBoardFile(tmp_path, resumed_step=None)
    file.write("train", 50, TRAIN)
    file.write("train", 100, TRAIN | {"loss": 1.25})
    file.write("evaluation", 100, {"loss": 1.75, "bleu": 26.5, "signature": "text, not a number"})
    file.file.close()
    assert read_events(tmp_path) == {
        "train_loss": [(50, 1.5), (100, 1.25)],
        "learning_rate": [(50, 0.25), (100, 0.25)],
        "Loss_Optimization/global_gradient_norm": [(50, 2.0), (100, 2.0)],
        "Loss_Optimization/loss_scale": [(50, 16_384.0), (100, 16_384.0)],
        "global_step/sec": [(50, 0.5), (100, 0.5)],
        "eval_loss": [(100, 1.75)],
        "Eval_BLEU_Score": [(100, 26.5)],
    }


def test_all_tags_of_openseq2seq_are_written_and_no_tag_twice():
    tags = list(TENSORBOARD_TAGS.values())
    assert len(tags) == len(set(tags))
    assert set(tags) >= {
        "train_loss",
        "eval_loss",
        "Eval_BLEU_Score",
        "learning_rate",
        "Loss_Optimization/global_gradient_norm",
        "Loss_Optimization/loss_scale",
        "global_step/sec",
    }


def test_events_can_be_read_during_the_run(tmp_path):
    file = TensorBoardFile(tmp_path, resumed_step=None)
    file.write("train", 50, TRAIN)
    assert read_events(tmp_path)["train_loss"] == [(50, 1.5)]
    file.file.close()


def test_a_continued_run_replaces_the_points_it_repeats(tmp_path):
    first = TensorBoardFile(tmp_path, resumed_step=None)
    for step in (50, 100, 150):
        first.write("train", step, {"loss": 1.0})
    first.file.close()
    second = TensorBoardFile(tmp_path, resumed_step=100)  # the checkpoint was of step 100
    second.write("train", 150, {"loss": 2.0})
    second.write("train", 200, {"loss": 2.0})
    second.file.close()
    assert read_events(tmp_path)["train_loss"] == [(50, 1.0), (100, 1.0), (150, 2.0), (200, 2.0)]


def test_a_run_continued_from_step_0_replaces_all_points(tmp_path):
    """A run that is killed before its first checkpoint starts again with the one of step 0."""
    first = TensorBoardFile(tmp_path, resumed_step=None)
    first.write("train", 50, {"loss": 1.0})
    first.file.close()
    second = TensorBoardFile(tmp_path, resumed_step=0)
    second.write("train", 50, {"loss": 2.0})
    second.file.close()
    assert read_events(tmp_path)["train_loss"] == [(50, 2.0)]


def test_events_are_buffered_while_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(buffered_file, "RETRY_SECONDS", 0.0)
    file = TensorBoardFile(tmp_path, resumed_step=None)
    file.write("train", 1, {"loss": 1.0})
    whole = buffered_file.write_all

    def fill_up(opened: FileIO, data: bytes) -> None:
        whole(opened, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(buffered_file, "write_all", fill_up)
        file.write("train", 2, {"loss": 2.0})
        file.write("train", 3, {"loss": 3.0})
        assert read_events(tmp_path)["train_loss"] == [(1, 1.0)]
    file.write("train", 4, {"loss": 4.0})
    file.file.close()
    assert read_events(tmp_path)["train_loss"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_a_record_without_tagged_figures_writes_no_event(tmp_path):
    file = TensorBoardFile(tmp_path, resumed_step=None)
    file.write("checkpoint", 5, {"path": "x", "bytes": 3})
    file.file.close()
    assert read_events(tmp_path) == {}


def test_all_sinks_get_every_record(tmp_path):
    with Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", resumed_step=None) as sinks:
        sinks.write("train", 50, TRAIN)
        sinks.write("checkpoint", 50, {"path": "checkpoints/step-00000050"})
    assert [record["kind"] for record in read_records(tmp_path / "metrics.jsonl")] == ["train", "checkpoint"]
    assert read_events(tmp_path / "tensorboard")["train_loss"] == [(50, 1.5)]


def test_the_parts_of_a_step_and_figures_of_machines_are_scalars(tmp_path):
    with Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", None) as sinks:
        sinks.write("train", 10, {"attribution": {"forward": 0.5, "straggler": 0.25}, "slowest": {"rank": 1}})
        sinks.write_scalars(10, {"system/a/cpu": 0.75})
    events = read_events(tmp_path / "tensorboard")
    assert events["attribution/forward"] == [(10, 0.5)]
    assert events["attribution/straggler"] == [(10, 0.25)]
    assert events["system/a/cpu"] == [(10, 0.75)]
    [record] = read_records(tmp_path / "metrics.jsonl")
    assert record["slowest"] == {"rank": 1}
    assert "system/a/cpu" not in record


# Figures that JSON or TensorBoard do not have


HOLDS_ITSELF: dict[str, object] = {}
HOLDS_ITSELF["again"] = HOLDS_ITSELF


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, None),
        (
            {"forward": math.nan, "links": [1.0, -math.inf, (math.inf,)]},
            {"forward": None, "links": [1.0, None, [None]]},
        ),
        (np.float32(0.5), 0.5),
        (np.float32("nan"), None),
        (np.float64("inf"), None),
        ({np.int64(3): np.int64(4)}, {"3": 4}),
        (np.array([1.0, np.nan]), [1.0, None]),
        (torch.tensor([[1.0, math.nan]]), [[1.0, None]]),
        (Path("a/b"), "a/b"),
        ({"a"}, ["a"]),
        (True, True),
        ("caf\udce9", "caf\udce9"),
    ],
    ids=repr,
)
def test_a_figure_that_json_does_not_have_never_ends_training(tmp_path, value, written):
    with Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", None) as sinks:
        sinks.write("train", 1, {"odd": value, "loss": 1.5})
        sinks.write("train", 2, {"loss": value})
    first, second = read_records(tmp_path / "metrics.jsonl")
    assert (first["odd"], first["loss"], second["loss"]) == (written, 1.5, written)
    assert read_events(tmp_path / "tensorboard")["train_loss"][0] == (1, 1.5)


def test_a_record_that_cannot_be_written_at_all_leaves_a_line(tmp_path):
    with Sinks(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", None) as sinks:
        sinks.write("train", 1, {"odd": HOLDS_ITSELF})
        sinks.write("train", 2, {"loss": 1.5})
    lost, kept = read_records(tmp_path / "metrics.jsonl")
    assert "..." in lost
    assert kept["loss"] == 1.5


# The terminal and log.txt


def test_standard_output_on_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    refused = pytest.raises(OSError, match="No space left")  # closing tries once more; it is no part of the run
    with refused, Path("/dev/full").open("w") as full, monkeypatch.context() as redirected:
        redirected.setattr(sys, "stdout", full)
        console = RunConsole(tmp_path / "log.txt", num_steps=10)
        console.say("a message")
        console.log("x" * 20_000)
    assert (tmp_path / "log.txt").read_text() == "a message\n" + "x" * 20_000 + "\n"


def test_lines_also_go_to_standard_output(tmp_path, capsys):
    with RunConsole(tmp_path / "log.txt", num_steps=10) as console:
        console.log("a regular line")
        console.say("a message")
    assert capsys.readouterr().out.splitlines() == ["a regular line", "a message"]


@pytest.mark.parametrize("text", ["▁[bold] ▁[/] ▁[link=x]", "a" * 500, "▁: smile :", ":smile: ▁:warning:"])
def test_text_is_shown_as_it_is(tmp_path, capsys, text):
    """Sample text is data: brackets are not markup, `:smile:` is not an emoji, long lines are not wrapped."""
    with RunConsole(tmp_path / "log.txt", num_steps=10) as console:
        console.log(text)
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == text + "\n"
    assert capsys.readouterr().out == text + "\n"


def test_a_continued_run_appends_to_its_log(tmp_path):
    for text in ("first", "second"):
        with RunConsole(tmp_path / "log.txt", num_steps=10) as console:
            console.log(text)
    assert (tmp_path / "log.txt").read_text() == "first\nsecond\n"
