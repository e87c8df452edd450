"""This program as a process: how to call it again, its cores, and ending together with its parent."""

import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path

CONSOLE_VARIABLE = "DRAGOMAN_CONSOLE"
"""Environment variable; "stderr" keeps the lines of workers off standard output, which then holds only JSON."""


def own_command() -> str:
    """Returns `dragoman` if it is on PATH, otherwise the path to call, e.g. `.venv/bin/dragoman`."""
    installed = Path(sys.executable).with_name("dragoman")
    found = shutil.which("dragoman")
    if not installed.exists() or (found is not None and Path(found).samefile(installed)):
        return "dragoman"
    is_below = installed.is_relative_to(Path.cwd())
    return os.path.relpath(installed) if is_below else str(installed)


_PR_SET_PDEATHSIG = 1


def num_cores() -> int:
    """Counts the cores this process may use; a container or job may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends, even by SIGKILL; Linux only.

    Otherwise an orphan could write into a folder that another run already uses.
    """
    try:
        ctypes.CDLL("libc.so.6").prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() == 1:  # the parent ended before the request
        os.kill(os.getpid(), signal.SIGKILL)
