"""Options of `dragoman train` reach the run, also where their value is 0."""

import math

import pytest
from typer.testing import CliRunner

from dragoman.cli.app import app
from dragoman.run.errors import UsageError
from dragoman.run.folder import RunFolder


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
