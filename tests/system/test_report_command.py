"""`dragoman report` and `dragoman import` as people type them, on our own runs and on logs of other trainers."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from program import Run, dragoman_command, require_end, run_dragoman
from run_folders import openseq2seq_log, own_records, write_own_run

from dragoman.cli.app import main
from dragoman.run.folder import RunFolder

REAL_LOG = Path(__file__).parents[3] / "shared/logs/nohup_2x2_v100_mixed.out.xz"
CLUSTER = ("--nodes", 2, "--gpus-per-node", 2, "--gpu", "V100", "--link", "1000Mbit")
MEASURED = (
    "import json, resource, subprocess, sys\n"
    "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True)\n"
    "usage = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "seconds = usage.ru_utime + usage.ru_stime\n"
    "print(json.dumps([json.loads(done.stdout), seconds, usage.ru_maxrss / 1000]))\n"
)
"""Runs a command in a process of its own, so that the memory of other children does not count."""


@pytest.fixture
def dragoman(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs commands inside this process, which is quicker than starting one."""

    def run(*arguments: object, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, arguments)])
        if cwd is not None:
            monkeypatch.chdir(cwd)
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        done = subprocess.CompletedProcess(sys.argv, int(end.value.code or 0), printed.out, printed.err)
        require_end(done, code)
        return done

    return run


@pytest.fixture(scope="module")
def own_run(tmp_path_factory) -> RunFolder:
    return write_own_run(tmp_path_factory.mktemp("runs") / "base", own_records(3_000))


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "nohup.out"
    path.write_text(openseq2seq_log(2_000), encoding="utf-8")
    return path


def run_measured(*arguments: object, cwd: Path) -> tuple[dict, float, float]:
    """Returns the figures, seconds of CPU time and megabytes of a command with --json."""
    command = [sys.executable, "-c", MEASURED, *dragoman_command(*arguments, "--json")]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    figures, seconds, megabytes = json.loads(done.stdout)
    return figures, seconds, megabytes


def test_help_has_examples(dragoman: Run):
    assert "Examples:\n  dragoman report" in dragoman("report", "--help").stdout
    assert "Examples:\n  dragoman import" in dragoman("import", "--help").stdout


def test_the_printed_report_of_our_own_run(dragoman: Run, own_run: RunFolder):
    printed = dragoman("report", own_run.path).stdout
    assert "60,880,896 parameters" in printed
    assert " 1. How long did it take?" in printed
    assert "11. How does the step time relate" in printed
    assert str(own_run.report("html")) in printed
    assert own_run.report("html").stat().st_size > 10_000


def test_our_own_run_as_json(dragoman: Run, own_run: RunFolder, tmp_path: Path):
    done = dragoman("report", own_run.path, "--json", "--output", tmp_path / "out", "--price-per-hour", 6)
    figures = json.loads(done.stdout)
    assert figures["parameters"] == 60_880_896
    assert figures["steps"] == {"first": 100, "last": 3_000}
    assert figures["verdict"]["bottleneck"] == "network"
    assert figures["cost"] == pytest.approx(6 * figures["seconds"] / 3600)
    assert len(figures["answers"]) == 11
    assert {Path(path).name for path in figures["files"].values()} == {"report.html", "report.md", "report.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.md", "report.json"}
    written = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert written["answers"] == figures["answers"]


@pytest.mark.slow
def test_the_page_is_shown_in_the_browser(own_run: RunFolder, tmp_path: Path):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/shown\n')
    browser.chmod(0o755)
    variables = os.environ | {"BROWSER": str(browser)}
    run_dragoman("report", own_run.path, "--open", "--output", tmp_path / "out", env=variables)
    assert (tmp_path / "shown").read_text().strip() == (tmp_path / "out" / "report.html").resolve().as_uri()


def test_two_runs_are_compared(dragoman: Run, own_run: RunFolder, tmp_path: Path):
    write_own_run(tmp_path / "other", own_records(2_000), training={"learning_rate": 1.0})
    done = dragoman("report", own_run.path, "other", "--json", cwd=tmp_path)
    figures = json.loads(done.stdout)
    assert [run["name"] for run in figures["runs"]] == ["base", "other"]
    assert figures["differences"] == {"training.learning_rate": {"base": 2.0, "other": 1.0}}
    page = tmp_path / figures["files"]["html"]
    assert page.exists()
    assert page.parent not in (own_run.path, tmp_path / "other")


def test_one_run_is_not_compared_with_itself(dragoman: Run, own_run: RunFolder, tmp_path: Path):
    assert "twice" in dragoman("report", own_run.path, own_run.path, code=2, cwd=tmp_path).stderr


def test_a_folder_of_runs_is_refused(dragoman: Run, own_run: RunFolder):
    done = dragoman("report", own_run.path.parent, code=2)
    assert "is a folder of runs: name one run" in done.stderr
    assert str(own_run.path) in done.stderr


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl"])
def test_a_run_can_be_named_by_its_log_or_metrics(dragoman: Run, tmp_path: Path, name):
    run = write_own_run(tmp_path / "base", own_records(500))
    run.log.write_text("*** Global step 100: ***     Train loss: 6.5 \n", encoding="utf-8")
    assert json.loads(dragoman("report", run.path / name, "--json").stdout)["trainer"] == "dragoman"


def test_our_own_run_is_not_imported(dragoman: Run, own_run: RunFolder):
    assert "is already a run folder" in dragoman("import", own_run.path, code=2).stderr


def test_a_log_of_another_trainer_with_options_for_its_cluster(dragoman: Run, log: Path):
    done = dragoman("report", log.name, *CLUSTER, "--price-per-hour", 12, "--json", cwd=log.parent)
    figures = json.loads(done.stdout)
    assert figures["run"] == "runs/nohup"
    assert figures["verdict"]["bottleneck"] == "network"
    assert figures["cost"] == pytest.approx(12 * 2_000 * 1.94 / 3600, rel=0.01)
    assert any("365.3 MB" in message for message in figures["answers"][4]["evidence"])
    assert any("teacher-forced" in warning for warning in figures["warnings"])


def test_importing_a_log_again_replaces_its_folder(dragoman: Run, log: Path):
    for _ in range(2):
        dragoman("import", log.name, cwd=log.parent)
    assert [path.name for path in (log.parent / "runs").iterdir()] == ["nohup"]
    (log.parent / "more").mkdir()
    (log.parent / "more" / "nohup.out").write_text(openseq2seq_log(100), encoding="utf-8")
    dragoman("import", "more/nohup.out", cwd=log.parent)
    assert len(list((log.parent / "runs").iterdir())) == 2


def test_logs_are_compared_with_the_compare_option(dragoman: Run, log: Path):
    (log.parent / "other.out").write_text(openseq2seq_log(1_000), encoding="utf-8")
    done = dragoman("report", "nohup.out", "other.out", "--compare", "--json", cwd=log.parent)
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["nohup", "other"]


def test_an_unknown_link_is_refused_with_the_nearest_known_name(dragoman: Run, log: Path):
    done = dragoman("report", log.name, "--link", "infinibund", code=2, cwd=log.parent)
    assert "infinibund" in done.stderr
    assert "infiniband-hdr" in done.stderr
    assert not (log.parent / "runs").exists()


def test_an_unknown_gpu_is_mentioned_and_the_report_goes_on(dragoman: Run, log: Path):
    done = dragoman("report", log.name, "--gpu", "V10", cwd=log.parent)
    assert "V10" in done.stderr
    assert "did you mean 'V100'" in done.stderr
    assert "11. How does the step time" in done.stdout


def other_log(num_steps: int) -> str:
    """Returns the log of a run like that of openseq2seq_log with other losses."""
    return openseq2seq_log(num_steps).replace("Train loss: ", "Train loss: 1")


def test_several_runs_in_a_folder_are_listed_and_compared(dragoman: Run, tmp_path: Path):
    for name, text in (("small", openseq2seq_log(500)), ("large", other_log(900))):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "nohup.out").write_text(text, encoding="utf-8")
    done = dragoman("report", "logs", "--json", cwd=tmp_path)
    assert [run["name"] for run in json.loads(done.stdout)["runs"]] == ["large", "small"]
    assert "2 runs were found" in done.stderr
    assert "small: OpenSeq2Seq, steps 0 to 500, logs/small/nohup.out" in done.stderr
    figures = json.loads(dragoman("import", "logs", "--json", cwd=tmp_path).stdout)
    assert [(run["run"], run["steps"]["last"]) for run in figures["runs"]] == [("runs/large", 900), ("runs/small", 500)]
    refused = dragoman("import", "logs", "--run-dir", "one", code=2, cwd=tmp_path).stderr
    assert "these files are of 2 runs" in refused


def test_files_of_different_runs_are_compared_and_not_mixed(dragoman: Run, log: Path):
    (log.parent / "other.out").write_text(other_log(300), encoding="utf-8")
    done = dragoman("report", "nohup.out", "other.out", "--json", cwd=log.parent)
    assert {run["name"] for run in json.loads(done.stdout)["runs"]} == {"nohup", "other"}
    assert "2 runs were found" in done.stderr


def test_a_file_that_was_left_out_is_named(dragoman: Run, tmp_path: Path):
    (tmp_path / "logs").mkdir()
    lines = openseq2seq_log(2_000)
    (tmp_path / "logs/nohup.out").write_text(lines, encoding="utf-8")
    (tmp_path / "logs/tail.out").write_text(lines[len(lines) // 2 :], encoding="utf-8")
    done = dragoman("report", "logs", cwd=tmp_path)
    assert "tail.out was left out: logs/nohup.out holds the same figures." in done.stderr


def test_a_zip_is_read_like_what_it_holds(dragoman: Run, log: Path):
    with zipfile.ZipFile(log.parent / "run.zip", "w") as archive:
        archive.write(log, "nohup.out")
    figures = json.loads(dragoman("report", "run.zip", "--json", cwd=log.parent).stdout)
    assert (figures["run"], figures["steps"]["last"]) == ("runs/run", 2_000)


@pytest.mark.parametrize("arguments", [("--nodes", 0), ("--price-per-hour", -1)])
def test_impossible_numbers_are_refused(dragoman: Run, log: Path, arguments):
    dragoman("report", log.name, *arguments, code=2, cwd=log.parent)


@pytest.mark.parametrize("command", ["report", "import"])
def test_files_that_are_missing_or_not_logs_are_refused(dragoman: Run, tmp_path: Path, command):
    assert "none.out" in dragoman(command, "none.out", code=1, cwd=tmp_path).stderr
    (tmp_path / "letter.txt").write_text("Dear Sir\n")
    assert "OpenSeq2Seq" in dragoman(command, "letter.txt", code=1, cwd=tmp_path).stderr
    assert not (tmp_path / "runs").exists()


def test_a_launch_that_failed_is_explained(dragoman: Run, tmp_path: Path):
    (tmp_path / "nohup.out").write_text("ssh: Could not resolve hostname v100c: Name or service not known\n")
    printed = dragoman("report", "nohup.out", cwd=tmp_path).stdout
    assert "No step was trained" in printed
    assert "/etc/hosts" in printed


def test_importing_makes_a_run_that_other_commands_read(dragoman: Run, log: Path):
    figures = json.loads(dragoman("import", log.name, "--run-dir", "theirs", "--json", cwd=log.parent).stdout)
    assert (figures["trainer"], figures["parameters"]) == ("OpenSeq2Seq", 60_880_896)
    assert figures["steps"] == {"first": 0, "last": 2_000}
    assert (figures["train_records"], figures["evaluations"]) == (21, 2)
    assert json.loads(dragoman("status", "theirs", "--json", cwd=log.parent).stdout)["step"] == 2_000
    printed = dragoman("import", log.name, "--run-dir", "theirs", cwd=log.parent).stdout
    assert "step 2,000" in printed
    assert "theirs" in printed


def test_importing_into_another_folder_is_refused(dragoman: Run, log: Path):
    assert "--run-dir" in dragoman("import", log.name, "--run-dir", ".", code=1, cwd=log.parent).stderr


def test_terminal_escapes_of_a_log_do_not_reach_the_terminal(dragoman: Run, tmp_path: Path):
    (tmp_path / "nohup.out").write_text(openseq2seq_log(200) + "RuntimeError: CUDA out of memory \x1b[2J\x9b5m\n")
    done = dragoman("report", "nohup.out", cwd=tmp_path)
    assert "memory" in done.stdout
    assert not set(done.stdout + done.stderr) & set("\x1b\x9b\x07")


def test_reports_are_made_by_the_installed_command_without_torch(own_run: RunFolder, log: Path):
    program = (
        "import sys, pytest; from dragoman.cli.app import main\n"
        "for source, out in zip(sys.argv[1:], 'ab'):\n"
        "    sys.argv = ['dragoman', 'report', source, '--output', out]\n"
        "    with pytest.raises(SystemExit, match='0'):\n"
        "        main()\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, own_run.path, log], cwd=log.parent, check=False)
    assert done.returncode == 0
    assert all((log.parent / folder / "report.html").exists() for folder in "ab")


@pytest.mark.slow
@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real log is not on this machine")
def test_the_public_log_of_openseq2seq(tmp_path: Path):
    figures, seconds, megabytes = run_measured("report", REAL_LOG, *CLUSTER, cwd=tmp_path)
    assert figures["parameters"] == 60_880_896
    assert (figures["ranks"], len(figures["hosts"])) == (4, 2)
    assert figures["steps"] == {"first": 0, "last": 106_300}
    assert figures["seconds_per_step"]["median"] == pytest.approx(1.94, abs=0.006)
    assert figures["last_evaluation"]["loss"] == 1.5469
    assert figures["last_evaluation"]["teacher_forced_bleu"] == 0.3776
    assert any("teacher-forced" in warning for warning in figures["warnings"])
    assert figures["verdict"]["bottleneck"] == "network"
    assert megabytes < 200
    assert seconds < 15  # measured: 2 to 3


def write_long_log(log: Path, num_bytes: int) -> int:
    """Repeats the block of one logged step; returns the last step."""
    sample = "▁Ein ▁Satz ▁mit ▁vielen ▁Wörtern " * 20
    step = 0
    with log.open("w", encoding="utf-8") as file:
        file.write(openseq2seq_log(0))
        while file.buffer.tell() < num_bytes:
            step += 100
            file.write(
                f"*** Global step {step}: ***     Train loss: 1.6348 \ntime per step = 0:00:1.946\n"
                f"***     Train Source[0]:     <s> {sample}\n***     Train Target[0]:     <s> {sample}\n"
                f"***     Train Prediction[0]: <s> {sample}\n"
            )
    return step


@pytest.mark.slow
def test_a_log_of_a_gigabyte(tmp_path: Path):
    log = tmp_path / "nohup.out"
    try:
        last_step = write_long_log(log, 10**9)
        figures, seconds, megabytes = run_measured("report", log, *CLUSTER, cwd=tmp_path)
    finally:
        log.unlink(missing_ok=True)
    assert figures["seconds_per_step"]["median"] == pytest.approx(1.946)
    assert figures["steps"]["last"] == pytest.approx(last_step, rel=0.001)
    assert megabytes < 300
    assert seconds < 120
