"""Launching a run: one launcher at a time, a status that says how the run ended, settings that reach the hosts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.launch import launcher
from dragoman.launch.hosts import Host, LaunchPlan, Placement
from dragoman.launch.launcher import kept_bytes, launch_run
from dragoman.model.shape import count_parameters, resolve_shape
from dragoman.run.config import load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, is_locked, lock_run
from dragoman.run.status import read_status
from dragoman.training.run_setup import create_run

HERE = Placement.on_this_machine(2)


@pytest.fixture
def run(tmp_path, config):
    run = RunFolder(tmp_path / "run")
    overrides = ["cluster.hang_timeout=77", "cluster.host_timeout=9", "cluster.max_restarts=3", "cluster.port=4711"]
    create_run(run, load_settings(config, overrides), num_workers=2)
    return run


@pytest.fixture
def plans(monkeypatch, run) -> Callable[..., list[LaunchPlan]]:
    """Stands in for the supervisor: collects the plans it is given, and ends as the test says."""
    found: list[LaunchPlan] = []

    def supervise_as(end: str | Exception) -> list[LaunchPlan]:
        def supervise(plan: LaunchPlan, status: Any, say: Callable[[str], None]) -> str:
            assert is_locked(run)
            found.append(plan)
            status.update(state="running")
            say("Starting again.")
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(launcher, "supervise", supervise)
        return found

    return supervise_as


@pytest.mark.parametrize(
    ("reason", "state", "is_whole"),
    [
        ("steps", "finished", True),
        ("time", "stopped", True),
        ("cost", "stopped", True),
        ("signal", "stopped", False),
        ("request", "stopped", False),
    ],
)
def test_how_a_run_ended_is_in_its_status(run, plans, reason, state, is_whole):
    """A run that used up its budget is evaluated like a finished one; a run that was stopped is not."""
    plans(reason)
    assert launch_run(run, HERE) is is_whole
    status = read_status(run)
    assert (status.state, status.reason, status.num_steps, status.num_workers) == (state, reason, 50, 2)
    assert not is_locked(run)


def test_why_a_run_failed_is_in_its_status_and_its_log(run, plans):
    plans(UserError("The disk is full."))
    with pytest.raises(UserError, match="The disk is full"):
        launch_run(run, HERE)
    assert (read_status(run).state, read_status(run).message) == ("failed", "The disk is full.")
    assert run.log.read_text(encoding="utf-8").splitlines() == ["Starting again.", "The disk is full."]
    assert not is_locked(run)


def test_messages_of_the_launcher_go_to_standard_error(run, plans, capsys):
    """Standard output is for JSON."""
    plans("steps")
    launch_run(run, HERE)
    assert capsys.readouterr() == ("", "Starting again.\n")


def test_a_run_that_another_process_trains_is_left_alone(run, plans):
    found = plans("steps")
    with lock_run(run), pytest.raises(UserError, match="is being trained by another process"):
        launch_run(run, HERE)
    assert found == []
    assert read_status(run) is None


def test_settings_reach_the_supervisor(run, plans, prepared):
    found = plans("steps")
    launch_run(run, HERE, is_resumed=True)
    (plan,) = found
    assert (plan.hang_timeout, plan.max_restarts, plan.max_workers, plan.placement) == (77.0, 3, 4, HERE)
    assert (plan.host_timeout, plan.port, plan.is_resumed) == (9.0, 4711, True)
    assert plan.prepared == prepared.resolve()
    assert plan.module == "dragoman.training.worker"


def test_other_hosts_get_absolute_paths(run, plans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = plans("steps")
    hosts = (Host("elsewhere.example.org", 2),)
    placement = Placement(hosts, 1, Path("ssh_config"), is_data_sent=True)
    launch_run(RunFolder(Path("run")), placement)
    launch_run(RunFolder(Path("run")), HERE)
    elsewhere, here = found
    assert elsewhere.run.path == tmp_path / "run"
    assert elsewhere.placement == placement
    assert here.run.path == Path("run")  # as the person wrote it


def test_disk_is_needed_for_all_checkpoints_that_exist_at_one_time(config, prepared):
    """The kept ones, and one that is written before an old one is removed."""
    corpus = PreparedCorpus.open(prepared)
    settings = load_settings(config, ["checkpoints.keep_last=2", "checkpoints.keep_best=3"])
    shape = resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    assert kept_bytes(settings) == 6 * 12 * count_parameters(shape)


def test_a_launcher_that_finds_the_run_in_use_writes_nothing_to_its_log(run):
    log = run.log.read_text(encoding="utf-8") if run.log.exists() else None
    with lock_run(run), pytest.raises(UserError, match="is being trained by another process"):
        launch_run(run, Placement.on_this_machine(None))
    assert (run.log.read_text(encoding="utf-8") if run.log.exists() else None) == log
