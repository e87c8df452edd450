"""Starts, finds and kills processes of a host, which is known by its namespaces."""

import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.run.errors import UserError
from rig.tools import tool

NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them
PATIENCE_SECONDS = 10.0

Argument = str | Path


def inside(
    keeper_pid: int, argv: Sequence[Argument], folder: Path, variables: Mapping[str, str] | None = None
) -> list[Argument]:
    """Returns the command line that runs a command in the namespaces of a host, given by its keeper process.

    Entering a mount namespace leads to its root folder, hence `env --chdir`. Both programs become the command: its
    process number and its signals are the caller's.
    """
    enter = [tool("nsenter"), "--target", str(keeper_pid), "--net", "--uts", "--mount", "--"]
    settings = [f"{name}={value}" for name, value in (variables or {}).items()]
    return [*enter, tool("env"), f"--chdir={folder}", *settings, *argv]


def start_inside(namespace: str, argv: Sequence[Argument], **options: Any) -> "subprocess.Popen[Any]":
    """Starts a command line that enters a network namespace, and returns when it has entered.

    One still on its way would not be found among the processes of its host, and could outlive it.
    """
    process = subprocess.Popen(argv, **options)
    home = (NAMESPACES / namespace).stat()
    while process.poll() is None and not lives_in(process.pid, home):
        time.sleep(0.001)
    return process


def pids_in(namespace: Path) -> list[int]:
    """Returns the processes in a network namespace, given by its file; zombies are in none."""
    wanted = namespace.stat()
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - names, not paths
    return sorted(pid for pid in pids if lives_in(pid, wanted))


def lives_in(pid: int, wanted: os.stat_result) -> bool:
    """Whether a process is in the namespace whose file has this stat; False if it has just ended."""
    try:
        own = os.stat(f"/proc/{pid}/ns/net")  # noqa: PTH116 - a thousand of them
    except OSError:
        return False
    return (own.st_dev, own.st_ino) == (wanted.st_dev, wanted.st_ino)


def end_processes_in(namespace: Path, spared: Collection[int] = ()) -> None:
    """Kills all processes in a network namespace, except those spared, and returns when none is left."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pids := [pid for pid in pids_in(namespace) if pid not in spared]:
        if time.monotonic() > deadline:
            raise UserError(f"Processes {pids} in the network namespace {namespace.name} cannot be ended.")
        for pid in pids:
            kill_if_in(namespace, pid)
        time.sleep(0.01)


def kill_if_in(namespace: Path, pid: int) -> None:
    """Kills one process; the handle prevents that another process with a reused number is killed."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if lives_in(pid, namespace.stat()):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
