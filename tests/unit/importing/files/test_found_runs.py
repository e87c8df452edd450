"""Which files are one run: copies, tails, continuations, other runs, and files beside them."""

import gzip
import json
from pathlib import Path

import pytest
from run_folders import openseq2seq_log
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from dragoman.importing.files.found_runs import group_runs
from dragoman.importing.importer import find_runs, import_run, read_run
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder

STEP = "*** Global step {step}: ***     Train loss: {loss:.4f} \ntime per step = 0:00:1.94\n"
START = "*** Using horovod\n*** Starting training from scratch\n"
RESTORED = "*** Using horovod\n*** Restored checkpoint from /x/model.ckpt-{step}. Resuming training\n"
NCCL = "{host}:1:2 [0] NCCL INFO rank 0 nranks 1\n"


def steps(first: int, last: int, offset: float = 0.0) -> str:
    return "".join(STEP.format(step=step, loss=9 - step / 1000 + offset) for step in range(first, last + 1, 100))


def train_steps(run) -> list[int]:
    return [record["step"] for record in run.records if record["kind"] == "train"]


@pytest.fixture
def write(tmp_path):
    def write_files(**files: str):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_out", ".out").replace("_log", ".log")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write_files


def write_events(path, tag: str, **values: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for number, (step, value) in enumerate(values.items()):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            event = Event(wall_time=1.6e9 + number, step=int(step.removeprefix("s")), summary=summary)
            writer.write(event.SerializeToString())


def names_of(folder) -> list[str]:
    runs, _ = group_runs([folder])
    return sorted(run.name for run in runs)


def test_a_copy_counts_once_and_is_named(write):
    folder = write(a_out=START + steps(0, 900), b_out=START + steps(0, 900))
    run = read_run([folder])
    assert train_steps(run) == list(range(0, 901, 100))
    assert run.sources == [str(folder / "a.out")]
    (message,) = run.left_out
    assert str(folder / "b.out") in message
    assert "the same figures" in message


def test_a_tail_counts_once(write):
    folder = write(tail_out=steps(500, 900), whole_out=START + steps(0, 900))
    run = read_run([folder])
    assert run.sources == [str(folder / "whole.out")]
    assert str(folder / "tail.out") in run.left_out[0]
    assert run.launches[0].last_step == 900


def test_a_terminal_copy_that_goes_on_for_longer_is_read_from_where_the_other_ends(write):
    folder = write(a_out=START + steps(0, 900), b_out=steps(500, 1500))
    run = read_run([folder])
    assert train_steps(run) == list(range(0, 1501, 100))
    assert not any(record["kind"] == "restart" for record in run.records)
    assert len(run.launches) == 1
    assert "The beginning of" in run.left_out[0]


def test_a_log_that_was_split_is_one_run(write):
    run = read_run([write(a_out=START + steps(0, 900), b_out=steps(1000, 1500))])
    assert train_steps(run) == list(range(0, 1501, 100))


def test_a_run_resumed_on_other_hosts_is_one_run_on_the_last_hosts(write):
    first = START + NCCL.format(host="a") + steps(0, 900)
    second = RESTORED.format(step=700) + NCCL.format(host="b") + steps(800, 1500, offset=0.01)
    run = read_run([write(a_out=first, b_out=second)])
    assert run.facts["hosts"] == ["b"]
    assert [launch.hosts for launch in run.launches] == [["a"], ["b"]]
    assert [launch.source.rsplit("/", 1)[1] for launch in run.launches] == ["a.out", "b.out"]
    assert train_steps(run)[-1] == 1500


def test_two_starts_at_step_zero_are_two_runs(write):
    assert names_of(write(a_out=START + steps(0, 900), b_out=START + steps(0, 900, offset=0.5))) == ["a", "b"]


def test_other_hosts_without_a_word_about_a_checkpoint_are_another_run(write):
    first = START + NCCL.format(host="a") + steps(0, 900)
    assert names_of(write(a_out=first, b_out=NCCL.format(host="b") + steps(1000, 1500))) == ["a", "b"]


def test_other_sizes_of_the_model_are_another_run(write):
    sizes = "*** Total trainable parameters: {}\n"
    small, large = (sizes.format(number) for number in (60_880_896, 209_000_000))
    assert len(names_of(write(a_out=small + steps(0, 300), b_out=large + steps(400, 900)))) == 2


def test_subfolders_are_runs_of_their_own(write):
    folder = write(
        base__nohup_out=openseq2seq_log(500), big__nohup_out=openseq2seq_log(500).replace("loss: ", "loss: 1")
    )
    assert names_of(folder) == ["base", "big"]
    with pytest.raises(UsageError, match=r"2 runs(.|\n)*base: OpenSeq2Seq, steps 0 to 500, .*base/nohup.out"):
        read_run([folder])


def test_each_of_several_runs_can_be_read(write):
    folder = write(a__nohup_out=START + steps(0, 500), b__nohup_out=START + steps(0, 900, offset=1))
    with find_runs([folder]) as found:
        last = {run.name: train_steps(found.read(run))[-1] for run in found.runs}
        places = [found.identity_of(run) for run in found.runs]
    assert last == {"a": 500, "b": 900}
    assert sorted(places) == [[folder / "a"], [folder / "b"]]


def test_a_launch_that_failed_belongs_to_the_run_beside_it(write):
    failed = START + "Traceback (most recent call last):\n  x\nResourceExhaustedError: OOM when allocating tensor\n"
    run = read_run([write(a_out=failed, b_out=START + steps(0, 900))])
    assert [(launch.end, launch.last_step) for launch in run.launches] == [("failed", None), ("unknown", 900)]
    assert train_steps(run)[-1] == 900


def test_the_standard_error_beside_a_log_belongs_to_it(write):
    folder = write(job_out=START + steps(0, 900))
    (folder / "job.err").write_text("RuntimeError: CUDA out of memory\n")
    (folder / "notes.txt").write_text("Traceback (most recent call last):\n")
    run = read_run([folder])
    assert any(failure.what == "A GPU ran out of memory at step 900." for failure in run.failures)
    assert any("notes.txt" in message for message in run.left_out)


def state(first_loss: float) -> str:
    history = [{"loss": first_loss - step / 1000, "step": step, "epoch": step / 100} for step in range(100, 501, 100)]
    return json.dumps({"global_step": 500, "max_steps": 500, "log_history": history})


def test_states_of_one_output_folder_are_one_run_and_those_of_two_are_two(write):
    folder = write()
    for place, loss in (("a", 3.0), ("a/checkpoint-500", 3.0), ("b", 5.0)):
        (folder / place).mkdir()
        (folder / place / "trainer_state.json").write_text(state(loss))
    assert names_of(folder) == ["a", "b"]
    assert len(group_runs([folder / "a"])[0]) == 1


def test_of_several_states_the_one_with_the_longest_history_is_read(write):
    folder = write() / "small-2"
    summary = {"step": 500, "train_runtime": 900.0, "train_steps_per_second": 0.556, "epoch": 5.0}
    whole = json.loads(state(3.0))
    whole["log_history"].append(summary)
    for place in ("", "checkpoint-300", "last-checkpoint"):
        (folder / place).mkdir(exist_ok=True)
        (folder / place / "trainer_state.json").write_text(state(3.0))
    (folder / "trainer_state.json").write_text(json.dumps(whole))
    run = read_run([folder])
    assert run.facts["training_seconds"] == 900.0
    assert run.sources == [str(folder / "trainer_state.json")]
    assert run.left_out == []
    # A run that was continued after its end has newer checkpoints than its output folder says.
    (folder / "checkpoint-300").rename(folder / "checkpoint-700")
    longer = json.loads(state(3.0)) | {"global_step": 700}
    (folder / "checkpoint-700" / "trainer_state.json").write_text(json.dumps(longer))
    assert read_run([folder]).facts["steps_done"] == 700


def test_of_copies_the_one_that_says_more_is_read(write):
    folder = write()
    results = {"train_runtime": 900.0, "train_steps_per_second": 0.556}
    for place in ("a-copy", "whole"):
        (folder / place).mkdir()
        (folder / place / "trainer_state.json").write_text(state(3.0))
    (folder / "whole" / "train_results.json").write_text(json.dumps(results))
    run = read_run([folder])
    assert run.facts["training_seconds"] == 900.0
    assert "a-copy" in run.left_out[0]


def test_the_exact_figures_of_a_state_come_before_the_rounded_ones_of_the_log(tmp_path):
    lines = [
        f"{{'loss': {3 - step / 1000:.1f}, 'learning_rate': 5e-05, 'epoch': {step / 100}}}\n" for step in (100, 200)
    ]
    (tmp_path / "train.log").write_text("***** Running training *****\n" + "".join(lines))
    (tmp_path / "trainer_state.json").write_text(state(3.04))
    run = read_run([tmp_path])
    assert run.trainer == "HF Trainer"
    losses = [record["loss"] for record in run.records if record["kind"] == "train"]
    assert losses[:2] == pytest.approx([2.94, 2.84])
    assert train_steps(run)[-1] == 500
    assert len(run.sources) == 2


def write_curve(folder, tag: str, first: int, last: int, offset: float = 0.0) -> None:
    values = {f"s{step}": 9 - step / 1000 + offset for step in range(first, last + 1, 100)}
    write_events(folder / f"events.out.tfevents.{first}", tag, **values)


def test_event_files_of_splits_and_continuations_are_one_run_and_others_are_not(tmp_path):
    write_curve(tmp_path / "a" / "train", "loss", 100, 900)
    write_curve(tmp_path / "a" / "valid", "loss", 100, 900)
    assert len(group_runs([tmp_path])[0]) == 1
    write_curve(tmp_path / "b", "train/loss", 100, 900, offset=1)
    assert len(group_runs([tmp_path])[0]) == 2
    write_curve(tmp_path / "hf" / "Aug12", "train/loss", 100, 900, offset=2)
    write_curve(tmp_path / "hf" / "Aug13", "train/loss", 800, 1500, offset=2.1)
    assert len(group_runs([tmp_path / "hf"])[0]) == 1


def test_equal_learning_rates_make_no_copy(write):
    folder = write()
    for name, offset in (("a", 0.0), ("b", 0.5)):
        rows = [f"{step},{6 - offset if step % 100 == 0 else ''},0.0003\n" for step in range(10, 1_001, 10)]
        (folder / name).mkdir()
        (folder / name / "curves.csv").write_text("step,train_loss,learning_rate\n" + "".join(rows))
    runs, _ = group_runs([folder / "a" / "curves.csv", folder / "b" / "curves.csv"])
    assert [run.left_out for run in runs] == [[], []]


def test_tables_of_one_run_and_of_two(write):
    folder = write()
    rows = "".join(f"{step},{9 - step / 1000}\n" for step in range(100, 600, 100))
    (folder / "train.csv").write_text("step,train_loss\n" + rows)
    (folder / "rates.csv").write_text("step,learning_rate\n" + rows)
    (folder / "valid.csv").write_text("step,eval_loss\n" + rows)
    assert len(group_runs([folder])[0]) == 1
    (folder / "other.csv").write_text("step,train_loss\n" + rows.replace(",8", ",5"))
    assert len(group_runs([folder])[0]) == 2


JOEY = """2024-05-01 09:59:00,000 - INFO - root - Hello! This is Joey-NMT (version 2.3.0).
2024-05-01 10:00:0{0},000 - INFO - joeynmt.training - Epoch   1, Step:      100, Batch Loss:     {0}.5, \
Tokens per Sec:     4000, Lr: 0.000300
2024-05-01 10:01:0{0},000 - INFO - joeynmt.training - Epoch   1, Step:      200, Batch Loss:     {0}.1, \
Tokens per Sec:     4000, Lr: 0.000300
"""


@pytest.mark.parametrize("is_relative", [False, True])
def test_files_of_two_runs_are_told_apart_by_their_folders(write, monkeypatch, is_relative):
    folder = write()
    for place, loss in (("a", 5), ("b", 6)):
        (folder / place).mkdir()
        (folder / place / "train.log").write_text(JOEY.format(loss))
        (folder / place / "validations.txt").write_text(f"Steps: 200\tloss: {loss}\tppl: {loss}0\tLR: 0.0003\t*\n")
    monkeypatch.chdir(folder)
    with find_runs([Path() if is_relative else folder]) as found:
        assert [len(run.paths) for run in found.runs] == [2, 2]
        assert all(found.read(run).left_out == [] for run in found.runs)


def test_a_run_without_training_steps_is_described_by_its_evaluations(write):
    folder = write()
    rows = "".join(f"{step},{9 - step / 1000},{8 - step / 1000}\n" for step in range(100, 600, 100))
    (folder / "losses.csv").write_text("Step,a - eval/loss,b - eval/loss\n" + rows)
    with find_runs([folder]) as found:
        assert "a: CSV, evaluations 100 to 500" in found.describe()[0]


def test_a_table_of_several_runs(write):
    folder = write()
    rows = "".join(f"{step},{9 - step / 1000},{8 - step / 1000}\n" for step in range(100, 600, 100))
    (folder / "losses.csv").write_text("Step,run a - train/loss,run b - train/loss\n" + rows)
    (folder / "rates.csv").write_text("Step,run a - learning_rate,run b - learning_rate\n" + rows)
    with find_runs([folder]) as found:
        first = {run.name: found.read(run).records[0] for run in found.runs}
    assert {name: record["loss"] for name, record in first.items()} == {"run-a": 8.9, "run-b": 7.9}
    assert all("learning_rate" in record for record in first.values())


def test_a_log_in_utf16_and_a_cut_archive(write, tmp_path):
    text = START + steps(0, 900)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"):
        (tmp_path / "x.out").write_bytes(text.encode(encoding))
        assert train_steps(read_run([tmp_path / "x.out"]))[-1] == 900
    packed = gzip.compress((START + steps(0, 90_000)).encode())
    (tmp_path / "x.out").write_bytes(packed[: len(packed) // 2])
    run = read_run([tmp_path / "x.out"])
    assert run.facts["is_cut"] is True
    assert any("x.out is cut off" in note for note in run.notes)
    assert "is_finished" not in run.facts
    assert "The file is cut off after step" in run.failures[0].what
    assert 10_000 < train_steps(run)[-1] < 90_000


def test_runs_that_were_imported_earlier_are_not_found_again(write):
    folder = write(a_out=START + steps(0, 900))
    import_run([folder], RunFolder(folder / "runs" / "a"))
    (folder / "runs" / "a" / "copy.log").write_text(START + steps(0, 900, offset=1))
    run = read_run([folder])
    assert run.sources == [str(folder / "a.out")]
    assert run.left_out == []


def test_pointers_of_git_lfs_are_named(write):
    folder = write()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:7ad0c7\nsize 124479\n"
    (folder / "events.out.tfevents.1").write_text(pointer)
    with pytest.raises(UserError, match=r"tfevents\.1 cannot be read: it is a pointer of Git LFS"):
        read_run([folder])
    write(a_out=START + steps(0, 900))
    assert any("pointer of Git LFS" in message for message in read_run([folder]).left_out)


def test_event_files_without_a_figure_are_no_run_that_never_trained(write):
    folder = write()
    (folder / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(UserError, match="no loss and no score was found"):
        read_run([folder])


def test_scores_in_a_file_of_their_own_are_those_of_the_last_step(write):
    folder = write()
    (folder / "eval_results.json").write_text(json.dumps({"eval_loss": 0.42}))
    (folder / "train_results.json").write_text(json.dumps({"train_runtime": 100.0, "train_steps_per_second": 5.0}))
    assert [(record["step"], record["loss"]) for record in read_run([folder]).records] == [(500, 0.42)]


def test_archives_in_a_folder_are_named(write):
    folder = write()
    (folder / "old.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"Name an archive itself: .*old.zip"):
        read_run([folder])
    write(a_out=START + steps(0, 900))
    assert any("old.zip" in message for message in read_run([folder]).left_out)


@pytest.mark.parametrize(("first", "is_midway"), [(0, None), (100, None), (5_000, True)])
def test_a_log_that_begins_midway(write, first, is_midway):
    run = read_run([write(a_out=steps(first, first + 900))])
    assert run.facts.get("begins_midway") is is_midway


def test_two_trainings_in_one_file_are_named(write):
    run = read_run([write(a_out=START + steps(0, 900) + START + steps(0, 300, offset=1))])
    assert [(launch.first_step, launch.last_step) for launch in run.launches] == [(0, 900), (0, 300)]
    assert run.facts["num_attempts"] == 2
    assert any("Launch 2 began again" in note and "launch 1 reached step 900" in note for note in run.notes)
    # What came before is no part of the training that followed.
    assert train_steps(run) == list(range(0, 301, 100))
    assert not any(record["kind"] == "restart" for record in run.records)


def test_a_training_that_was_given_up_takes_no_time_of_the_next_one(write):
    earlier = JOEY.format(5)
    run = read_run([write(train_log=earlier + earlier.replace("05-01", "05-03"))])
    assert train_steps(run) == [100, 200]
    times = [record["time"] for record in run.records]
    assert times[-1] - min([*times, run.facts["started"]]) < 3_600


def test_a_continued_training_keeps_its_beginning(write):
    run = read_run([write(a_out=START + steps(0, 900) + RESTORED.format(step=500) + steps(600, 1_200))])
    assert train_steps(run)[0] == 0
    assert any(record["kind"] == "restart" for record in run.records)


def test_steps_in_a_format_that_is_not_known_are_mentioned(write):
    lines = "".join(f"[epoch 1] iteration {n} train loss: {9 - n / 10:.3f}\n" for n in range(20))
    run = read_run([write(a_out=START + lines)])
    assert run.facts["has_unread_steps"] is True
    assert any("may hold steps of training" in note for note in run.notes)
    assert not any("no step of training" in failure.what for failure in run.failures)


def test_planned_steps_are_no_steps_that_could_not_be_read(write):
    run = read_run([write(a_out=START + "Train steps: 150\nTrain steps: 150\nValid steps: 50\nWarmup steps: 60\n")])
    assert "has_unread_steps" not in run.facts


def test_the_log_with_the_beginning_is_kept_and_not_its_tail(write):
    folder = write(a_tail_out=steps(0, 900), train_out=START + steps(0, 900))
    run = read_run([folder])
    assert [name.rpartition("/")[2] for name in run.sources] == ["train.out"]
    assert "a_tail.out was left out" in run.left_out[0].replace("a.tail", "a_tail")


def test_a_training_after_a_finished_one_is_told_alone(write):
    end = "*** Finished training\n"
    run = read_run([write(a_out=START + steps(0, 900) + end + START + steps(0, 300, offset=1))])
    assert [record["step"] for record in run.records if record["kind"] == "train"] == [0, 100, 200, 300]
    assert not any(record["kind"] == "restart" for record in run.records)
    assert any("launch 1 reached step 900" in note for note in run.notes)
