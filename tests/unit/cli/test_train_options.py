"""Options of `dragoman train` reach the run, also where their value is 0."""

import math
import os
import socket

import pytest
from program import run_dragoman
from typer.testing import CliRunner

from dragoman.cli.app import app
from dragoman.run.errors import UsageError
from dragoman.run.folder import RunFolder, lock_run


def train(*arguments: object) -> None:
    CliRunner().invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize("option", [["--hang-timeout", 0], ["--set", "cluster.hang_timeout=0"]])
def test_a_hang_timeout_of_0_means_never(config, tmp_path, plans, option):
    train(config, "--run-dir", tmp_path / "run", *option)
    (plan,) = plans
    assert plan.hang_timeout == math.inf
    assert "hang_timeout = 0.0" in RunFolder(tmp_path / "run").config.read_text(encoding="utf-8")


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_hang_timeout_that_is_no_time_is_refused(config, tmp_path, plans, seconds):
    with pytest.raises(UsageError, match=r"cluster\.hang_timeout"):
        train(config, "--run-dir", tmp_path / "run", "--hang-timeout", seconds)
    assert plans == []


def test_a_number_of_workers_is_refused_under_another_launcher_even_if_it_is_0(config, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="remove --workers"):
        train(config, "--workers", 0)


def test_a_run_in_use_is_refused_under_another_launcher_before_its_settings_change(config, tmp_path, plans):
    run = RunFolder(tmp_path / "run")
    train(config, "--run-dir", run.path)
    before = run.config.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    arguments = ["train", config, "--run-dir", run.path, "--continue", "--set", "training.max_steps=3"]
    with lock_run(run):
        done = run_dragoman(*arguments, env=os.environ | variables, code=1)
    assert f"is being trained by process {os.getpid()} on" in done.stderr
    assert run.config.read_bytes() == before
