"""Finds who uses the cores of this machine: the run, other programs, or other virtual machines.

The run is everything that the parent of its workers has started: on each machine one agent, or mpirun's or Slurm's
daemon. Threads of the run that are ready but get no core are counted too: only they say that other programs cost time.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from dragoman.run.records import MAX_PROGRAMS, MachineLoad, ProgramLoad

PROCESSES = "/proc"
LOOK_SECONDS = 10.0
"""Seconds between two looks at all processes; the own ones are read every time."""
_LARGEST_LOOK_SHARE = 0.005
"""Largest share of a core spent on looking at all processes: a machine may have tens of thousands."""
_MAX_THREADS = 256
"""Threads of the run that are read every time; a worker on a GPU has a hundred, most of them idle."""
_MAX_BYTES = 4096
_SMALLEST_PROGRAM = 0.1
"""Cores; programs that use less are not named."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_NANOSECONDS = 1e9
_PARENT, _FLAGS, _USER_TIME, _SYSTEM_TIME = 1, 6, 11, 12
"""Places of these figures in /proc/PID/stat, counted from behind the name."""
_KERNEL_THREAD = 0x00200000
_COUNTED = ("user", "nice", "system")
"""Activities of a core that belong to processes; interrupts may serve anybody."""


@dataclass(frozen=True)
class ProcessTime:
    """A process and the processor time it has used so far."""

    pid: int
    parent: int
    name: str
    cpu_seconds: float


@dataclass(frozen=True)
class CoreUse:
    """Who used the cores that the run may use, in cores; None where it cannot be known."""

    num_cores: float | None = None
    own_cores: float | None = None
    other_cores: float | None = None
    stolen_cores: float | None = None
    waiting_threads: float | None = None


@dataclass
class _OwnTimes:
    """Sums over the processes of the run, at one moment."""

    time: float
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    waiting_seconds: dict[int, float] = field(default_factory=dict)


class CoreReader:
    """Reads who used the cores since the last read; Linux only, elsewhere nothing is known."""

    def __init__(self, root: int, clock: Callable[[], float] = time.monotonic) -> None:
        """The run is everything that the process `root` has started, at any depth."""
        self._root, self._clock = root, clock
        self._own: set[int] = set()
        self._allowed: set[int] = set()
        self._times: _OwnTimes | None = None
        self._all: dict[int, ProcessTime] = {}
        self._look_time = 0.0
        self._next_look = float("-inf")

    def read(
        self, before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]
    ) -> tuple[CoreUse, list[ProgramLoad] | None]:
        """Returns the use since the last read, and now and then the other programs that used most.

        `before` and `after` are the seconds of every core by activity, as psutil has them.
        """
        programs = self._look_at_all() if self._clock() >= self._next_look else None
        times_before, self._times = self._times, _read_own_times(sorted(self._own), self._clock())
        if times_before is None or not self._own or not after or len(before) != len(after):
            return CoreUse(), programs
        return _core_use(times_before, self._times, before, after, self._allowed), programs

    def expect_look(self) -> None:
        """Makes the next read look at all processes."""
        self._next_look = float("-inf")

    def _look_at_all(self) -> list[ProgramLoad] | None:
        """Finds the processes of the run, and what the others have used since the last look."""
        begin = self._clock()
        earlier, self._all = self._all, {process.pid: process for process in _read_processes()}
        self._own = descendants(self._root, self._all.values())
        self._allowed = _allowed_cores(self._own)
        seconds, self._look_time = begin - self._look_time, begin
        self._next_look = begin + max(LOOK_SECONDS, (self._clock() - begin) / _LARGEST_LOOK_SHARE)
        if not earlier or seconds <= 0:
            return None
        others = [process for pid, process in self._all.items() if pid not in self._own and pid != os.getpid()]
        return heaviest_programs(earlier, others, seconds)


class LoadMeter:
    """Measures who used the cores of this machine from its creation on; for a worker, whose parent started them all."""

    def __init__(self, host: str) -> None:
        self._host, self._reader = host, CoreReader(os.getppid())
        self._before = self._read_cores()
        self._reader.read((), self._before)

    def read(self) -> MachineLoad | None:
        """Returns the load so far; None where it cannot be known."""
        self._reader.expect_look()
        use, programs = self._reader.read(self._before, self._read_cores())
        known = {name: value for name, value in vars(use).items() if value is not None}
        return MachineLoad(host=self._host, programs=programs or [], **known) if known else None

    def _read_cores(self) -> list[dict[str, float]]:
        try:
            return read_core_times()
        except Exception:  # psutil fails in many ways where a kernel or a container hides something
            return []


def read_core_times() -> list[dict[str, float]]:
    """Reads the seconds of every core by activity."""
    return [core._asdict() for core in psutil.cpu_times(percpu=True)]


def find_root() -> int | None:
    """Finds the process that started the workers, from their child, the sampler; None where /proc does not say."""
    worker = _read_process(os.getppid())
    return None if worker is None else worker.parent or worker.pid


def descendants(root: int, processes: Iterable[ProcessTime]) -> set[int]:
    """Returns the ids of all processes that a process has started, at any depth, and its own."""
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    found, waiting = set(), [root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def heaviest_programs(
    earlier: Mapping[int, ProcessTime], now: Iterable[ProcessTime], seconds: float
) -> list[ProgramLoad]:
    """Returns the processes that used most between two looks; one that started in between counts from its start."""
    loads = []
    for process in now:
        before = earlier.get(process.pid)
        # One that has used less than before is another process with the same id.
        is_same = before is not None and before.cpu_seconds <= process.cpu_seconds
        used = process.cpu_seconds - (before.cpu_seconds if before and is_same else 0.0)
        if used / seconds >= _SMALLEST_PROGRAM:
            loads.append(ProgramLoad(name=process.name, pid=process.pid, cores=round(used / seconds, 2)))
    return sorted(loads, key=lambda load: -load.cores)[:MAX_PROGRAMS]


def _core_use(
    before: _OwnTimes,
    after: _OwnTimes,
    cores_before: Sequence[Mapping[str, float]],
    cores_after: Sequence[Mapping[str, float]],
    allowed: set[int],
) -> CoreUse:
    seconds = after.time - before.time
    if seconds <= 0:
        return CoreUse()
    usable = [number for number in range(len(cores_after)) if not allowed or number in allowed]
    rises = [_rise(cores_before[number], cores_after[number]) for number in usable]
    own = _sum_of_rises(before.cpu_seconds, after.cpu_seconds) / seconds
    used = sum(rise[name] for rise in rises for name in _COUNTED if name in rise) / seconds
    return CoreUse(
        num_cores=len(usable),
        own_cores=round(min(own, len(usable)), 3),
        other_cores=round(min(max(0.0, used - own), len(usable)), 3),
        stolen_cores=round(sum(rise.get("steal", 0.0) for rise in rises) / seconds, 3),
        waiting_threads=_waiting_threads(before, after, seconds),
    )


def _waiting_threads(before: _OwnTimes, after: _OwnTimes, seconds: float) -> float | None:
    """Returns how many threads waited on average; None where the kernel does not tell it."""
    if before.waiting_seconds.keys().isdisjoint(after.waiting_seconds):
        return None
    return round(_sum_of_rises(before.waiting_seconds, after.waiting_seconds) / seconds, 3)


def _rise(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: max(0.0, seconds - before.get(name, seconds)) for name, seconds in after.items()}


def _sum_of_rises(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Sums what rose, of the processes or threads that are there both times."""
    return sum(max(0.0, value - before[key]) for key, value in after.items() if key in before)


# Reading /proc


def _read_processes() -> Iterable[ProcessTime]:
    """Yields all processes that can be seen from here."""
    with suppress(OSError):
        for pid in _list_numbers(PROCESSES):
            if (process := _read_process(pid)) is not None:
                yield process


def _read_process(pid: int) -> ProcessTime | None:
    """Reads one process; None if it has ended or is a thread of the kernel, which is no program."""
    try:
        content = _read_bytes(f"{PROCESSES}/{pid}/stat")
        # The name may hold blanks and brackets.
        name, _, rest = content.partition(b"(")[2].rpartition(b")")
        figures = rest.split()
        if int(figures[_FLAGS]) & _KERNEL_THREAD:
            return None
        ticks = int(figures[_USER_TIME]) + int(figures[_SYSTEM_TIME])
        return ProcessTime(pid, int(figures[_PARENT]), name.decode(errors="replace"), ticks / _TICKS_PER_SECOND)
    except (OSError, ValueError, IndexError):
        return None


def _read_own_times(pids: Sequence[int], now: float) -> _OwnTimes:
    times = _OwnTimes(now)
    for pid in pids:
        if (process := _read_process(pid)) is not None:
            times.cpu_seconds[pid] = process.cpu_seconds
            times.waiting_seconds |= _read_waiting_seconds(pid, max(1, _MAX_THREADS // len(pids)))
    return times


def _read_waiting_seconds(pid: int, max_threads: int) -> dict[int, float]:
    """Reads for how long each thread of a process has waited for a core while it was ready to run."""
    found = {}
    with suppress(OSError):
        # The first threads are those that compute.
        for thread in sorted(_list_numbers(f"{PROCESSES}/{pid}/task"))[:max_threads]:
            with suppress(OSError, ValueError):
                _, waiting, num_turns = map(int, _read_bytes(f"{PROCESSES}/{pid}/task/{thread}/schedstat").split())
                if num_turns:  # a kernel that does not count has only zeros
                    found[thread] = waiting / _NANOSECONDS
    return found


def _list_numbers(folder: str) -> list[int]:
    with os.scandir(folder) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def _read_bytes(path: str) -> bytes:
    """Reads a file of the kernel, without the cost of `open`: there may be thousands."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _MAX_BYTES)
    finally:
        os.close(file)


def _allowed_cores(pids: Iterable[int]) -> set[int]:
    """The cores that any process of the run may use; a container or job may have fewer than the machine."""
    allowed: set[int] = set()
    for pid in pids:
        with suppress(OSError, AttributeError):
            allowed |= os.sched_getaffinity(pid)
    return allowed
