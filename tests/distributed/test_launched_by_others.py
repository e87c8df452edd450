"""Processes that torchrun or mpirun started train one run together, as if our own launcher had started them.

Where nothing else is said, the commands are those that `dragoman launch` prints.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from host_runs import ONE_THREAD, TWO_EACH, train_here, train_on_hosts, wait_until_no_processes, write_config
from printed_commands import bare_environment, printed_command
from program import (
    Run,
    dragoman_command,
    environment_of,
    latest_step,
    learned_bytes,
    read_records,
    train_losses,
    wait_for_step,
)
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


def run_printed(command: Sequence[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    """Runs a printed command to its end, in a shell without an environment."""
    environment = bare_environment(**variables)
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)


@contextmanager
def launched(command: Sequence[str], output: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a command in the background; ends it and its processes with the block."""
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=bare_environment(**ONE_THREAD), stdout=file, stderr=file)
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
    run = tmp_path / "a run"
    done = run_printed(printed_command("torchrun", config, run, "--workers-per-node", 2, "--cpus-per-worker", 1))
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
    command = [*TORCHRUN, "--max-restarts=1", *dragoman_command("train", config, "--run-dir", run)]
    with launched(command, output) as launcher:
        wait_for_step(run, 8)
        workers = psutil.Process(launcher.pid).children()
        next(worker for worker in workers if environment_of(worker)["RANK"] == str(rank)).kill()
        assert launcher.wait(timeout=120) == 0, output.read_text(encoding="utf-8")
    restarts = [(record["workers"], record["cause"]) for record in read_records(run, "restart")]
    assert restarts == [(2, "torchrun started the processes again.")]
    assert train_losses(run) == train_losses(of_two_workers)
    assert learned_bytes(run, NUM_STEPS) == learned_bytes(of_two_workers, NUM_STEPS)


@pytest.mark.slow
def test_torchrun_on_hosts(rig: Rig, config: Path, tmp_path: Path):
    run = tmp_path / "run"
    options = ("--hosts", TWO_EACH, "--cpus-per-worker", 1)
    shell, option, text = printed_command("torchrun", config, run, *options, "--set", "training.max_steps=5")
    _, *commands = text.split("# On ")
    on_hosts = dict(each.split(":\n") for each in commands)
    assert list(on_hosts) == ["h1", "h2"]
    environment = bare_environment()
    other = rig["h2"].popen([shell, option, on_hosts["h2"]], env=environment)
    done = rig["h1"].run([shell, option, on_hosts["h1"]], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, other.wait(timeout=30)) == (0, 0), done.stderr
    assert "4 workers share" in done.stdout
    assert sorted(train_losses(run)) == [1, 2, 3, 4, 5]
    wait_until_no_processes(rig)


# mpirun


@needs_mpirun
@pytest.mark.slow
def test_mpirun(config: Path, of_two_workers: Path, tmp_path: Path):
    run = tmp_path / "a run"
    done = run_printed(printed_command("mpirun", config, run, "--workers-per-node", 2, "--cpus-per-worker", 1))
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
    options = ("--hosts", TWO_EACH, "--ssh-config", rig.ssh_config, "--cpus-per-worker", 1)
    done = run_printed(printed_command("mpirun", config, run, *options), OMPI_MCA_rmaps_base_mapping_policy="node")
    assert (done.returncode, done.stderr) == (0, "")
    wait_until_no_processes(rig)
    assert train_losses(run) == train_losses(own)
    assert learned_bytes(run, NUM_STEPS) == learned_bytes(own, NUM_STEPS)
    # mpirun gave every other rank to h1: a ring in that order would send twice as much over its link.
    ring_bytes = 2 * 3 / 4 * 4 * NUM_PARAMETERS
    assert 1 < (rig["h1"].bytes_sent() - sent_before) / (NUM_STEPS * ring_bytes) < 1.4


@needs_mpirun
@pytest.mark.slow
def test_the_printed_way_to_stop_saves_and_the_same_command_continues(
    config: Path, of_two_workers: Path, dragoman: Run, tmp_path: Path
):
    run, output = tmp_path / "a run", tmp_path / "output"
    command = printed_command("mpirun", config, run, "--workers-per-node", 2)
    (stop,) = re.findall(r"^# To save and stop: +(.+)$", command[-1], re.MULTILINE)
    with launched(command, output) as mpirun:
        wait_for_step(run, 8)
        assert run_printed(["bash", "-c", stop]).returncode == 0
        assert mpirun.wait(timeout=60) == 0, output.read_text(encoding="utf-8")
    dragoman("status", run, "--expect", "stopped")
    assert 8 <= latest_step(run) < NUM_STEPS
    done = run_printed(command, **ONE_THREAD)
    assert done.returncode == 0, done.stderr
    assert train_losses(run) == train_losses(of_two_workers)


@needs_mpirun
def test_mpirun_names_the_host_without_the_program(rig: Rig, config: Path, tmp_path: Path):
    options = ("--hosts", "h1:1,h2:1", "--ssh-config", rig.ssh_config)
    shell, option, text = printed_command("mpirun", config, tmp_path / "run", *options)
    program = rig.private / "dragoman"
    rig["h1"].run(["ln", "-s", sys.executable, program], check=True)
    elsewhere = text.replace(shlex.quote(str(Path(sys.executable).with_name("dragoman"))), str(program))
    done = run_printed([shell, option, elsewhere])
    assert done.returncode != 0
    assert f"Executable: {program}\nNode: h2\n" in done.stderr
    wait_until_no_processes(rig)


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
