"""A run on hosts is continued by the command that was printed when it stopped: the run remembers its hosts."""

import os
import shlex
import signal
from pathlib import Path

import pytest
from host_runs import ONE_EACH, ONE_THREAD, hosts_options, training_on_hosts, wait_until_no_processes, write_config
from program import run_dragoman, wait_for_step
from rig import Rig

from dragoman.run.folder import RunFolder
from dragoman.run.status import read_status


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_detached", [False, True])
def test_the_printed_command_continues_on_the_same_hosts(rig: Rig, prepared: Path, tmp_path: Path, is_detached: bool):
    config = write_config(tmp_path / "config.toml", prepared, "training.max_steps=100000")
    run = RunFolder(tmp_path / "my run")
    if is_detached:
        options = [*hosts_options(rig, ONE_EACH), "--run-dir", run.path, "--detach"]
        run_dragoman("train", config, *options, env=os.environ | ONE_THREAD)
        wait_for_step(run.path, 3)
        done = run_dragoman("stop", run.path)
        printed = done.stdout
    else:
        with training_on_hosts(rig, ONE_EACH, run.path, config) as training:
            training.wait_for_step(3)
            training.send_signal(signal.SIGINT)
            printed = training.end().stdout
    wait_until_no_processes(rig)
    _, *arguments = shlex.split(printed.partition("Continue with: ")[2].splitlines()[0])
    more = ["--set", f"training.max_steps={read_status(run).step + 2}"]
    again = run_dragoman(*arguments, *more, env=os.environ | ONE_THREAD)
    assert f"Hosts of the run: h1:1, h2:1 (from {run.placement})" in again.stdout
    assert [(host.name, host.workers) for host in read_status(run).hosts] == [("h1", 1), ("h2", 1)]
    assert read_status(run).state == "finished"
