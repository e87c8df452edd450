"""`dragoman train --detach` returns when the run has started, and the run continues without a terminal."""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from program import Run, dragoman_command, read_records, wait_until

from dragoman.run.folder import RunFolder
from dragoman.run.status import RunStatus, read_status

SECONDS = 120.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """A run folder; ends a process that still trains it after the test."""
    run = RunFolder(tmp_path / "my run")
    yield run
    status = read_status(run)
    with suppress(psutil.NoSuchProcess):
        if status is not None and "--run-dir" in psutil.Process(status.pid).cmdline():
            psutil.Process(status.pid).kill()


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads would be slow while other tests run."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def wait_for(run: RunFolder, is_it: Callable[[RunStatus], bool]) -> RunStatus:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        status = read_status(run)
        if status is not None and is_it(status):
            return status
        time.sleep(0.1)
    raise AssertionError(f"the state did not come in {SECONDS:.0f} s: {status}")


def wait_for_end(run: RunFolder) -> RunStatus:
    return wait_for(run, lambda status: status.state in ("finished", "stopped", "failed"))


@pytest.mark.slow
def test_the_run_gets_a_free_name_and_continues_in_its_own_session(dragoman: Run, config: Path, tmp_path: Path):
    (tmp_path / "runs" / "config").mkdir(parents=True)
    run = RunFolder(tmp_path / "runs" / "config-2")
    done = dragoman("train", config, "--detach", "--set", "training.max_steps=10", cwd=tmp_path)
    status = read_status(run)
    assert (status.state, status.step) == ("running", 0)  # the command did not wait for it
    assert os.getsid(status.pid) == status.pid  # no closing terminal reaches it
    assert psutil.Process(status.pid).terminal() is None
    assert f"(process {status.pid})" in done.stdout
    assert "watch runs/config-2" in done.stdout
    assert "stop runs/config-2" in done.stdout
    ended = wait_for_end(run)
    assert (ended.state, ended.reason, ended.step) == ("finished", "steps", 10)
    assert read_records(run.path, "train")[-1]["step"] == 10
    assert "Finished after 10 steps" in run.launch_log.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_in_the_background_has_one_launcher_and_ends_when_it_is_asked_to(
    dragoman: Run, config: Path, run: RunFolder
):
    arguments = ["train", config, "--detach", "--run-dir", run.path, "--workers", "1"]
    dragoman(*arguments, "--set", "training.max_steps=100000")
    assert run.path.stat().st_mode & 0o777 == 0o700
    status = wait_for(run, lambda status: status.step > 0)
    config_before = run.config.read_bytes()
    resume = ["train", "--resume", "--run-dir", run.path, "--set", "training.max_steps=7", "--workers", "2"]
    for options in ([], ["--detach"]):
        refused = dragoman(*resume, *options, code=1)
        assert f"is being trained by process {status.pid} on {socket.gethostname()}; stop it first" in refused.stderr
    assert run.config.read_bytes() == config_before
    done = dragoman("stop", run.path)
    ended = wait_for_end(run)
    assert (ended.state, ended.reason) == ("stopped", "request")
    printed = shlex.split(done.stdout.partition("Continue with: ")[2])
    again = dragoman(*printed[1:], "--set", f"training.max_steps={ended.step + 1}")
    assert f"Workers of the run: 1 (from {run.placement})" in again.stdout
    assert read_status(run).state == "finished"


@pytest.mark.slow
def test_a_launcher_that_is_killed_is_lost_at_once(dragoman: Run, config: Path, run: RunFolder):
    dragoman("train", config, "--detach", "--run-dir", run.path, "--set", "training.max_steps=100000")
    launcher = psutil.Process(wait_for(run, lambda status: status.step > 0).pid)
    launcher.kill()
    launcher.wait(10)
    begin = time.monotonic()
    shown = dragoman("status", run.path, "--expect", "lost").stdout
    assert f"process {launcher.pid} on {socket.gethostname()} ended without a message" in shown
    assert time.monotonic() - begin < 10
    assert "Continue with: " in dragoman("stop", run.path, code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--set", "training.max_stepps=5"], 2, "max_steps"),
        (["--set", "data.prepared=/nowhere"], 1, "/nowhere"),
        (["--workers", "9"], 2, "9 workers cannot share 4 virtual workers"),
    ],
)
def test_a_run_that_cannot_start_is_reported_at_once_as_without_detach_and_leaves_nothing(
    dragoman: Run, config: Path, run: RunFolder, arguments: list[str], code: int, message: str
):
    done = dragoman("train", config, "--detach", "--run-dir", run.path, *arguments, code=code)
    attached = dragoman("train", config, "--run-dir", run.path, *arguments, code=code)
    assert message in done.stderr
    assert done.stderr == attached.stderr
    assert not run.path.exists()


def test_a_folder_that_is_not_a_run_is_left_alone(dragoman: Run, config: Path, run: RunFolder):
    run.path.mkdir()
    (run.path / "thesis.tex").touch()
    done = dragoman("train", config, "--detach", "--run-dir", run.path, code=1)
    assert "is not a run folder" in done.stderr
    assert [path.name for path in run.path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_hosts_that_cannot_be_reached_leave_nothing_and_prepared_text_stays(
    dragoman: Run, config: Path, run: RunFolder, tmp_path: Path
):
    before = sorted(tmp_path.iterdir())
    hosts = ["--hosts", "nowhere.invalid:1", "--detach", "--run-dir", run.path]
    assert "nowhere.invalid" in dragoman("train", config, *hosts, code=1).stderr
    assert sorted(tmp_path.iterdir()) == before
    for name, words in (("en", "The number {} is here."), ("de", "Die Zahl {} ist hier.")):
        lines = [words.format(number) + "\n" for number in range(2_000)]
        (tmp_path / f"my.{name}").write_text("".join(lines), encoding="utf-8")
    text = ["--source", tmp_path / "my.en", "--target", tmp_path / "my.de"]
    done = dragoman("train", *text, *hosts, code=1)
    assert "nowhere.invalid" in done.stderr
    assert f"What was prepared is kept in {run.path}" in done.stderr
    assert list(run.path.iterdir()) == [run.prepared]


def test_ctrl_c_during_the_start_ends_it_and_leaves_nothing(config: Path, run: RunFolder, tmp_path: Path):
    ssh_config = tmp_path / "ssh_config"
    ssh_config.write_text("Host *\n    ProxyCommand sleep 60\n    ConnectTimeout 60\n", encoding="ascii")
    options = ["--hosts", "a:1", "--ssh-config", ssh_config, "--run-dir", run.path, "--detach"]
    with subprocess.Popen(dragoman_command("train", config, *options), stderr=subprocess.PIPE, text=True) as command:
        wait_until(lambda: run.status.exists(), "a status")
        launcher = read_status(run).pid
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    assert command.returncode == 1
    assert "Stopped by Ctrl-C or a signal." in errors
    assert not psutil.pid_exists(launcher)
    assert not run.path.exists()
