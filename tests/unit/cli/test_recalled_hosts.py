"""Options of `dragoman train` about hosts: a run that continues remembers them, and what is given explicitly wins."""

import shlex
from pathlib import Path

import pytest
from program import call_dragoman

from dragoman.launch.hosts import Host, LaunchPlan, Placement, load_placement
from dragoman.run.commands import resume_command
from dragoman.run.folder import RunFolder


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "my run")


@pytest.fixture
def ssh_config(tmp_path) -> Path:
    path = tmp_path / "ssh_config"
    path.touch()
    return path


@pytest.fixture
def begun(run, config, ssh_config, plans) -> list[LaunchPlan]:
    """A run that was started on two hosts; returns where the plans of later starts appear."""
    options = ["--hosts", "a:2,b:1", "--min-hosts", 2, "--ssh-config", ssh_config, "--send-data"]
    call_dragoman("train", config, "--run-dir", run.path, *options)
    assert plans.pop().placement == Placement((Host("a", 2), Host("b", 1)), 2, ssh_config, is_data_sent=True)
    return plans


def test_the_printed_command_continues_on_the_same_hosts(run, begun, ssh_config):
    _, *arguments = shlex.split(resume_command(run.path))
    done = call_dragoman(*arguments)
    (plan,) = begun
    assert plan.placement == Placement((Host("a", 2), Host("b", 1)), 2, ssh_config, is_data_sent=True)
    assert plan.is_resumed
    line = f"Hosts of the run: a:2, b:1 (from {run.placement}); --hosts or --workers chooses others."
    assert done.stdout.splitlines().count(line) == 1


def test_a_job_that_is_queued_again_continues_on_the_same_hosts(run, begun, config):
    call_dragoman("train", config, "--run-dir", run.path, "--continue")
    run.metrics.touch()  # now it has trained, though no checkpoint is here
    call_dragoman("train", config, "--run-dir", run.path, "--continue")
    assert [[host.text for host in plan.placement.hosts] for plan in begun] == [["a:2", "b:1"]] * 2
    assert [plan.is_resumed for plan in begun] == [False, True]


def test_a_new_run_in_an_old_folder_remembers_nothing(run, begun, config):
    call_dragoman("train", config, "--run-dir", run.path, "--workers", 1)
    call_dragoman("train", config, "--run-dir", run.path, "--set", "training.virtual_workers=64")
    assert [plan.placement.is_only_this_machine for plan in begun] == [True, True]


@pytest.mark.parametrize(
    ("options", "hosts"),
    [(["--hosts", "c:1"], [Host("c", 1)]), (["--workers", "3"], [Host("localhost", 3)])],
)
def test_what_is_given_wins_and_is_remembered(run, begun, config, options, hosts):
    arguments = ["train", config, "--run-dir", run.path, "--continue"]
    call_dragoman(*arguments, *options)
    call_dragoman(*arguments)
    expected = Placement(tuple(hosts))  # neither min-hosts nor ssh-config of the former hosts
    assert [plan.placement for plan in begun] == [expected] * 2
    assert load_placement(run) == expected


def test_a_number_of_workers_is_remembered_and_told(run, config, plans):
    arguments = ["train", config, "--run-dir", run.path]
    call_dragoman(*arguments, "--workers", 3)
    done = call_dragoman(*arguments, "--continue")
    assert [plan.placement for plan in plans] == [Placement.on_this_machine(3)] * 2
    assert f"Workers of the run: 3 (from {run.placement}); --workers or --hosts chooses others." in done.stdout


def test_a_number_that_the_program_chose_is_not_remembered(run, config, plans):
    call_dragoman("train", config, "--run-dir", run.path)
    assert not run.placement.exists()


def test_other_options_change_what_is_remembered(run, begun, tmp_path):
    other = tmp_path / "other_config"
    other.touch()
    call_dragoman("train", "--resume", "--run-dir", run.path, "--ssh-config", other, "--min-hosts", 1)
    call_dragoman("train", "--resume", "--run-dir", run.path)
    expected = Placement((Host("a", 2), Host("b", 1)), 1, other, is_data_sent=True)
    assert [plan.placement for plan in begun] == [expected] * 2


def test_more_hosts_than_are_remembered_cannot_be_required(run, begun):
    done = call_dragoman("train", "--resume", "--run-dir", run.path, "--min-hosts", 3, code=2)
    assert "--min-hosts 3 is more than the 2 hosts of the run." in done.stderr


@pytest.mark.parametrize("option", [["--send-data"], ["--min-hosts", 2], ["--ssh-config", "/dev/null"]])
def test_options_about_hosts_need_hosts(run, config, plans, option):
    for options in ([], ["--continue"], ["--workers", 2]):
        done = call_dragoman("train", config, "--run-dir", run.path, *options, *option, code=2)
        assert "--send-data, --ssh-config and --min-hosts are for use with --hosts." in done.stderr
    call_dragoman("train", config, "--run-dir", run.path, "--workers", 2)
    done = call_dragoman("train", config, "--run-dir", run.path, "--continue", *option, code=2)
    assert "are for use with --hosts" in done.stderr


def test_an_ssh_config_that_was_moved_is_asked_for(run, begun, ssh_config):
    moved = ssh_config.rename(ssh_config.with_name("moved"))
    done = call_dragoman("train", "--resume", "--run-dir", run.path, code=1)
    assert (
        f"The ssh config of the run, {ssh_config} (from {run.placement}), does not exist any more: name it with "
        "--ssh-config FILE." in done.stderr
    )
    call_dragoman("train", "--resume", "--run-dir", run.path, "--ssh-config", moved)
    assert begun[-1].placement.ssh_config == moved


def test_a_damaged_file_is_only_read_if_it_is_needed(run, begun):
    run.placement.write_text("{")
    done = call_dragoman("train", "--resume", "--run-dir", run.path, code=1)
    assert "it is damaged. Give them again with --hosts A:N,B:N" in done.stderr
    call_dragoman("train", "--resume", "--run-dir", run.path, "--hosts", "a:1")
    assert load_placement(run) == Placement((Host("a", 1),))


def test_advice_about_too_many_workers_fits_hosts(run, config, plans):
    done = call_dragoman("train", config, "--run-dir", run.path, "--hosts", "a:4,b:4", code=2)
    assert "8 workers cannot share 4 virtual workers: give the hosts at most 4 workers together" in done.stderr
    assert "--workers" not in done.stderr
    assert not run.path.exists()


def test_addresses_in_brackets_reach_the_plan(run, config, plans):
    call_dragoman("train", config, "--run-dir", run.path, "--hosts", "[fd00::1]:2,user@[fd00::2]:2")
    assert [host.ssh_name for host in plans[0].placement.hosts] == ["fd00::1", "user@fd00::2"]
