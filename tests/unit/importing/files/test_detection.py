"""Which trainer wrote a log, which files belong to a run and in which order, and the errors for unknown files."""

import bz2
import gzip
import json
import lzma
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_folders import openseq2seq_log
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from dragoman.importing.files.detection import identify_log
from dragoman.importing.importer import KNOWN_TRAINERS, import_run, read_run
from dragoman.report.compose import build_report
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder

EXCERPTS = {
    "OpenSeq2Seq": "*** Global step 100: ***     Train loss: 6.5 \ntime per step = 0:00:1.946\n",
    "fairseq": "2023-06-13 17:31:54 | INFO | train_inner | epoch 143:    185 / 282 loss=3.153, nll_loss=1.243, "
    "ppl=8.89, wps=132396, ups=2.18, wpb=60718.4, bsz=2141.4, num_updates=100, lr=0.00015772, gnorm=0.483, wall=119\n",
    "Marian": "[2021-05-26 23:22:42] Ep. 1 : Up. 100 : Sen. 15,203 : Cost 6.01253986 * 414,436 after 414,436 : "
    "Time 609.91s : 679.50 words/s\n",
    "OpenNMT-py": "[2020-02-09 07:32:52,596 INFO] Step 100/100000; acc:   8.20; ppl: 228.23; xent: 5.43; lr: 0.00006; "
    "15201/15954 tok/s;    230 sec\n",
    "JoeyNMT": "2022-02-25 16:02:27,500 - INFO - joeynmt.training - Epoch   1, Step:      100, "
    "Batch Loss:    40.858349, Tokens per Sec:     2953, Lr: 0.001000\n",
    "HF Trainer": "***** Running training *****\n  Total optimization steps = 1,000\n"
    " 10%|█         | 100/1000 [00:30<04:30,  3.33it/s]\n"
    "{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.5}\n",
}
TABLE = "Wall time,Step,Value\n1600000000,100,6.5\n1600000010,200,6.0\n"
STATE = {"global_step": 100, "max_steps": 200, "log_history": [{"loss": 2.5, "step": 100, "epoch": 1.0}]}


def train_steps(run) -> list[int]:
    return [record["step"] for record in run.records if record["kind"] == "train"]


def write_events(path: Path, tag: str, **values: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for step, value in values.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            number = int(step.removeprefix("s"))
            writer.write(Event(wall_time=1.6e9 + number, step=number, summary=summary).SerializeToString())


@pytest.mark.parametrize("trainer", EXCERPTS)
def test_each_trainer_is_known_by_a_few_lines(tmp_path, trainer):
    log = tmp_path / "log"
    log.write_text("some banner\n" * 50 + EXCERPTS[trainer], encoding="utf-8")
    assert identify_log(log).trainer == trainer
    run = read_run([log])
    assert run.trainer.startswith(trainer)
    assert train_steps(run) == [100]
    assert run.sources == [str(log)]


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_packed_logs(tmp_path, ending, pack):
    log = tmp_path / f"nohup.out.{ending}"
    log.write_bytes(pack(EXCERPTS["OpenSeq2Seq"].encode()))
    assert train_steps(read_run([log])) == [100]
    assert train_steps(read_run([tmp_path])) == [100]


def test_files_of_no_known_trainer_are_left_out_of_a_folder(tmp_path):
    (tmp_path / "nohup.out").write_text(EXCERPTS["OpenSeq2Seq"])
    (tmp_path / "notes.txt").write_text("CUDA out of memory\n")
    (tmp_path / "model.bin").write_bytes(b"*** Global step 900: ***     Train loss: 1.0 \n")
    run = read_run([tmp_path])
    assert train_steps(run) == [100]
    assert run.sources == [str(tmp_path / "nohup.out")]
    assert not any("memory" in failure.what for failure in run.failures)


def test_files_of_one_run_are_read_in_the_order_of_their_dates(tmp_path):
    early = EXCERPTS["Marian"]
    late = early.replace("2021-05-26", "2021-05-28").replace("Up. 100", "Up. 900")
    (tmp_path / "a.log").write_text(late)
    (tmp_path / "z.log").write_text(early)
    run = read_run([tmp_path / "a.log", tmp_path / "z.log"])
    assert train_steps(run) == [100, 900]
    assert run.sources == [str(tmp_path / "z.log"), str(tmp_path / "a.log")]


@pytest.mark.parametrize("names", [("a.out", "z.out"), ("z.out", "a.out")])
def test_files_without_dates_are_read_in_the_order_of_their_steps(tmp_path, names):
    first = EXCERPTS["OpenSeq2Seq"]
    (tmp_path / "z.out").write_text(first)
    (tmp_path / "a.out").write_text(first.replace("step 100", "step 900"))
    assert train_steps(read_run([tmp_path / name for name in names])) == [100, 900]


def test_files_without_dates_or_steps_keep_the_order_they_were_given_in(tmp_path):
    (tmp_path / "z.out").write_text("*** Using horovod\nssh: Could not resolve hostname a: Name or service not known\n")
    (tmp_path / "a.out").write_text(EXCERPTS["OpenSeq2Seq"])
    run = read_run([tmp_path / "z.out", tmp_path / "a.out"])
    assert run.sources == [str(tmp_path / "z.out"), str(tmp_path / "a.out")]


def test_figures_of_tensorboard_are_added_to_those_of_the_log(tmp_path):
    (tmp_path / "nohup.out").write_text(EXCERPTS["OpenSeq2Seq"])
    write_events(tmp_path / "logs" / "events.out.tfevents.1", "learning_rate", s100=0.5, s200=0.25)
    run = read_run([tmp_path])
    (record,) = [record for record in run.records if record["kind"] == "train"]
    assert (record["step"], record["loss"], record["learning_rate"]) == (100, 6.5, 0.5)
    assert run.trainer == "OpenSeq2Seq"
    assert len(run.sources) == 2


def test_a_folder_of_event_files_alone(tmp_path):
    write_events(tmp_path / "events.out.tfevents.1", "train_loss", s100=6.5, s200=6.0)
    run = read_run([tmp_path])
    assert run.trainer == "TensorBoard"
    assert train_steps(run) == [100, 200]


def test_a_table(tmp_path):
    (tmp_path / "run-x-tag-train_loss.csv").write_text(TABLE)
    assert train_steps(read_run([tmp_path])) == [100, 200]


def test_the_newest_state_of_the_hf_trainer_counts(tmp_path):
    for step in (100, 1_000):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = STATE | {"log_history": [{"loss": 2.5, "step": number} for number in range(100, step + 1, 100)]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    assert train_steps(read_run([tmp_path]))[-1] == 1_000


@pytest.mark.parametrize("text", ["hello\nworld\n", "", "\n\n", "{}", "\x00\x01"])
def test_unknown_text_is_an_error_that_names_the_known_trainers(tmp_path, text):
    log = tmp_path / "file.log"
    log.write_text(text)
    with pytest.raises(UserError) as error:
        read_run([log])
    said = str(error.value)
    assert str(log) in said
    assert KNOWN_TRAINERS in said
    for name in ("OpenSeq2Seq", "fairseq", "Marian", "JoeyNMT"):
        assert name in said
    assert ("It is empty" in said) == (not text.strip("\x00\x01\n"))


def test_terminal_escapes_of_unknown_text_do_not_reach_the_message(tmp_path):
    (tmp_path / "x.log").write_text("\x1b[31mhello\x07 \u202e")
    with pytest.raises(UserError) as error:
        read_run([tmp_path / "x.log"])
    assert 'begins with "hello"' in str(error.value)


def test_an_empty_folder_and_a_missing_file_have_their_own_messages(tmp_path):
    with pytest.raises(UserError, match="holds neither a run nor a log"):
        read_run([tmp_path])
    with pytest.raises(UserError, match="There is no"):
        read_run([tmp_path / "none"])


LAUNCHES = {
    "ssh: Could not resolve hostname v100c: Name or service not known": "host name",
    "bash: mpirun: command not found": "not found",
    "RuntimeError: CUDA out of memory. Tried to allocate 1.53 GiB": "memory",
    "Host key verification failed.": "key",
    "python: can't open file 'run.py': [Errno 2] No such file or directory": "not found",
}


@pytest.mark.parametrize("line", LAUNCHES)
def test_a_launch_that_failed_becomes_a_run_that_says_so(tmp_path, line):
    (tmp_path / "nohup.out").write_text(line + "\n")
    run = RunFolder(tmp_path / "run")
    found = import_run([tmp_path / "nohup.out"], run)
    assert [failure.evidence for failure in found.failures] == [line]
    report = build_report(run)
    assert "No step was trained" in report.summary
    assert LAUNCHES[line] in str(report.warnings[0])
    assert report.facts["failures"][0]["cause"]
    assert "start again" in report.facts["next"]
    assert len(report.answers) == 11


def test_a_log_that_was_killed_while_it_trained_keeps_its_steps(tmp_path):
    (tmp_path / "nohup.out").write_text(openseq2seq_log(500) + "Killed\n")
    run = read_run([tmp_path / "nohup.out"])
    assert train_steps(run)[-1] == 500
    assert any("killed" in failure.what and failure.step == 500 for failure in run.failures)


PIECES = st.sampled_from([*EXCERPTS.values(), *LAUNCHES, TABLE, json.dumps(STATE), "\r", "\x1b[2J", "\x00", "nan"])
NAMES = ("nohup.out", "train.log", "a.csv", "trainer_state.json", "events.out.tfevents.1", "b.out.gz", "x.bin")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(NAMES), st.lists(PIECES | st.text(max_size=20), max_size=6), max_size=4))
def test_no_content_of_a_folder_breaks_the_import(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("folder")
    for name, pieces in files.items():
        (folder / name).write_text("\n".join(pieces), encoding="utf-8", errors="replace")
    run = RunFolder(folder / "run")
    with suppress(UserError):
        import_run([folder], run)
    assert run.exists == run.imported.exists()
    if run.exists:
        json.dumps(build_report(run).to_json(), allow_nan=False)


def test_logs_of_two_trainers_are_rejected_as_one_run(tmp_path):
    paths = [tmp_path / f"{trainer}.log" for trainer in ("fairseq", "Marian")]
    for path in paths:
        path.write_text(EXCERPTS[path.stem])
    with pytest.raises(UsageError, match=r"2 runs(.|\n)*fairseq: fairseq, steps(.|\n)*Marian: Marian, steps"):
        read_run(paths)
    with pytest.raises(UsageError, match="2 runs"):
        read_run([tmp_path])


def test_a_readme_and_an_unrelated_table_do_not_break_a_folder(tmp_path):
    (tmp_path / "train_loss.csv").write_text("Wall time,Step,Value\n1.0,100,5.0\n2.0,200,4.0\n")
    (tmp_path / "readme.txt").write_text("What I did in my holidays.\n")
    run = read_run([tmp_path])
    assert (train_steps(run), run.failures) == ([100, 200], [])
    (tmp_path / "train_loss.csv").unlink()
    (tmp_path / "nohup.out").write_text(EXCERPTS["OpenSeq2Seq"])
    (tmp_path / "prices.csv").write_text("item,price\ncoffee,2\n")
    run = read_run([tmp_path])
    assert train_steps(run) == [100]
    assert any("prices.csv" in message for message in run.left_out)
    assert any("readme.txt" in message for message in run.left_out)


def test_a_pipe_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe or a device"):
        read_run([tmp_path / "pipe"])
