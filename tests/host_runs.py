"""Runs training on the hosts of a rig, and finds its processes there."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from program import HOST_MODULE, WORKER_MODULE, Training, environment_of, run_dragoman, runs_module, wait_until
from rig import Host, Rig

from dragoman.run.config import build_settings, dump_settings

# All hosts share the cores of this machine: more threads than cores would slow each other down.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ONE_EACH = "h1:1,h2:1"
TWO_EACH = "h1:2,h2:2"

TINY_RUN = {
    "model": {"preset": "tiny", "width": 32, "feed_forward": 64},
    "training": {
        "global_batch_tokens": 800,
        "virtual_workers": 4,
        "schedule": "fixed",
        "learning_rate": 3e-3,
        "warmup_steps": 10,
        "log_every": 1,
    },
    "evaluation": {"max_sentences": 4, "beam_size": 2},
    "checkpoints": {"save_every": 7, "keep_best": 0},
    # The measurements before the first step have tests of their own.
    "cluster": {"host_timeout": 5, "check": "never"},
    # The report, too, which takes longer than these runs.
    "monitoring": {"report": False},
}


def write_config(path: Path, prepared: Path, *overrides: str) -> Path:
    """Writes the config of a tiny run that logs every step; overrides are those of --set."""
    settings = build_settings(TINY_RUN | {"data": {"prepared": str(prepared)}}, overrides)
    path.write_text(dump_settings(settings), encoding="utf-8")
    return path


def hosts_options(rig: Rig, hosts: str) -> list[object]:
    return ["--hosts", hosts, "--ssh-config", rig.ssh_config]


def train_here(num_workers: int, run: Path, *arguments: object) -> Path:
    """Trains on this machine alone, to compare with."""
    run_dragoman("train", *arguments, "--workers", num_workers, "--run-dir", run, env=os.environ | ONE_THREAD)
    return run


def train_on_hosts(
    rig: Rig, hosts: str, run: Path, *arguments: object, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Trains to the end; requires the exit code, and that no process is left on any host."""
    options = [*arguments, *hosts_options(rig, hosts), "--run-dir", run]
    done = run_dragoman("train", *options, code=code, env=os.environ | ONE_THREAD)
    wait_until_no_processes(rig)
    return done


def training_on_hosts(rig: Rig, hosts: str, run: Path, *arguments: object) -> Training:
    """Starts training in the background."""
    return Training(run, *arguments, *hosts_options(rig, hosts), environment=ONE_THREAD)


@contextmanager
def link_down(host: Host) -> Iterator[None]:
    """While active, cuts the link of a host."""
    host.link_down()
    try:
        yield
    finally:
        host.link_up()


def copy_to_private_folders(rig: Rig, folder: Path) -> Path:
    """Copies a folder to this machine's and every host's private folder; returns its path, the same everywhere."""
    target = rig.private / folder.name
    for place in (target, *(host.path(target) for host in rig.hosts)):
        shutil.copytree(folder, place)
    return target


def processes_on(host: Host, module: str) -> list[psutil.Process]:
    """Returns the processes on a host that run a module of Python."""
    living = set(host.processes())
    return [each for each in psutil.process_iter() if each.pid in living and runs_module(each, module)]


def worker_on(host: Host) -> psutil.Process:
    """Returns the worker of the lowest rank on a host."""
    workers = processes_on(host, WORKER_MODULE)
    return min(workers, key=lambda worker: int(environment_of(worker).get("RANK", "0")))


def program_on(host: Host) -> psutil.Process:
    """Returns the program that holds the workers of a host."""
    return min(processes_on(host, HOST_MODULE), key=lambda program: program.create_time())


def wait_until_no_processes(rig: Rig, seconds: float = 30) -> None:
    """Waits until no process runs on any host."""
    for host in rig.hosts:
        wait_until(lambda host=host: not host.processes(), f"the end of all processes on {host.name}", seconds)
