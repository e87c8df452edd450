"""Processes that torchrun or mpirun started train one run together, as if our own launcher had started them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from host_runs import ONE_THREAD, TWO_EACH, train_here, train_on_hosts, wait_until_no_processes, write_config
from program import dragoman_command, environment_of, learned_bytes, read_records, train_losses, wait_for_step
from rig import Rig

NUM_STEPS = 40
NUM_PARAMETERS = 58_240
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed here.")


@pytest.fixture(scope="module")
def config(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    return write_config(path, prepared, f"training.max_steps={NUM_STEPS}")


@pytest.fixture(scope="module")
def of_two_workers(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with our own launcher, on this machine."""
    return train_here(2, tmp_path_factory.mktemp("own") / "run", config)


def launch(launcher: Sequence[str], *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Runs `dragoman train` under a launcher to its end."""
    command = [*launcher, *dragoman_command("train", *arguments)]
    return subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=120)


@contextmanager
def launched(launcher: Sequence[str], output: Path, *arguments: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs it in the background; ends the launcher and its processes with the block."""
    command = [*launcher, *dragoman_command("train", *arguments)]
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=os.environ | ONE_THREAD, stdout=file, stderr=file)
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


# torchrun


@pytest.mark.slow
def test_torchrun(config: Path, of_two_workers: Path, tmp_path: Path):
    run = tmp_path / "run"
    done = launch(TORCHRUN, config, "--run-dir", run)
    assert done.returncode == 0, done.stderr
    assert train_losses(run) == train_losses(of_two_workers)
    assert learned_bytes(run, NUM_STEPS) == learned_bytes(of_two_workers, NUM_STEPS)
    assert done.stdout.count("2 workers share") == 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_workers_that_torchrun_starts_again_continue_the_run(
    config: Path, of_two_workers: Path, tmp_path: Path, rank: int
):
    run, output = tmp_path / "run", tmp_path / "output"
    with launched([*TORCHRUN, "--max-restarts=1"], output, config, "--run-dir", run) as launcher:
        wait_for_step(run, 8)
        workers = psutil.Process(launcher.pid).children()
        next(worker for worker in workers if environment_of(worker)["RANK"] == str(rank)).kill()
        assert launcher.wait(timeout=120) == 0, output.read_text(encoding="utf-8")
    restarts = [(record["workers"], record["cause"]) for record in read_records(run, "restart")]
    assert restarts == [(2, "torchrun started the processes again.")]
    assert train_losses(run) == train_losses(of_two_workers)
    assert learned_bytes(run, NUM_STEPS) == learned_bytes(of_two_workers, NUM_STEPS)


# mpirun


@needs_mpirun
@pytest.mark.slow
def test_mpirun(config: Path, of_two_workers: Path, tmp_path: Path):
    run = tmp_path / "run"
    done = launch([*MPIRUN, "-n", "2"], config, "--run-dir", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert train_losses(run) == train_losses(of_two_workers)
    assert done.stdout.count("2 workers share") == 1
    assert not list(tmp_path.glob(".meeting*"))


@needs_mpirun
@pytest.mark.slow
def test_mpirun_on_hosts_that_gives_ranks_in_another_order(rig: Rig, config: Path, tmp_path: Path):
    own, run = tmp_path / "own", tmp_path / "run"
    train_on_hosts(rig, TWO_EACH, own, config)
    sent_before = rig["h1"].bytes_sent()
    hosts = ["-H", TWO_EACH, "--map-by", "node", "--mca", "plm_rsh_agent", f"ssh -F {rig.ssh_config}"]
    done = launch([*MPIRUN, *hosts, "-x", "OMP_NUM_THREADS"], config, "--run-dir", run)
    assert (done.returncode, done.stderr) == (0, "")
    wait_until_no_processes(rig)
    assert train_losses(run) == train_losses(own)
    assert learned_bytes(run, NUM_STEPS) == learned_bytes(own, NUM_STEPS)
    # mpirun gave every other rank to h1: a ring in that order would send twice as much over its link.
    ring_bytes = 2 * 3 / 4 * 4 * NUM_PARAMETERS
    assert 1 < (rig["h1"].bytes_sent() - sent_before) / (NUM_STEPS * ring_bytes) < 1.4


@needs_mpirun
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.max_steps=ten", "training.max_steps = 'ten': it must be a whole number."),
        pytest.param(
            "data.prepared=/nowhere", "There is no folder /nowhere with prepared data", marks=pytest.mark.slow
        ),
    ],
)
def test_a_problem_of_the_run_is_reported_once(config: Path, tmp_path: Path, setting: str, message: str):
    done = launch([*MPIRUN, "-n", "2"], config, "--run-dir", tmp_path / "run", "--set", setting)
    assert done.returncode in (1, 2)
    assert [line for line in done.stderr.splitlines() if "dragoman: " in line and message not in line] == []
    assert done.stderr.count(message) == 1
    assert list(tmp_path.iterdir()) == []


@needs_mpirun
def test_under_mpirun_the_number_of_workers_cannot_be_given(config: Path, tmp_path: Path):
    done = launch([*MPIRUN, "-n", "2"], config, "--run-dir", tmp_path / "run", "--workers", 2)
    assert done.returncode == 2
    assert "mpirun has started 2 processes: remove --workers" in done.stderr
