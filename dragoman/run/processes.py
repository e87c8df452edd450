"""This program as a process: the cores and memory it may use, and ending with its parent."""

import ctypes
import math
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

CONSOLE_VARIABLE = "DRAGOMAN_CONSOLE"
"""Environment variable; "stderr" keeps the lines of workers off standard output, which then holds only JSON."""


# Cores, threads and memory

_CORES = Path("/sys/devices/system/cpu")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_CONTROL_GROUPS = Path("/proc/self/cgroup")
_WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def num_cores() -> int:
    """Counts the cores this process may use; a container or job may have fewer than the machine."""
    return max(1, math.floor(min(len(own_cores()), _cpu_quota())))


def num_physical_cores() -> int:
    """Counts the physical cores this process may use: two threads of one core hardly compute faster than one."""
    siblings = {_read(_CORES / f"cpu{core}" / "topology" / "thread_siblings_list") for core in own_cores()}
    if "" not in siblings:
        return min(len(siblings), num_cores())
    import psutil

    return min(psutil.cpu_count(logical=False) or num_cores(), num_cores())


def own_cores() -> frozenset[int]:
    """Returns the numbers of the cores that this process is bound to; all cores if it is bound to none."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _cpu_quota() -> float:
    """Returns how many cores the control groups of this process grant it; infinity without a limit."""
    quotas = [math.inf]
    for folder in _control_groups("cpu"):
        values = _read(folder / "cpu.max").split() or [
            _read(folder / "cpu.cfs_quota_us"),
            _read(folder / "cpu.cfs_period_us"),
        ]
        quota, period = (int(value) if value.isdecimal() else 0 for value in values)  # "max" and -1 are no limit
        if quota and period:
            quotas.append(quota / period)
    return min(quotas)


def available_memory() -> int:
    """Returns the bytes that new processes may use: what the machine has, or what a container's limit leaves."""
    import psutil

    free = [int(psutil.virtual_memory().available)]
    for folder in _control_groups("memory"):
        limit, used = (
            next((int(text) for name in names if (text := _read(folder / name)).isdecimal()), None)
            for names in (("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes"))
        )
        # The kernel frees cached files before it refuses memory.
        cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
        if limit is not None and used is not None:
            free.append(max(0, limit - used + max(map(int, cached), default=0)))
    return min(free)


def _control_groups(controller: str) -> Iterator[Path]:
    """Yields the folders of the control groups that this process belongs to: the limits of all of them hold."""
    for line in _read(_OWN_CONTROL_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CONTROL_GROUPS / controller if controllers else _CONTROL_GROUPS
        own = root / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _read(path: Path) -> str:
    """Reads a file of the kernel without blanks around it; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def waiting_variables() -> dict[str, str]:
    """Returns variables that make threads sleep while they wait for each other, or what a person has chosen instead.

    They must be set before torch is imported. Threads that keep a core busy while they wait slow down those they wait
    for, if another program has taken one of the cores.
    """
    chosen = {name: value for name in _WAITING_VARIABLES if (value := os.environ.get(name))}
    return chosen or {"OMP_WAIT_POLICY": "passive"}


# The end of a parent

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> None:
    """Asks the kernel to kill this process when its parent ends, even by SIGKILL; Linux only.

    Otherwise an orphan could write into a folder that another run already uses. `parent` is the id of the process that
    started this one: another parent means that it ended before the request. None: the caller checks that itself.
    """
    try:
        ctypes.CDLL("libc.so.6").prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    # Not "if it is process 1": in a container, that one may be the parent that started this process.
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
