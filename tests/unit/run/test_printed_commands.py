"""Printed commands: a shell reads them as they were meant."""

import shlex
import sys
from pathlib import Path

import pytest

from dragoman.run import commands
from dragoman.run.commands import command_for, own_command, resume_command, shell_path

NAMES = ["my run", "-x", "--help", "it's", "$HOME", "a;b", "runs/Übung 1", "*", "~"]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_any_folder_as_one_argument_and_not_as_an_option(name):
    *_, last = shlex.split(command_for("watch", Path(name)))
    assert Path(last) == Path(name)
    assert not last.startswith("-")


@pytest.mark.parametrize("name", NAMES)
def test_an_absolute_path_stays_absolute(name):
    assert shlex.split(shell_path(Path("/data") / name)) == [f"/data/{name}"]


def test_a_program_below_a_folder_with_blanks_is_quoted(tmp_path, monkeypatch):
    programs = tmp_path / "my project" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "dragoman", "tensorboard"):
        (programs / name).touch()
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(commands.shutil, "which", lambda _: None)
    assert shlex.split(command_for("watch", Path("x"))) == [str(programs / "dragoman"), "watch", "x"]
    assert shlex.split(own_command("tensorboard")) == [str(programs / "tensorboard")]
    monkeypatch.chdir(tmp_path)
    assert shlex.split(own_command()) == ["my project/bin/dragoman"]


@pytest.mark.parametrize(
    ("training", "hours", "changes"),
    [
        ({"max_hours": 1, "max_cost": None, "price_per_hour": None}, 1.001, "max_hours=2"),
        ({"max_hours": 2.5, "price_per_hour": 3.0}, 2.3, "max_hours=5"),  # it ended in time for a last evaluation
        ({"max_hours": 0.01}, 1.0, "max_hours=1.1"),  # one long evaluation took most of it
        ({"max_cost": 10.0, "price_per_hour": 4.0}, 2.5, "max_cost=20"),
        ({"max_hours": 4, "max_cost": 10.0, "price_per_hour": 4.0}, 2.5, "max_cost=20"),
        ({"max_hours": 2, "max_cost": 6.2, "price_per_hour": 3.0}, 2.1, "max_hours=4 max_cost=12"),
        ({"max_hours": 0.01, "max_cost": 0.5, "price_per_hour": 1.0}, 1.0, "max_hours=1.1 max_cost=1.1"),
    ],
)
def test_a_run_that_a_budget_ended_continues_with_a_larger_one(training, hours, changes):
    command = resume_command(Path("runs/my run"), training, hours * 3600)
    sets = [word for change in changes.split() for word in ("--set", f"training.{change}")]
    assert shlex.split(command)[1:] == ["train", "--resume", "--run-dir", "runs/my run", *sets]


def test_a_run_that_was_asked_to_stop_keeps_its_budgets():
    assert shlex.split(resume_command(Path("x")))[1:] == ["train", "--resume", "--run-dir", "x"]
