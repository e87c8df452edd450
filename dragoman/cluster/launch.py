"""Starting a run's processes on this machine, under torchrun's elastic agent.

The agent watches the workers; stopping them in good order is ours: a signal to the launcher becomes SIGTERM to the
workers, which finish their step, save and end by themselves. A second signal ends them at once.
"""

import logging
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from types import FrameType

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dragoman.cluster.failure import first_cause
from dragoman.run.errors import UserError
from dragoman.run.processes import num_cores

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def threads_per_worker(num_workers: int) -> int:
    """The cores divided among workers; more threads than cores would only get in each other's way."""
    return max(1, num_cores() // num_workers)


def launch_on_this_machine(module: str, arguments: Sequence[str], num_workers: int) -> bool:
    """Runs `python -m module arguments…` in so many ranks and waits; False if a signal stopped them before their end.

    A failure is a UserError with the first cause.
    """
    for name, value in _worker_environment(num_workers).items():
        os.environ.setdefault(name, value)
    # The agent's own account of a failure is a page of boxes; the first cause is told by us, once.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    forwarder = _SignalForwarder()
    with forwarder, TemporaryDirectory(prefix="dragoman-launch-") as folder:
        try:
            elastic_launch(_launch_config(num_workers, folder), sys.executable)("-m", module, *arguments)
        except ChildFailedError as error:
            if not forwarder.num_received:
                raise UserError(first_cause(error)) from None
            raise UserError("Stopped before the run had anything new to save.") from None
    return forwarder.num_received == 0


def _launch_config(num_workers: int, folder: str) -> LaunchConfig:
    """One node, its ranks in contact over loopback; workers that fail leave their reasons in `folder`."""
    return LaunchConfig(
        run_id=secrets.token_hex(8),
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_workers,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        rdzv_configs={"is_host": True},
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
        signals_to_handle="SIGQUIT",  # the others are handled below, more gently
    )


def _worker_environment(num_workers: int) -> dict[str, str]:
    """Variables the workers inherit; those a person has set already stay."""
    return {
        "OMP_NUM_THREADS": str(threads_per_worker(num_workers)),
        # Without it gloo may resolve this host's name to an address that refuses its peers.
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


class _SignalForwarder:
    """While active, passes stop signals on to the child processes instead of dying of them."""

    def __init__(self) -> None:
        self.num_received = 0

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._forward) for number in STOP_SIGNALS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, _number: int, _frame: FrameType | None) -> None:
        self.num_received += 1
        is_first = self.num_received == 1
        note = "Stopping after this step; once more to stop at once." if is_first else "Stopping at once."
        print(f"\n{note}", file=sys.stderr, flush=True)
        for child in psutil.Process().children():
            child.send_signal(signal.SIGTERM if is_first else signal.SIGKILL)
