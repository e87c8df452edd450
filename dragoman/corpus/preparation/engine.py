"""Who does the tasks of a preparation: this process, a pool of processes, or Ray."""

import multiprocessing
import signal
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
"""Less text than this is prepared before a pool of processes has started."""


class Interrupted(UserError):  # noqa: N818 - what it is
    """Not the input's fault: the same command would continue where this one stopped."""


class Engine(Protocol):
    """Does pieces of work, perhaps many at once."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yields the results in the order of the tasks, and draws tasks only as fast as they are done."""


@contextmanager
def open_engine(name: EngineName, num_processes: int | None, num_input_bytes: int) -> Iterator[Engine]:
    """The engine for this much text; its processes end with the block."""
    num_processes = num_processes or num_cores()
    if name == "ray":
        from dragoman.corpus.preparation.ray_engine import open_ray

        with open_ray() as engine:
            yield engine
    elif num_processes == 1 or num_input_bytes < SMALL_BYTES:
        yield OwnProcess()
    else:
        with _open_pool(num_processes) as engine:
            yield engine


class OwnProcess:
    """Does one piece after the other, here."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Does each task when its result is asked for."""
        return map(function, tasks)


class ProcessPool:
    """Does pieces in worker processes of this machine."""

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
            raise Interrupted(
                "A worker process of the preparation died, perhaps for lack of memory. "
                "Run the same command again to continue, with fewer --processes."
            ) from None

    def _submit(self, function: Callable[[Task], Result], task: Task) -> "Future[Result]":
        """Submits with Ctrl-C held back: a process that is born here must not meet it before it knows to ignore it."""
        mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(function, task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


def in_order(
    submit: Callable[[Task], Any], result: Callable[[Any], Result], tasks: Iterable[Task], num_in_flight: int
) -> Iterator[Result]:
    """Submits tasks and yields their results in order, with no more than so many not yet taken."""
    waiting: deque[Any] = deque()
    for task in tasks:
        waiting.append(submit(task))
        if len(waiting) >= num_in_flight:
            yield result(waiting.popleft())
    while waiting:
        yield result(waiting.popleft())


@contextmanager
def _open_pool(num_processes: int) -> Iterator[ProcessPool]:
    # Spawned, not forked: a fork would copy whatever threads and locks the caller has.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_begin_worker)
    others = set(multiprocessing.active_children())
    try:
        yield ProcessPool(pool, num_processes)
    except BaseException:
        # What is half done is not waited for: training a tokenizer takes minutes, and every piece can be made again.
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Ctrl-C is the parent's to handle: it stops the pool, and what is done stays done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
