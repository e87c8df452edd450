"""`dragoman fetch` with an `ssh` that runs commands here; tests/distributed/test_laptop.py has real hosts."""

import json
from pathlib import Path

import pytest
from program import call_dragoman

from dragoman.launch.hosts import Host, Placement, save_placement
from dragoman.launch.mirror import host_mirror
from dragoman.run.folder import RunFolder, lock_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    return tmp_path / "run"


def test_hosts_that_nobody_named_are_asked_for(run: Path):
    done = call_dragoman("fetch", run, code=2)
    assert f"It is not known which hosts have {run}: name them with --hosts." in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hosts", "-oProxyCommand=x"], "is not a host name"),
        (["--hosts", "a", "--ssh-config", "none"], "no file none"),
    ],
)
def test_wrong_options_are_refused(run: Path, options: list[str], message: str):
    assert message in call_dragoman("fetch", run, *options, code=2).stderr


def test_a_run_that_is_trained_from_here_is_left_to_its_launcher(run: Path):
    with lock_run(RunFolder(run)):
        done = call_dragoman("fetch", run, "--hosts", "a", code=1)
    assert "its launcher brings the files by itself" in done.stderr


def test_the_hosts_of_the_run_are_remembered(fake_ssh, run: Path):
    save_placement(RunFolder(run), Placement((Host("a", 1), Host("b", 1))))
    # With this ssh, the hosts see the folder of this machine.
    assert call_dragoman("fetch", run).stdout == "From a: nothing new.\nFrom b: nothing new.\n"
    assert json.loads(call_dragoman("fetch", run, "--hosts", "a", "--json").stdout) == {
        "run": str(run),
        "brought": [{"host": "a", "files": [], "bytes": 0, "checkpoints": []}],
        "missing": [],
    }


def test_a_host_that_cannot_be_reached_is_an_error_and_leaves_no_folder(
    fake_ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host_mirror, "FIRST_PAUSE_SECONDS", 0.05)
    done = call_dragoman("fetch", tmp_path / "new", "--hosts", "unreachable", code=1)
    assert "Files of the run are still on unreachable" in done.stderr
    assert "unreachable does not answer on port 22" in done.stderr
    assert not (tmp_path / "new").exists()
