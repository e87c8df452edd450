"""The workers of one attempt on this machine, started by torch's elastic agent.

The agent starts the workers, assigns their ranks and notices how they end. It never restarts anything: the supervisor,
which sees all hosts, decides that.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dragoman.cluster.addresses import LOOPBACK, is_loopback
from dragoman.cluster.environment import LAUNCH_BEGIN_VARIABLE, LAUNCH_SECONDS_VARIABLE, PARENT_VARIABLE
from dragoman.cluster.failure import Failure
from dragoman.cluster.guarded_store import StoreGate, StorePassage, open_local_store
from dragoman.cluster.heartbeat import (
    FOLDER_VARIABLE,
    STACK_SIGNAL,
    STARTING,
    Beat,
    WorkerEnd,
    read_beat,
    read_end,
    read_stacks,
)
from dragoman.launch.connection import AttemptSpec, WorkersEnd

RENDEZVOUS_SECONDS = 60
"""How long an agent waits for the agents of the other hosts."""
SHUTDOWN_SECONDS = 3
"""How long the other workers may still run after one has failed: they cannot continue, and a restart waits for them."""
STACK_SECONDS = 2.0
STACK_POLL_SECONDS = 0.02


class AttemptStore:
    """The store through which the agents and workers of one attempt find each other, as this machine reaches it."""

    def __init__(self, local_port: int, port: int, *opened: StoreGate | StorePassage, store: object = None) -> None:
        self.local_port = local_port
        """Where it is reached on loopback."""
        self.port = port
        """Where its gate is open for other hosts."""
        self._opened = opened
        self._store = store

    @classmethod
    def open(cls, address: str, ports: range | None, secret: str) -> Self:
        """Opens the store on this machine; other hosts reach it at an address, unless that is loopback."""
        store = open_local_store(RENDEZVOUS_SECONDS)
        if is_loopback(address):
            return cls(store.port, store.port, store=store)
        gate = StoreGate(address, ports, secret, store.port)
        return cls(store.port, gate.port, gate, store=store)

    @classmethod
    def reach(cls, address: str, port: int, secret: str) -> Self:
        """Opens the way to the store of another machine."""
        passage = StorePassage([address], port, secret)
        return cls(passage.port, port, passage)

    def close(self) -> None:
        """Closes it for this machine."""
        for each in self._opened:
            each.close()
        self._store = None


class WorkerGroup:
    """This machine's workers of one attempt; `run` waits for them, other methods may be called from other threads."""

    def __init__(self, spec: AttemptSpec, begin: float, store_port: int) -> None:
        """`begin` is when the order to start came, by time.monotonic(); `store_port` is the store's on loopback."""
        self._spec = spec
        self._store_port = store_port
        self._ranks = range(spec.first_rank, spec.first_rank + spec.num_workers)
        self._begin = begin
        self._folder = TemporaryDirectory(prefix="dragoman-", ignore_cleanup_errors=True)

    def run(self) -> WorkersEnd:
        """Starts the workers, waits for them and returns how they ended."""
        # The agent logs a failure as a page of boxes; the supervisor reports the first cause instead, once. Setting the
        # level of a parent logger is not enough: torch's modules set their own. Nothing else in this process logs.
        logging.disable(logging.CRITICAL)
        os.environ.update(self._spec.environment)
        launch_seconds = float(self._spec.environment.get(LAUNCH_SECONDS_VARIABLE, "0"))
        os.environ[LAUNCH_BEGIN_VARIABLE] = str(self._begin - launch_seconds)
        os.environ[FOLDER_VARIABLE] = self._folder.name
        os.environ[PARENT_VARIABLE] = str(os.getpid())
        with self._folder:
            try:
                elastic_launch(self._config(), sys.executable)("-P", "-m", self._spec.module, *self._spec.arguments)
            except ChildFailedError as error:
                failures = [_to_failure(rank, failure) for rank, failure in error.failures.items()]
                return WorkersEnd(tuple(failures), last_step=self._last_step())
            return self._read_ends()

    def _config(self) -> LaunchConfig:
        spec = self._spec
        return LaunchConfig(
            run_id=spec.attempt_id,
            min_nodes=spec.num_nodes,
            max_nodes=spec.num_nodes,
            nproc_per_node=spec.num_workers,
            rdzv_backend="static",
            rdzv_endpoint=f"{LOOPBACK}:{self._store_port}",
            rdzv_configs={"rank": spec.node_rank, "timeout": RENDEZVOUS_SECONDS},
            local_addr=LOOPBACK,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=self._folder.name),
            signals_to_handle="SIGQUIT",  # the launcher handles the others
            shutdown_timeout=SHUTDOWN_SECONDS,
        )

    def _read_ends(self) -> WorkersEnd:
        """Reads the ends of workers that all exited with code 0; one without an end has failed."""
        ends: dict[int, WorkerEnd | None] = {rank: read_end(Path(self._folder.name), rank) for rank in self._ranks}
        failures = tuple(Failure(rank, 0, time.time()) for rank, end in ends.items() if end is None)
        return WorkersEnd(failures, None if failures else ends[self._ranks[0]], self._last_step())

    def _last_step(self) -> int:
        return max(beat.step for beat in self.beats())

    def clean_up(self) -> None:
        """Removes the workers' temporary files; needed only if `run` cannot finish."""
        self._folder.cleanup()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all workers; only SIGKILL to those that have not sent a heartbeat yet.

        Before that, a worker has no handlers: any other signal would end it, and be taken for the cause of a failure.
        """
        ready = {beat.pid for beat in self.beats()}
        for child in psutil.Process().children():
            if number == signal.SIGKILL or child.pid in ready:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(number)

    def beats(self) -> list[Beat]:
        """Returns the last heartbeat of each worker."""
        return [self._beat(rank) for rank in self._ranks]

    def _beat(self, rank: int) -> Beat:
        found = read_beat(Path(self._folder.name), rank)
        return found or Beat(rank, 0, 0, STARTING, is_waiting=False, seconds_silent=time.monotonic() - self._begin)

    def stacks(self) -> dict[int, str]:
        """Returns the stacks of each worker; a stopped worker is resumed just long enough to write them."""
        beats = [beat for beat in self.beats() if beat.pid]
        for beat in beats:
            with contextlib.suppress(OSError):
                os.kill(beat.pid, STACK_SIGNAL)
                os.kill(beat.pid, signal.SIGCONT)
        texts = self._collect_stacks([beat.rank for beat in beats])
        for beat in beats:
            if beat.process_state == "T":
                with contextlib.suppress(OSError):
                    os.kill(beat.pid, signal.SIGSTOP)
        return {
            beat.rank: texts[beat.rank]
            or f"Process {beat.pid} (state {beat.process_state}) did not answer in {STACK_SECONDS:.0f} s."
            for beat in beats
        }

    def _collect_stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Waits only until all stacks are complete: a stopped worker runs during this time and could reach the end of a
        short run."""
        end = time.monotonic() + STACK_SECONDS
        texts, before = self._read_stacks(ranks), None
        while time.monotonic() < end and not (all(texts.values()) and texts == before):
            time.sleep(STACK_POLL_SECONDS)
            texts, before = self._read_stacks(ranks), texts
        return texts

    def _read_stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        return {rank: read_stacks(Path(self._folder.name), rank) for rank in ranks}


def _to_failure(rank: int, failure: ProcessFailure) -> Failure:
    """Combines what the agent noticed with what the worker itself reported, if it could."""
    data = failure.error_file_data
    reported = data.get("message") if isinstance(data, dict) else None
    if not isinstance(reported, dict) or "is_plain" not in reported.get("extraInfo", {}):
        return Failure(rank, failure.exitcode, float(failure.timestamp))
    details = reported["extraInfo"]
    return Failure(
        rank,
        failure.exitcode,
        float(details["time"]),
        message=str(reported["message"]),
        is_plain=bool(details["is_plain"]),
    )
