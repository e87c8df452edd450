"""This program as a process: how to call it again, its cores, and ending together with its parent."""

import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path


def own_command() -> str:
    """`dragoman` where that is found, otherwise the way to the one that is running, e.g. `.venv/bin/dragoman`."""
    installed = Path(sys.executable).with_name("dragoman")
    found = shutil.which("dragoman")
    if not installed.exists() or (found is not None and Path(found).samefile(installed)):
        return "dragoman"
    is_below = installed.is_relative_to(Path.cwd())
    return os.path.relpath(installed) if is_below else str(installed)


PR_SET_PDEATHSIG = 1


def num_cores() -> int:
    """Cores this process may use, which in a container or job is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Asks the kernel to end this process as soon as its parent ends, even by SIGKILL; Linux only.

    An orphan would go on writing into a folder that somebody works on again.
    """
    try:
        ctypes.CDLL("libc.so.6").prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() == 1:  # it had ended before we asked
        os.kill(os.getpid(), signal.SIGKILL)
