"""Finds and kills processes by their network namespace."""

import os
import signal
import time
from pathlib import Path

from dragoman.run.errors import UserError

PATIENCE_SECONDS = 10.0


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


def end_processes_in(namespace: Path) -> None:
    """Kills all processes in a network namespace and returns when none is left."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pids := pids_in(namespace):
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
