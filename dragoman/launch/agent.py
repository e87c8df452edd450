"""The workers of one attempt on this machine, under torchrun's elastic agent.

The agent starts the workers, gives them their ranks and notices how they end. Who decides what happens then is the
supervisor, which sees all machines; so the agent itself never restarts anything.
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

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dragoman.cluster.failure import Failure
from dragoman.cluster.heartbeat import FOLDER_VARIABLE, STACK_SIGNAL, STARTING, Beat, read_beat, read_stacks
from dragoman.launch.connection import AttemptSpec

MEETING_SECONDS = 60
"""How long an agent waits for the agents of the other hosts."""
LINGER_SECONDS = 3
"""How long workers may still write once one of them has failed: they cannot go on, and a restart waits for them."""
STACK_SECONDS = 2.0
STACK_POLL_SECONDS = 0.02


class WorkerGroup:
    """This machine's workers of one attempt; `run` waits for them, the rest may be called from another thread."""

    def __init__(self, spec: AttemptSpec) -> None:
        self._spec = spec
        self._begin = time.monotonic()
        self._folder = TemporaryDirectory(prefix="dragoman-", ignore_cleanup_errors=True)

    def run(self) -> tuple[list[Failure], Beat]:
        """Starts the workers and waits for their end; which of them failed, and what the first noted last."""
        # The agent's own account of a failure is a page of boxes; the first cause is told by the supervisor, once.
        # Its modules set levels of their own, so their parent's would not count; nothing else in this process logs.
        logging.disable(logging.CRITICAL)
        os.environ.update(self._spec.environment)
        os.environ[FOLDER_VARIABLE] = self._folder.name
        with self._folder:
            try:
                elastic_launch(self._config(), sys.executable)("-P", "-m", self._spec.module, *self._spec.arguments)
            except ChildFailedError as error:
                return [_to_failure(rank, failure) for rank, failure in error.failures.items()], self.beats()[0]
            return [], self.beats()[0]

    def _config(self) -> LaunchConfig:
        spec = self._spec
        return LaunchConfig(
            run_id=spec.attempt_id,
            min_nodes=spec.num_nodes,
            max_nodes=spec.num_nodes,
            nproc_per_node=spec.num_workers,
            rdzv_backend="static",
            rdzv_endpoint=f"{spec.master_address}:{spec.master_port}",
            rdzv_configs={"rank": spec.node_rank, "timeout": MEETING_SECONDS},
            local_addr=spec.master_address if spec.node_rank == 0 else None,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=self._folder.name),
            signals_to_handle="SIGQUIT",  # the others are the launcher's business
            shutdown_timeout=LINGER_SECONDS,
        )

    def clean_up(self) -> None:
        """Removes what the workers left on this machine's disk, where `run` will not come to it."""
        self._folder.cleanup()

    def signal(self, number: signal.Signals) -> None:
        """Passes a signal on to all workers."""
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    def beats(self) -> list[Beat]:
        """What each worker was last known to do."""
        return [self._beat(self._spec.first_rank + local_rank) for local_rank in range(self._spec.num_workers)]

    def _beat(self, rank: int) -> Beat:
        noted = read_beat(Path(self._folder.name), rank)
        return noted or Beat(rank, 0, 0, STARTING, is_waiting=False, seconds_silent=time.monotonic() - self._begin)

    def stacks(self) -> dict[int, str]:
        """Where each worker stands in its code; a stopped one is made to go on just far enough to answer."""
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
        """What the workers have written, as soon as all have written and none writes more: one that was stopped goes
        on meanwhile, and would reach the end of a short run."""
        end = time.monotonic() + STACK_SECONDS
        texts, before = self._written_stacks(ranks), None
        while time.monotonic() < end and not (all(texts.values()) and texts == before):
            time.sleep(STACK_POLL_SECONDS)
            texts, before = self._written_stacks(ranks), texts
        return texts

    def _written_stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        return {rank: read_stacks(Path(self._folder.name), rank) for rank in ranks}


def _to_failure(rank: int, failure: ProcessFailure) -> Failure:
    """What the agent noticed, and what the worker itself wrote, if it could."""
    data = failure.error_file_data
    told = data.get("message") if isinstance(data, dict) else None
    if not isinstance(told, dict) or "is_plain" not in told.get("extraInfo", {}):
        return Failure(rank, failure.exitcode, float(failure.timestamp))
    details = told["extraInfo"]
    return Failure(
        rank, failure.exitcode, float(details["time"]), message=str(told["message"]), is_plain=bool(details["is_plain"])
    )
