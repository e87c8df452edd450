"""Runs the tasks of a preparation: in this process, in a pool of processes, or on a Ray cluster."""

import logging
import multiprocessing
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from dragoman.run.errors import UserError
from dragoman.run.processes import end_with_parent, num_cores

EngineName = Literal["local", "ray"]
Task = TypeVar("Task")
Result = TypeVar("Result")

SMALL_BYTES = 2 * 2**20
"""Preparing less text than this in one process takes less time than starting a pool."""
_RAY_ANSWER_SECONDS = 10
_SIGNAL_SECONDS = 0.2


class Interrupted(UserError):  # noqa: N818 - names what happened
    """The preparation stopped for a reason outside the input; the same command continues it."""


class Engine(Protocol):
    """Runs tasks, perhaps several at a time."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yields the results in the order of the tasks; takes a new task only when another is done."""


@contextmanager
def open_engine(name: EngineName, num_processes: int | None, num_input_bytes: int) -> Iterator[Engine]:
    """Opens the engine for this amount of text; its processes end with the block."""
    num_processes = num_processes or num_cores()
    if name == "ray":
        with _open_ray() as cluster:
            yield cluster
    elif num_processes == 1 or num_input_bytes < SMALL_BYTES:
        yield OwnProcess()
    else:
        with _open_pool(num_processes) as pool:
            yield pool


def in_order(
    submit: Callable[[Task], Any], result: Callable[[Any], Result], tasks: Iterable[Task], num_in_flight: int
) -> Iterator[Result]:
    """Submits tasks and yields their results in order, with at most `num_in_flight` tasks submitted at a time."""
    waiting: deque[Any] = deque()
    for task in tasks:
        waiting.append(submit(task))
        if len(waiting) >= num_in_flight:
            yield result(waiting.popleft())
    while waiting:
        yield result(waiting.popleft())


class OwnProcess:
    """Runs one task after the other in this process."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Runs each task when its result is asked for."""
        return map(function, tasks)


# --- a pool of processes


class ProcessPool:
    """Runs tasks in worker processes on this machine."""

    def __init__(self, pool: ProcessPoolExecutor, num_processes: int) -> None:
        self._pool = pool
        self._num_in_flight = 2 * num_processes

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Keeps every process busy, with one more task waiting for each."""
        try:
            yield from in_order(
                lambda task: self._submit(function, task),
                lambda future: future.result(),
                tasks,
                self._num_in_flight,
            )
        except BrokenProcessPool:
            # A signal to all processes of a job ends the workers first; this process then stops here because of it.
            time.sleep(_SIGNAL_SECONDS)
            raise Interrupted(
                "A worker process of the preparation died, perhaps because memory ran out. "
                "Run the same command again to continue, with fewer --processes."
            ) from None

    def _submit(self, function: Callable[[Task], Result], task: Task) -> "Future[Result]":
        """Submits with SIGINT blocked, so that a new process cannot receive Ctrl-C before it ignores it."""
        with _blocked(signal.SIGINT):
            return self._pool.submit(function, task)


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Blocks a signal, also in processes that start meanwhile."""
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


@contextmanager
def _open_pool(num_processes: int) -> Iterator[ProcessPool]:
    # Spawned, not forked: a fork would copy the threads and locks of the caller.
    context = multiprocessing.get_context("spawn")
    # This starts Python's resource tracker, which SIGHUP would end before the pool, with a traceback.
    with _blocked(signal.SIGHUP):
        pool = ProcessPoolExecutor(num_processes, context, _begin_worker, (os.getpid(),))
    others = set(multiprocessing.active_children())
    try:
        yield ProcessPool(pool, num_processes)
    except BaseException:
        # Running tasks are not waited for: training a tokenizer takes minutes, and every task can be repeated.
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(parent: int) -> None:
    """Ignores Ctrl-C: the parent handles it and stops the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


# --- Ray, which is an optional dependency


class RayCluster:
    """Runs tasks on a Ray cluster that is already running, each on one core of any machine."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Keeps every core of the cluster busy, with one more task waiting for each."""
        import ray

        remote = ray.remote(num_cpus=1)(function)
        num_in_flight = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        try:
            take: Callable[[Any], Result] = ray.get
            yield from in_order(remote.remote, take, tasks, num_in_flight)
        except ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, UserError):
                raise problem.cause from None
            raise
        except ray.exceptions.RayError as problem:
            raise Interrupted(f"The Ray cluster failed: {problem}. Run the same command again to continue.") from None


@contextmanager
def _open_ray() -> Iterator[RayCluster]:
    """Connects to the cluster that RAY_ADDRESS names, or else to the one this machine belongs to."""
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'dragoman[ray]'.") from None
    was_connected = ray.is_initialized()
    if not was_connected:
        try:
            _require_answer(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as problem:
            raise UserError(
                f"No Ray cluster was found ({problem}). Start one with `ray start --head`, or name it in RAY_ADDRESS."
            ) from None
    try:
        yield RayCluster()
    finally:
        if not was_connected:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Raises a ConnectionError if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_RAY_ANSWER_SECONDS).close()
    except OSError as problem:
        raise ConnectionError(f"nothing answers at {address}: {problem}") from None
