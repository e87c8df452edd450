"""Hosts reached over ssh train one run together, with the same result whatever happens to its processes."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from host_runs import (
    ONE_EACH,
    TWO_EACH,
    hosts_options,
    train_here,
    train_on_hosts,
    training_on_hosts,
    wait_until_no_processes,
    worker_on,
    write_config,
)
from program import learned_bytes, read_records, run_dragoman, train_losses
from rig import Rig

from dragoman.run.processes import num_physical_cores

NUM_STEPS = 120  # enough that a run does not end while a hang is found
NUM_SHORT_STEPS = 30
SHORT = ("--set", f"training.max_steps={NUM_SHORT_STEPS}")
HOST_TIMEOUT_SECONDS = 5


@pytest.fixture(scope="module")
def config(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(
        tmp_path_factory.mktemp("config") / "config.toml",
        prepared,
        f"training.max_steps={NUM_STEPS}",
        f"cluster.host_timeout={HOST_TIMEOUT_SECONDS}",
    )


@pytest.fixture(scope="module")
def undisturbed(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two workers on this machine."""
    return train_here(2, tmp_path_factory.mktemp("undisturbed") / "run", config)


@pytest.fixture(scope="module")
def on_hosts(
    rig: Rig, config: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A short run of four workers on two hosts, and what it printed."""
    run = tmp_path_factory.mktemp("on-hosts") / "run"
    return run, train_on_hosts(rig, TWO_EACH, run, config, *SHORT)


@pytest.mark.slow
def test_hosts_train_the_same_as_one_machine_and_report_their_ranks(
    rig: Rig, config: Path, on_hosts: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
):
    run, done = on_hosts
    here = train_here(1, tmp_path / "here", config, *SHORT)
    assert train_losses(run) == pytest.approx(train_losses(here), rel=1e-4)
    # Not over the other interface, which comes first and has the same address everywhere; ranks packed by host.
    assert done.stderr.splitlines() == [
        f"h1: ranks 0 to 1, 1 of {num_physical_cores()} cores each, network eth0 ({rig['h1'].address}).",
        f"h2: ranks 2 to 3, 1 of {num_physical_cores()} cores each, network eth0 ({rig['h2'].address}).",
    ]
    first, *of_workers = done.stdout.splitlines()
    assert first == f"Run folder: {run}"
    assert all(line.startswith("[h1] ") for line in of_workers)
    assert "[h1] 4 workers share 4 virtual workers and 800 tokens per step." in of_workers


@pytest.mark.slow
def test_four_workers_on_two_hosts_end_bit_identical_to_four_on_one_machine(
    config: Path, on_hosts: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
):
    run, _ = on_hosts
    here = train_here(4, tmp_path / "here", config, *SHORT)
    assert train_losses(run) == train_losses(here)
    assert learned_bytes(run, NUM_SHORT_STEPS) == learned_bytes(here, NUM_SHORT_STEPS)


EVIL_NAMES = [
    "-oProxyCommand=touch {}",
    "h1 h2",
    "h1;touch {}",
    "$(touch {})",
    "h1'",
    'h1"',
    "h1\ntouch {}",
    "`touch {}`",
]


def test_a_host_name_is_never_a_command(rig: Rig, config: Path, tmp_path: Path):
    for name in EVIL_NAMES:
        hosts = name.format(tmp_path / "made")
        done = run_dragoman("train", config, *hosts_options(rig, hosts), "--run-dir", tmp_path / "run", code=2)
        assert "is not a host name" in done.stderr
    assert list(tmp_path.iterdir()) == []


# Ends


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)],  # a Ctrl-C goes to the whole group of processes
)
def test_a_signal_to_the_launcher_saves_and_ends_all_processes_on_all_hosts(
    rig: Rig, config: Path, tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals
):
    run = tmp_path / "run"
    with training_on_hosts(rig, ONE_EACH, run, config, "--set", "training.max_steps=100000") as training:
        training.wait_for_step(5)
        send(training.pid, number)
        done = training.end()
    wait_until_no_processes(rig)
    assert "Stopped on request" in done.stdout
    last = read_records(run, "train")[-1]["step"]
    assert (run / "checkpoints" / "latest").resolve().name == f"step-{last:08d}"
    run_dragoman("status", run, "--expect", "stopped")


# Faults


@pytest.mark.slow
def test_a_killed_worker_on_another_host_costs_a_restart_and_nothing_else(
    rig: Rig, config: Path, undisturbed: Path, tmp_path: Path
):
    run = tmp_path / "run"
    with training_on_hosts(rig, ONE_EACH, run, config) as training:
        training.wait_for_step(20)
        worker_on(rig["h2"]).kill()
        done = training.end()
    wait_until_no_processes(rig)
    assert "Worker 1 on h2 was killed (SIGKILL)" in done.stderr
    assert [record["workers"] for record in read_records(run, "restart")] == [2]
    assert_learned_the_same(run, undisturbed)


@pytest.mark.slow
def test_a_worker_that_hangs_on_another_host_is_named_and_the_run_restarts(
    rig: Rig, config: Path, undisturbed: Path, tmp_path: Path
):
    run = tmp_path / "run"
    # Not shorter: on a busy machine a worker may be silent for seconds without hanging.
    with training_on_hosts(rig, ONE_EACH, run, config, "--hang-timeout", 12) as training:
        training.wait_for_step(10)
        worker_on(rig["h2"]).suspend()
        done = training.end()
    wait_until_no_processes(rig)
    assert re.search(r"Rank 1 on h2 hangs at step \d+: .* for \d+ s; process \d+ is stopped\.", done.stderr)
    hanging = min(run.glob("hang-*.txt")).read_text(encoding="utf-8").split("== rank ")[1]
    assert hanging.startswith("1 on h2,")
    assert "/dragoman/training/" in hanging
    assert_learned_the_same(run, undisturbed)


def assert_learned_the_same(run: Path, other: Path) -> None:
    assert train_losses(run) == train_losses(other)
    assert learned_bytes(run, NUM_STEPS) == learned_bytes(other, NUM_STEPS)
