"""Watches a run on the hosts of a rig from outside: when its processes start and end, and the steps of its workers.

Nothing is asked of the run: workers are found in /proc, and what they do is read from their heartbeats. All times are
those of time.monotonic(), which no fault of a soak changes.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

import psutil
from program import HOST_MODULE, WORKER_MODULE, environment_of, runs_module
from rig import Rig

from dragoman.cluster.heartbeat import FOLDER_VARIABLE, read_beat

LOOK_SECONDS = 0.02


@dataclass
class WatchedProcess:
    """A host program or a worker, as seen so far."""

    host: str
    started: float
    is_worker: bool
    rank: int = 0
    heartbeats: Path | None = None
    """Folder of the worker's heartbeats."""
    joined: float | None = None
    """When a worker reported for the first time: it had imported torch and found the others."""
    steps: list[tuple[float, int]] = field(default_factory=list)
    """When a worker was first seen to have made this many steps, beginning with the step that it continued from."""
    ended: float | None = None

    @property
    def first_step(self) -> float | None:
        """When its first own step was made."""
        return self.steps[1][0] if len(self.steps) > 1 else None


class Timeline:
    """Watches the hosts of a rig while active."""

    def __init__(self, rig: Rig) -> None:
        self.processes: list[WatchedProcess] = []
        self._rig = rig
        self._living: dict[int, WatchedProcess] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def workers(self) -> list[WatchedProcess]:
        """All workers seen, in the order of their start."""
        return [process for process in self.processes if process.is_worker]

    def workers_since(self, moment: float) -> list[WatchedProcess]:
        """Workers that were started after a moment."""
        return [worker for worker in self.workers if worker.started > moment]

    def longest_pause(self, begin: float, end: float) -> float:
        """Longest time in which no worker made a step, within this interval."""
        moments = sorted(moment for worker in self.workers for moment, _ in worker.steps[1:] if begin < moment < end)
        return max(after - before for before, after in pairwise([begin, *moments, end]))

    def next_step(self, moment: float) -> float | None:
        """Returns when the first step after a moment was made; None if none was."""
        return min((made for worker in self.workers for made, _ in worker.steps[1:] if made > moment), default=None)

    def steps_repeated(self, begin: float, end: float) -> int:
        """Steps that were made again by workers that were started within this interval."""
        first_ranks = [worker for worker in self.workers if worker.rank == 0 and worker.steps]
        repeated = farthest = 0
        for worker in first_ranks:
            if begin < worker.started < end:
                repeated += max(0, farthest - worker.steps[0][1])
            farthest = max(farthest, worker.steps[-1][1])
        return repeated

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            now = time.monotonic()
            hosts = {pid: host.name for host in self._rig.hosts for pid in host.processes()}
            for pid in self._living.keys() - hosts.keys():
                self._living.pop(pid).ended = now
            for pid, host in hosts.items():
                if pid not in self._living:
                    with suppress(psutil.NoSuchProcess):
                        self._meet(psutil.Process(pid), host, now)
            for pid, process in list(self._living.items()):
                self._look_at(pid, process, now)

    def _meet(self, process: psutil.Process, host: str, now: float) -> None:
        """Recognises a new process; copies that processes make of themselves are left out."""
        parent = self._living.get(process.ppid())
        if runs_module(process, HOST_MODULE) and parent is None:
            self._add(process.pid, WatchedProcess(host, now, is_worker=False))
        elif runs_module(process, WORKER_MODULE) and parent is not None and not parent.is_worker:
            variables = environment_of(process)
            if FOLDER_VARIABLE in variables:
                folder, rank = Path(variables[FOLDER_VARIABLE]), int(variables["RANK"])
                self._add(process.pid, WatchedProcess(host, now, True, rank, folder))

    def _add(self, pid: int, process: WatchedProcess) -> None:
        self._living[pid] = process
        self.processes.append(process)

    @staticmethod
    def _look_at(pid: int, process: WatchedProcess, now: float) -> None:
        beat = read_beat(process.heartbeats, process.rank) if process.heartbeats else None
        if beat is None or beat.pid != pid:
            return
        process.joined = process.joined or now
        # Until training continues, the step is 0.
        if beat.step > (process.steps[-1][1] if process.steps else 0):
            process.steps.append((now, beat.step))
