"""Reports of a worker to the program that started it: a heartbeat, its stacks when asked, and how its run ended.

The heartbeat is a small memory-mapped file. Writing it takes no collective and no system call, so watching a run cannot
make it hang, and it stays readable when the worker is stopped or dead. Stacks and the end have files of their own.
"""

import faulthandler
import json
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER_VARIABLE = "DRAGOMAN_HEARTBEATS"
"""Folder of the files below; a worker without it reports nothing."""
STACK_SIGNAL = signal.SIGUSR1
"""Asks a worker to write its stacks."""
PAUSE_SIGNAL = signal.SIGUSR2
"""Asks a worker to save and end because the run continues with more hosts."""
STARTING = "starting"
_LAYOUT = struct.Struct("<dqiB95s")
_PAGE_BYTES = 128
_END_BYTES = 128


@dataclass(frozen=True)
class Beat:
    """The last known activity of a worker."""

    rank: int
    pid: int
    step: int
    doing: str
    is_waiting: bool
    """Whether it waits for other ranks; then it is not the one that holds up the run."""
    seconds_silent: float
    process_state: str = "?"
    """Letter of the process state in Linux: R running, S sleeping, T stopped, D in a device wait, Z dead."""


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker's run ended, if it ended well."""

    reason: str
    """The name of a `StopReason` in lower case: steps, patience, time, cost, signal, request or host_back."""
    step: int


class _Heartbeat:
    """Writes this process's files."""

    def __init__(self) -> None:
        self._page: mmap.mmap | None = None
        self._end_path: Path | None = None
        self._step = 0

    def open(self, folder: Path, rank: int) -> None:
        with page_path(folder, rank).open("w+b") as file:
            file.truncate(_PAGE_BYTES)
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)
        # Space for the end is taken now: a disk that is full by then must not hide how the run ended.
        self._end_path = end_path(folder, rank)
        self._end_path.write_bytes(b" " * _END_BYTES)

    def note(self, doing: str, is_waiting: bool, step: int | None = None) -> None:
        if step is not None:
            self._step = step
        if self._page is not None:
            text = doing.encode()[:95]
            _LAYOUT.pack_into(self._page, 0, time.monotonic(), self._step, os.getpid(), is_waiting, text)

    def end(self, end: WorkerEnd) -> None:
        if self._end_path is not None:
            with self._end_path.open("r+b") as file:
                file.write(json.dumps(asdict(end)).encode().ljust(_END_BYTES))


_heartbeat = _Heartbeat()


def start_heartbeat(rank: int) -> None:
    """Begins to report, if a program watches this worker; also lets that program ask for stacks by a signal."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        _heartbeat.open(Path(folder), rank)
        # Handled in C without Python's lock: works inside any call, and at once when a stopped process continues.
        faulthandler.register(STACK_SIGNAL, file=stacks_path(Path(folder), rank).open("w"), all_threads=True)
        beat(STARTING)


def beat(doing: str, step: int | None = None) -> None:
    """Reports what this worker does now; costs a microsecond."""
    _heartbeat.note(doing, is_waiting=False, step=step)


@contextmanager
def waiting(for_what: str) -> Iterator[None]:
    """Reports a wait for other ranks."""
    _heartbeat.note(f"waiting for {for_what}", is_waiting=True)
    yield
    _heartbeat.note(f"after {for_what}", is_waiting=False)


def report_end(reason: str, step: int) -> None:
    """Reports why and at which step this worker's run ended; later heartbeats do not change that."""
    _heartbeat.end(WorkerEnd(reason, step))


def page_path(folder: Path, rank: int) -> Path:
    """Returns the heartbeat file of a rank."""
    return folder / f"rank{rank}.beat"


def stacks_path(folder: Path, rank: int) -> Path:
    """Returns the file a rank writes its stacks to."""
    return folder / f"rank{rank}.stacks"


def end_path(folder: Path, rank: int) -> Path:
    """Returns the file a rank writes its end to."""
    return folder / f"rank{rank}.end"


def read_beat(folder: Path, rank: int) -> Beat | None:
    """Reads the last heartbeat of a rank; None before the first."""
    try:
        noted, step, pid, is_waiting, text = _LAYOUT.unpack_from(page_path(folder, rank).read_bytes())
    except (OSError, struct.error):
        return None
    if noted == 0.0:
        return None
    doing = text.rstrip(b"\0").decode("utf-8", "replace")
    return Beat(rank, pid, step, doing, bool(is_waiting), time.monotonic() - noted, _process_state(pid))


def read_stacks(folder: Path, rank: int) -> str:
    """Reads the stacks a rank has written so far."""
    try:
        return stacks_path(folder, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_end(folder: Path, rank: int) -> WorkerEnd | None:
    """Reads how the run of a rank ended; None if the rank did not report an end."""
    try:
        text = end_path(folder, rank).read_text(encoding="utf-8").strip()
        return WorkerEnd(**json.loads(text)) if text else None
    except (OSError, ValueError, TypeError):  # a worker that was killed while it wrote has not ended well
        return None


def _process_state(pid: int) -> str:
    """Reads the letter after the name in /proc/PID/stat, on systems that have it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X" if Path("/proc/self").exists() else "?"
