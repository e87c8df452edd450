"""A page of memory on which a worker notes what it is doing, and that its host's program reads: no collective, no
system call, so watching a run adds no way to hang it.

The page is a small file mapped by both; it stays readable when the worker is stopped or dead.
"""

import faulthandler
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "DRAGOMAN_HEARTBEATS"
"""Where the program that started this worker looks for its page; without it nothing is noted."""
STACK_SIGNAL = signal.SIGUSR1
PAUSE_SIGNAL = signal.SIGUSR2
"""Asks a worker to save and end because the run is about to go on with more hosts."""
STARTING = "starting"
_LAYOUT = struct.Struct("<dqiB95s")
_PAGE_BYTES = 128


@dataclass(frozen=True)
class Beat:
    """What a worker was last known to do."""

    rank: int
    pid: int
    step: int
    doing: str
    is_waiting: bool
    """Whether for other ranks: then it is not the one that holds the run up."""
    seconds_silent: float
    process_state: str = "?"
    """One letter of the system: R runs, S sleeps, T is stopped, D waits for a device, Z is dead."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class _Heartbeat:
    """This process's page."""

    def __init__(self) -> None:
        self._page: mmap.mmap | None = None
        self._step = 0

    def open(self, folder: Path, rank: int) -> None:
        path = page_path(folder, rank)
        with path.open("w+b") as file:
            file.truncate(_PAGE_BYTES)
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)

    def note(self, doing: str, is_waiting: bool, step: int | None = None) -> None:
        if step is not None:
            self._step = step
        if self._page is not None:
            words = doing.encode()[:95]
            _LAYOUT.pack_into(self._page, 0, time.monotonic(), self._step, os.getpid(), is_waiting, words)


_heartbeat = _Heartbeat()


def start_heartbeat(rank: int) -> None:
    """Opens this worker's page where somebody watches, and lets its stacks be asked for by a signal."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        _heartbeat.open(Path(folder), rank)
        # In C, without Python's lock: it answers from inside any call, and at once when a stopped process goes on.
        faulthandler.register(STACK_SIGNAL, file=stacks_path(Path(folder), rank).open("w"), all_threads=True)
        beat(STARTING)


def beat(doing: str, step: int | None = None) -> None:
    """Notes that this worker lives and what it does, since what was noted before; costs a microsecond."""
    _heartbeat.note(doing, is_waiting=False, step=step)


@contextmanager
def waiting(for_what: str) -> Iterator[None]:
    """Marks a wait for other ranks."""
    _heartbeat.note(f"waiting for {for_what}", is_waiting=True)
    yield
    _heartbeat.note(f"after {for_what}", is_waiting=False)


def page_path(folder: Path, rank: int) -> Path:
    """The page of one rank."""
    return folder / f"rank{rank}.beat"


def stacks_path(folder: Path, rank: int) -> Path:
    """Where a rank writes its stacks when asked."""
    return folder / f"rank{rank}.stacks"


def read_stacks(folder: Path, rank: int) -> str:
    """What a rank has written of its stacks so far."""
    try:
        return stacks_path(folder, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_beat(folder: Path, rank: int) -> Beat | None:
    """The last note of one rank; None before its first."""
    try:
        noted, step, pid, is_waiting, words = _LAYOUT.unpack_from(page_path(folder, rank).read_bytes())
    except (OSError, struct.error):
        return None
    if noted == 0.0:
        return None
    doing = words.rstrip(b"\0").decode("utf-8", "replace")
    return Beat(rank, pid, step, doing, bool(is_waiting), time.monotonic() - noted, _process_state(pid))


def _process_state(pid: int) -> str:
    """The letter after the name in /proc/PID/stat, where there is such a thing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X" if Path("/proc/self").exists() else "?"
