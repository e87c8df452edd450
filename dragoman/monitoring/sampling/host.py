"""Processors, memory and disk of this machine; and how counters are read and become rates.

A counter is a number that only rises. What flowed between two looks at it is known only if it was there both times and
did not fall: one that fell was reset or has wrapped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil

Figures = dict[str, Any]
Value = TypeVar("Value")

BLOCK_DEVICES = Path("/sys/block")


def per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    """How fast a counter rose; None where nobody can know."""
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return round((after - before) / seconds, 1)


def read_or_note(read: Callable[[], Value], what: str, notes: list[str]) -> Value | None:
    """What `read` gives; where it fails None, and a sentence among the notes."""
    try:
        return read()
    # psutil stumbles in many ways over what a kernel or a container hides; no figure is worth the end of all others.
    except Exception as error:
        notes.append(f"{what} cannot be read here: {describe_error(error)}.")
        return None


def describe_error(error: Exception) -> str:
    """Why something could not be read, as the end of a sentence."""
    words = error.strerror if isinstance(error, OSError) else str(error)
    return (words or type(error).__name__).rstrip(".")


class HostReader:
    """Looks at processors, memory and disk, again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cpu: Sequence[Mapping[str, float]] = ()
        self._disks: Mapping[str, tuple[int, int]] = {}
        self._disks_time = 0.0

    def read(self, notes: list[str]) -> Figures:
        """The figures since the last look; what cannot be read is null and adds a sentence to the notes."""
        return {
            "cpu": self._read_cpu(notes),
            "memory": read_or_note(_read_memory, "The memory in use", notes)
            or {"used_bytes": None, "total_bytes": None},
            "disk": self._read_disk(notes),
        }

    def _read_cpu(self, notes: list[str]) -> Figures:
        before = self._cpu
        self._cpu = read_or_note(_read_cpu_times, "The load of the processors", notes) or ()
        return cpu_shares(before, self._cpu)

    def _read_disk(self, notes: list[str]) -> Figures:
        before, time_before = self._disks, self._disks_time
        self._disks = read_or_note(_read_disk_bytes, "The traffic of the disks", notes) or {}
        self._disks_time = self._clock()
        return disk_rates(before, self._disks, self._disks_time - time_before)


def cpu_shares(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> Figures:
    """The busy share of every core and of all, from the seconds each spent on what."""
    if not after or len(before) != len(after):  # the first look, or a core was switched on or off
        return {"share": None, "cores": []}
    spent = [_busy_and_all_seconds(*core) for core in zip(before, after, strict=True)]
    busy, total = (sum(column) for column in zip(*spent, strict=True))
    return {"share": _share(busy, total), "cores": [_share(*core) for core in spent]}


def _busy_and_all_seconds(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    # Some of the kernel's times fall now and then by a little, iowait above all.
    spent = {name: max(0.0, seconds - before.get(name, seconds)) for name, seconds in after.items()}
    # Linux counts the time of guests as the user's too.
    total = sum(seconds for name, seconds in spent.items() if name not in ("guest", "guest_nice"))
    return total - spent.get("idle", 0.0) - spent.get("iowait", 0.0), total


def _share(busy: float, total: float) -> float | None:
    return round(min(1.0, max(0.0, busy / total)), 4) if total > 0 else None


def disk_rates(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]], seconds: float) -> Figures:
    """Bytes read and written per second by the disks that were there both times."""
    disks = before.keys() & after.keys()
    read, written = (
        [rate for disk in disks if (rate := per_second(before[disk][way], after[disk][way], seconds)) is not None]
        for way in (0, 1)
    )
    return {
        "read_bytes_per_second": round(sum(read), 1) if read else None,
        "written_bytes_per_second": round(sum(written), 1) if written else None,
    }


def _read_cpu_times() -> list[dict[str, float]]:
    return [core._asdict() for core in psutil.cpu_times(percpu=True)]


def _read_memory() -> Figures:
    memory = psutil.virtual_memory()
    # Not psutil's `used`: what could be freed at once, such as shared caches, is not in anybody's way.
    return {"used_bytes": memory.total - memory.available, "total_bytes": memory.total}


def _read_disk_bytes() -> dict[str, tuple[int, int]]:
    """Bytes read and written by every disk."""
    counters = psutil.disk_io_counters(perdisk=True) or {}
    # psutil's own sum counts a byte twice that goes through LVM or RAID to a disk.
    disks = [name for name in counters if _is_hardware(name)] or [name for name in counters if _is_whole(name)]
    if not disks:
        raise LookupError("the kernel shows no disk")
    return {name: (counters[name].read_bytes, counters[name].write_bytes) for name in disks}


@cache
def _is_hardware(name: str) -> bool:
    """Whether a block device is neither a partition nor made of others; the kernel's word for it never changes."""
    return _block_device(name).joinpath("device").exists()


@cache
def _is_whole(name: str) -> bool:
    return _block_device(name).exists()


def _block_device(name: str) -> Path:
    return BLOCK_DEVICES / name.replace("/", "!")  # as the kernel does
