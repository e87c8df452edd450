"""A run on hosts is continued by the command that was printed when it stopped: the run remembers its hosts."""

import json
import os
import shlex
import signal
from pathlib import Path

import psutil
import pytest
from host_runs import ONE_EACH, ONE_THREAD, hosts_options, training_on_hosts, wait_until_no_processes, write_config
from program import run_dragoman, wait_for_step
from rig import Rig

from dragoman.run.folder import RunFolder
from dragoman.run.status import read_status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def config(prepared: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "config.toml", prepared, "training.max_steps=100000")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "my run")


def continue_as_printed(rig: Rig, run: RunFolder, printed: str) -> None:
    """Runs the printed command for two more steps; requires that they were made on the same hosts."""
    wait_until_no_processes(rig)
    run_dragoman("status", run.path, "--expect", "stopped")
    _, *arguments = shlex.split(printed.partition("Continue with: ")[2].splitlines()[0])
    more = ["--set", f"training.max_steps={read_status(run).step + 2}"]
    again = run_dragoman(*arguments, *more, env=os.environ | ONE_THREAD)
    assert f"Hosts of the run: h1:1, h2:1 (from {run.placement})" in again.stdout
    assert [(host.name, host.workers) for host in read_status(run).hosts] == [("h1", 1), ("h2", 1)]
    assert read_status(run).state == "finished"


def test_the_printed_command_continues_on_the_same_hosts(rig: Rig, config: Path, run: RunFolder):
    with training_on_hosts(rig, ONE_EACH, run.path, config) as training:
        training.wait_for_step(3)
        training.send_signal(signal.SIGINT)
        printed = training.end().stdout
    continue_as_printed(rig, run, printed)


def test_a_detached_run_is_watched_stopped_and_continued_through_its_folder(rig: Rig, config: Path, run: RunFolder):
    options = [*hosts_options(rig, ONE_EACH), "--run-dir", run.path, "--detach"]
    run_dragoman("train", config, *options, env=os.environ | ONE_THREAD)
    status = json.loads(run_dragoman("status", run.path, "--json").stdout)
    launcher = psutil.Process(json.loads(run.status.read_text())["pid"])
    try:
        assert status["state"] == "running"
        assert [host["name"] for host in status["hosts"]] == ["h1", "h2"]
        wait_for_step(run.path, 5)
        printed = run_dragoman("stop", run.path).stdout
        assert "Stopped at step" in run_dragoman("watch", run.path).stdout
        launcher.wait(timeout=60)
    finally:
        if launcher.is_running():
            launcher.kill()
    continue_as_printed(rig, run, printed)
