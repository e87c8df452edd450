"""Sockeye's log, metrics file and TensorBoard files; the files under tests/data are of a real run of version 3."""

import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from trainer_logs import is_sound, of_kind, read_lines_with, reading_with

from dragoman.importing.curves.tensorboard import read_events
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import read_lines
from dragoman.importing.trainers.sockeye import SockeyeReader, is_metrics_file, is_own_line, read_metrics
from dragoman.run.errors import UserError

DATA = Path(__file__).parents[3] / "data/sockeye"
# Version 1.18 as its users quote it; the scores of a checkpoint come one checkpoint late.
OLD_SPEED = (
    "[INFO:sockeye.training] Epoch[0] Batch [950]\tSpeed: 189.95 samples/sec 8499.62 tokens/sec 1.60 updates/sec\t"
)
SCORES = "{'bleu-val': 0.2, 'chrf-val': 0.3, 'rouge1-val': 0.4, 'decode-walltime-val': 189.6}"
OLD_LOG = f"""
[INFO:sockeye.training] Training started.
{OLD_SPEED}perplexity=38.6
{OLD_SPEED.replace("950", "1000")}perplexity=38.2
[INFO:root] Saved params to "model/params.00001"
[INFO:sockeye.training] Checkpoint [1]\tUpdates=1000 Epoch=0 Samples=105607 Time-cost=698.434 Updates/sec=1.432
[INFO:sockeye.training] Checkpoint [1]\tTrain-perplexity=38.275190
[INFO:sockeye.training] Checkpoint [1]\tValidation-perplexity=19.245108
[INFO:sockeye.training] Epoch[1] Batch [2000] Speed: 171.2 samples/sec 8627.3 tokens/sec 1.6 updates/sec perplexity=17.4
[INFO:sockeye.training] Checkpoint [2]  Updates=2000 Epoch=1 Samples=211045 Time-cost=674.813 Updates/sec=1.482
[INFO:sockeye.training] Checkpoint [2]  Train-perplexity=17.432637
[INFO:sockeye.training] Checkpoint [2]  Validation-perplexity=8.725789
[INFO:sockeye.training] Decoder-1 finished: {SCORES}
""".strip().splitlines()
OLDEST_LOG = """
[2017-09-26:07:43:44:INFO:sockeye.training:_log_params] Total # of parameters: 58395792
[2017-09-26:07:43:44:INFO:sockeye.training:fit] Training started.
[2017-09-26:07:43:44:INFO:sockeye.callback:__init__] Early stopping by optimizing 'perplexity'
[2017-09-26:07:44:49:INFO:root:__call__] Epoch[0] Batch [50]\tSpeed: 51.34 samples/sec\tperplexity=45560.615048
[2017-09-26:07:45:49:INFO:root:__call__] Epoch[0] Batch [100]\tSpeed: 53.42 samples/sec\tperplexity=40441.141217
[2017-09-26:07:46:49:INFO:root:__call__] Epoch[1] Batch [50]\tSpeed: 53.42 samples/sec\tperplexity=30441.141217
""".strip().splitlines()

read = reading_with(SockeyeReader)


def read_log() -> ImportedRun:
    return read_lines_with([SockeyeReader], read_lines(DATA / "log"))


def metrics(path: Path) -> ImportedRun:
    run = ImportedRun()
    read_metrics(path, run)
    return run


def test_a_real_log():
    run = read_log()
    assert [record["step"] for record in of_kind(run, "checkpoint")] == [150, 300, 450, 500, 600, 700]
    first, *_, last = of_kind(run, "evaluation")
    assert (first["step"], last["step"]) == (150, 700)
    assert first["loss"] == pytest.approx(math.log(11.621595))
    assert (last["bleu"], last["chrf"], last["ter"]) == pytest.approx((83.7535, 89.5218, 7.5), rel=1e-4)
    assert last["other_scores"]["rouge1"] == 0.792885
    assert of_kind(run, "train")[0]["step"] == 25, "two batches make one update"
    facts = run.facts
    assert (facts["steps_done"], facts["steps_planned"], facts["is_finished"]) == (700, 700, True)
    assert (facts["parameters"], facts["num_training_pairs"], facts["warmup_steps"]) == (23272, 3000, 50)
    assert (facts["metric"], facts["accumulation"], facts["num_ranks"]) == ("bleu", 2, 1)
    assert (facts["batch_sentences_per_rank"], facts["evaluate_every"]) == (16, 150)
    assert [launch.end for launch in run.launches] == ["finished", "finished"]
    assert [record["step"] for record in of_kind(run, "restart")] == [500]
    steps = [record["step"] for record in run.records]
    assert steps == sorted(steps)


def test_an_old_log_whose_scores_come_late():
    run = read(*OLD_LOG)
    assert [record["step"] for record in of_kind(run, "train")] == [950, 1000, 2000]
    assert of_kind(run, "train")[0]["seconds_per_step"] == 1 / 1.6
    first, second = of_kind(run, "evaluation")
    assert (first["step"], first["bleu"], first["chrf"], first["seconds"]) == (1000, 20, 30, 189.6)
    assert (second["step"], "bleu" in second) == (2000, False)
    assert second["loss"] == pytest.approx(math.log(8.725789))
    assert "is_finished" not in run.facts


def test_the_oldest_log_counts_the_batches_of_each_epoch():
    run = read(*OLDEST_LOG)
    assert [record["step"] for record in of_kind(run, "train")] == [50, 100, 150]
    assert of_kind(run, "train")[1]["seconds_per_step"] == pytest.approx(60 / 50)
    assert (run.facts["parameters"], run.facts["metric"]) == (58395792, "perplexity")


def test_why_a_run_ended():
    converged = "[2021-12-18:21:56:49:INFO:sockeye.training:_determine_convergence] Maximum number of not improved "
    end = "[2021-12-18:21:56:50:INFO:sockeye.training:fit] Training finished. Best checkpoint: 11."
    run = read(*OLDEST_LOG, f"{converged}checkpoints reached: improvement 0.000000", end)
    assert run.launches[-1].end == "finished"
    assert run.launches[-1].reason == "Sockeye stopped early: the dev set had not improved for long enough."


def test_a_run_that_diverged():
    line = "[WARNING:sockeye.training] Model optimization diverged. Last checkpoint's perplexity: nan"
    nan = "[INFO:sockeye.training] Checkpoint [2]  Train-perplexity=nan"
    run = read(*OLD_LOG[:7], OLD_LOG[8], nan, nan.replace("Train", "Validation"), line)
    assert (run.first_nan_step, run.last_finite_step) == (2000, 1000)
    assert any(failure.is_fatal and "diverged" in failure.what for failure in run.failures)


def test_own_lines_are_known():
    assert all(map(is_own_line, OLD_LOG[:3]))
    assert all(is_own_line(line) for line in read_lines(DATA / "log") if ":sockeye." in line[:50])
    assert not is_own_line("[INFO:root] Epoch[0] Batch [50]\tSpeed: 51.34 samples/sec\tperplexity=45560.6")


def test_a_metrics_file_beside_args_yaml_counts_updates(tmp_path):
    lines = (DATA / "metrics").read_text().splitlines(keepends=True)
    (tmp_path / "metrics").write_text("".join(lines[:4]))
    (tmp_path / "args.yaml").write_text("checkpoint_interval: 150\nmax_updates: 500\n")
    run = metrics(tmp_path / "metrics")
    assert is_metrics_file(tmp_path / "metrics")
    assert [record["step"] for record in of_kind(run, "evaluation")] == [150, 300, 450, 500]
    assert run.facts["steps_done"] == 500
    first, second, _, last = of_kind(run, "train")
    assert first["training_seconds"] == 3.869182586669922, "the time of a checkpoint stands in the line after it"
    assert second["seconds_per_step"] == pytest.approx((5.594910 - 3.869183) / 150, rel=1e-5)
    assert "training_seconds" not in last
    assert any("were computed" in note for note in run.notes)


@pytest.mark.parametrize("arguments", [None, "max_updates: 700\n", "checkpoint_interval: 150\nmax_updates: 700\n"])
def test_without_updates_the_steps_are_checkpoints_and_have_no_time(tmp_path, arguments):
    shutil.copy(DATA / "metrics", tmp_path)
    if arguments is not None:
        (tmp_path / "args.yaml").write_text(arguments)
    run = metrics(tmp_path / "metrics")
    assert [record["step"] for record in of_kind(run, "evaluation")] == [1, 2, 3, 4, 5, 6]
    assert not any("seconds_per_step" in record or "training_seconds" in record for record in run.records)
    assert any("checkpoints, not updates" in note for note in run.notes)
    assert "steps_done" not in run.facts
    assert run.facts["step_unit"] == "checkpoints"
    assert of_kind(run, "train")[1]["time"] == pytest.approx(5.5949, rel=1e-4)


def test_a_metrics_file_adds_to_the_log_what_it_lacks():
    run = read(*OLD_LOG)
    num_records = len(run.records)
    path = DATA / "metrics"
    read_metrics(path, run)
    assert len(run.records) == num_records
    second = of_kind(run, "evaluation")[1]
    assert second["bleu"] == pytest.approx(35.148, rel=1e-4)
    assert second["loss"] == pytest.approx(math.log(8.725789)), "what the log has stays"


def test_a_metrics_file_of_a_run_that_converged(tmp_path):
    (tmp_path / "metrics").write_text("1\tconverged=True\tdiverged=False\tperplexity-val=5.0\tperplexity-train=nan\n")
    run = metrics(tmp_path / "metrics")
    assert run.facts["is_finished"] is True
    assert run.first_nan_step == 1


def test_other_files_are_no_metrics(tmp_path):
    (tmp_path / "metrics").write_text("1\tcolour=red\n")
    assert not is_metrics_file(tmp_path / "metrics")
    (tmp_path / "metrics").write_text("step,loss\n1,2\n")
    with pytest.raises(UserError, match="metrics"):
        metrics(tmp_path / "metrics")


def write_events(path: Path, *checkpoints: dict[str, float]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for number, figures in enumerate(checkpoints, start=1):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
            event = Event(wall_time=1.6e9 + 1000 * number, step=number, summary=Summary(value=values))
            writer.write(event.SerializeToString())
    return path


def checkpoint(number: int, **further: float) -> dict[str, float]:
    return {
        "perplexity-train": 10.0 / number,
        "f1-perplexity-train": 3.0,
        "perplexity-val": 20.0 / number,
        "f1-perplexity-val": 2.0,
        "bleu-val": 0.25,
        "chrf-val": 0.5,
        "time-elapsed": 1000.0 * (number - 1),
        "learning-rate": 1e-4,
    } | further


def read_tensorboard(path: Path) -> ImportedRun:
    run = ImportedRun()
    read_events([path], run)
    return run


def test_tensorboard_files_count_checkpoints(tmp_path):
    path = write_events(tmp_path / "tensorboard/events.out.tfevents.1", *map(checkpoint, (1, 2, 3)))
    run = read_tensorboard(path)
    assert run.trainer == "Sockeye"
    assert [record["step"] for record in of_kind(run, "train")] == [1, 2, 3]
    assert not any("seconds_per_step" in record for record in run.records)
    assert run.facts["started"] == 1.6e9, "one checkpoint before the first"
    assert of_kind(run, "evaluation")[0]["loss"] == pytest.approx(math.log(20))
    assert (of_kind(run, "evaluation")[0]["bleu"], of_kind(run, "evaluation")[0]["chrf"]) == (25, 50)
    assert any("checkpoints, not updates" in note for note in run.notes)


def test_tensorboard_files_of_a_model_folder_count_updates(tmp_path):
    (tmp_path / "args.yaml").write_text("checkpoint_interval: 4000\n")
    checkpoints = [checkpoint(1), checkpoint(2), checkpoint(3, converged=1.0)]
    run = read_tensorboard(write_events(tmp_path / "tensorboard/events.out.tfevents.1", *checkpoints))
    assert [record["step"] for record in of_kind(run, "train")] == [4000, 8000, 12000]
    assert of_kind(run, "train")[1]["seconds_per_step"] == pytest.approx(0.25)
    assert (run.facts["steps_done"], run.facts["is_finished"]) == (12000, True)


LINES = st.sampled_from([*OLD_LOG, *OLDEST_LOG, *list(read_lines(DATA / "log"))[:30]])


@given(st.lists(LINES | st.text(max_size=60), max_size=12), st.text(alphabet="0123456789naif.=-[]\t' ", max_size=40))
def test_any_lines_can_be_read(lines, noise):
    assert is_sound(read(*lines, *(line[:70] + noise for line in lines), *(line.replace("1", noise) for line in lines)))


@given(st.text(alphabet="0123456789naif.=-\t\nTrueperplexity-val", max_size=200))
def test_any_metrics_file_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("sockeye") / "metrics"
    path.write_text("1\tperplexity-val=5\tbleu-val=nan\ttime-elapsed=inf\n" + text)
    assert is_sound(metrics(path))
