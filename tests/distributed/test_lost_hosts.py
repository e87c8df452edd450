"""A lost host costs a restart: the others continue with the same global batch, and it rejoins when it returns."""

import json
from pathlib import Path

import pytest
from host_runs import ONE_EACH, link_down, train_here, training_on_hosts, wait_until_no_processes, write_config
from program import farthest_step, read_records, run_dragoman, train_losses, wait_until
from rig import Rig

pytestmark = pytest.mark.slow


@pytest.fixture
def config(prepared: Path, tmp_path: Path) -> Path:
    """Long steps, so that few are made while a host is lost; a small learning rate, so that rounding stays small."""
    return write_config(
        tmp_path / "config.toml", prepared, "training.global_batch_tokens=3000", "training.learning_rate=5e-4"
    )


@pytest.mark.parametrize(("lost", "left"), [("h1", "h2"), ("h2", "h1")])  # h1 has rank 0
def test_a_run_continues_without_a_lost_host_and_the_host_rejoins(
    rig: Rig, config: Path, tmp_path: Path, lost: str, left: str
):
    run = tmp_path / "run"
    with training_on_hosts(rig, ONE_EACH, run, config) as training:
        training.wait_for_step(10)
        with link_down(rig[lost]):
            wait_for_restart(run, 1)
            assert host_states(run) == {lost: "lost", left: "working"}
        wait_for_restart(run, 2)
        assert host_states(run) == {lost: "working", left: "working"}
        run_dragoman("stop", run)
        done = training.end()
    wait_until_no_processes(rig)
    assert f"{lost} cannot be reached any more. Starting again from the newest checkpoint." in done.stderr
    assert [record["workers"] for record in read_records(run, "restart")] == [1, 2]
    assert_learned_what_one_worker_learns(run, config)


def test_a_run_waits_if_too_few_hosts_are_left(rig: Rig, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    with training_on_hosts(rig, ONE_EACH, run, config, "--min-hosts", 2, "--set", "training.max_steps=40") as training:
        training.wait_for_step(10)
        with link_down(rig["h2"]):
            wait_until(lambda: status_of(run)["state"] == "waiting", "waiting for h2")
            assert host_states(run) == {"h1": "working", "h2": "lost"}
        done = training.end()
    wait_until_no_processes(rig)
    assert "Waiting for hosts: 1 of at least 2 are up." in done.stderr
    assert [record["workers"] for record in read_records(run, "restart")] == [2]
    assert farthest_step(run) == 40
    assert_learned_what_one_worker_learns(run, config)


def wait_for_restart(run: Path, number: int) -> None:
    """Waits until the run has been restarted this many times and has made new steps since."""
    wait_until(lambda: len(read_records(run, "restart")) == number, f"restart {number} of {run}")
    step = farthest_step(run)
    wait_until(lambda: farthest_step(run) > step + 3, f"steps after restart {number} of {run}")


def assert_learned_what_one_worker_learns(run: Path, config: Path) -> None:
    """Compares with an undisturbed run on this machine; the tolerance is that of test_workers_agree."""
    last_step = f"training.max_steps={farthest_step(run)}"
    undisturbed = train_here(1, run.with_name("undisturbed"), config, "--set", last_step)
    assert train_losses(run) == pytest.approx(train_losses(undisturbed), rel=1e-4)


def status_of(run: Path) -> dict[str, object]:
    return json.loads(run_dragoman("status", run, "--json").stdout)


def host_states(run: Path) -> dict[str, str]:
    return {host["name"]: host["state"] for host in status_of(run)["hosts"]}
