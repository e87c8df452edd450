"""An imported run as a run folder that every command reads like an own run."""

import json
import tomllib

import pytest
from run_folders import openseq2seq_log, write_own_run
from typer.testing import CliRunner

from dragoman.cli.app import app
from dragoman.diagnosis.verdict import verdict_of_run
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.importer import import_run, read_run, set_clock, write_run
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, open_run
from dragoman.run.summary import read_records

MARIAN = "[2021-05-26 23:{minute}:42] Ep. 1 : Up. {step} : Sen. 15,203 : Cost 6.0 : Time 609.91s : 679.50 words/s\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "nohup.out"
    path.write_text(openseq2seq_log(1_000), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path, log) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "theirs")
    import_run([log], folder)
    return folder


def test_the_folder_is_a_run(run, log):
    assert open_run(run.path) == run
    config = tomllib.loads(run.config.read_text(encoding="utf-8"))
    assert config["training"]["learning_rate"] == 2.0
    assert config["training"]["warmup_steps"] == 8_000
    assert config["provenance"]["trainer"] == "OpenSeq2Seq"
    assert config["provenance"]["imported_from"] == [str(log)]
    imported = json.loads(run.imported.read_text(encoding="utf-8"))
    assert imported["facts"]["parameters"] == 60_880_896
    assert imported["asked_for"] == [str(log.resolve())]


def test_records_have_the_format_of_own_runs(run):
    records = read_records(run)
    assert {record.kind for record in records} == {"train", "evaluation"}
    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(records)
    assert all(list(json.loads(line))[:3] == ["time", "kind", "step"] for line in lines)
    assert [record.step for record in records if record.kind == "train"] == list(range(0, 1_001, 100))


def test_status_and_verdict_read_it(run):
    done = CliRunner().invoke(app, ["status", str(run.path), "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["step"] == 1_000
    assert figures["max_steps"] == 300_000
    assert figures["seconds_per_step"] == pytest.approx(1.94)
    assert verdict_of_run(run).bottleneck == "unknown"
    done = CliRunner().invoke(app, ["verdict", str(run.path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bottleneck"] == "unknown"


def test_no_other_file_is_written(run):
    assert {path.name for path in run.path.iterdir()} == {"config.toml", "metrics.jsonl", "imported.json"}


def test_importing_again_replaces_what_was_there(run, log):
    log.write_text(openseq2seq_log(300), encoding="utf-8")
    import_run([log], run)
    assert max(record.step for record in read_records(run)) == 300


def test_a_log_that_became_unreadable_leaves_the_earlier_import(run, log):
    log.write_text("nothing\n")
    with pytest.raises(UserError):
        import_run([log], run)
    assert max(record.step for record in read_records(run)) == 1_000


def test_folders_that_are_not_imported_runs_are_rejected(tmp_path, log):
    ours = write_own_run(tmp_path / "ours", [])
    before = {path.name: path.stat().st_mtime_ns for path in ours.path.iterdir()}
    with pytest.raises(UserError, match="--run-dir"):
        import_run([log], ours)
    assert {path.name: path.stat().st_mtime_ns for path in ours.path.iterdir()} == before
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mother.txt").write_text("Dear")
    with pytest.raises(UserError, match="not an imported run"):
        import_run([log], RunFolder(tmp_path / "letters"))


def test_an_empty_folder_is_taken(tmp_path, log):
    (tmp_path / "empty").mkdir()
    import_run([log], RunFolder(tmp_path / "empty"))
    assert RunFolder(tmp_path / "empty").exists


def test_a_file_in_place_of_the_folder_is_a_user_error(tmp_path, log):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError):
            import_run([log], RunFolder(folder))


def test_times_of_the_log_are_kept(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(MARIAN.format(minute=20 + number, step=100 * (number + 1)) for number in range(3)))
    folder = RunFolder(tmp_path / "run")
    found = import_run([log], folder)
    assert found.facts["clock"] == "log"
    times = [record.time for record in read_records(folder)]
    assert times[2] - times[0] == 120


@pytest.mark.parametrize(("minute", "is_midway"), [(10, True), (50, False)])
def test_an_excerpt_after_the_first_line_is_no_beginning_midway(tmp_path, minute, is_midway):
    start = "[2022-12-22 11:00:00] [marian] Marian v1.11.0\n[2022-12-22 11:00:00] Training started\n...\n"
    line = "[2022-12-22 11:{minute}:00] Ep. 2 : Up. {step} : Sen. 1 : Cost 2.0 : Time 60.00s : 900 words/s\n"
    log = tmp_path / "train.log"
    lines = [line.format(minute=minute + number, step=10_000 + 200 * number) for number in range(3)]
    log.write_text(start + "".join(lines))
    run = read_run([log])
    assert run.facts["begins_midway"] is is_midway
    assert any("lines were left out" in note for note in run.notes)


def times_of(*records: dict, **facts) -> tuple[list[float], str]:
    run = ImportedRun(facts=dict(facts))
    for record in records:
        {"train": run.add_train, "evaluation": run.add_evaluation}[record.pop("kind")](**record)
    set_clock(run)
    return [record["time"] for record in run.records], run.facts["clock"]


def train(step: int, **figures) -> dict:
    return {"kind": "train", "step": step} | figures


def test_a_clock_is_put_together_from_the_times_of_steps():
    records = [train(0), train(100, seconds_per_step=2.0), {"kind": "evaluation", "step": 100}]
    times, clock = times_of(*records, train(300, seconds_per_step=1.0), started=1_000.0)
    assert clock == "reconstructed"
    assert times[0] == 1_000.0
    assert times[2] == times[1]
    assert times[3] - times[2] == 200.0


def test_steps_made_again_take_their_time_again():
    steps = [train(step, seconds_per_step=2.0) for step in (100, 200, 100, 200)]
    times, _ = times_of(*steps)
    assert times == sorted(times)
    assert times[-1] > times[1]


def test_seconds_that_a_log_counts_are_its_clock():
    times, clock = times_of(train(100, training_seconds=50.0), train(200, training_seconds=110.0), started=5.0)
    assert (times, clock) == ([55.0, 115.0], "log")


def test_the_first_nan_step_is_a_fact(tmp_path):
    run = ImportedRun(trainer="x")
    run.add_train(1, loss=1.0)
    run.add_train(2, loss=float("nan"))
    folder = RunFolder(tmp_path / "run")
    write_run(run, folder, [])
    assert json.loads(folder.imported.read_text())["facts"]["first_nan_step"] == 2
    assert "loss" not in read_records(folder)[1].values()
