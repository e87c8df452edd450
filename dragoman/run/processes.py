"""Worker processes: how many this machine has room for, and that none outlives the one that started it."""

import ctypes
import os
import signal

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
