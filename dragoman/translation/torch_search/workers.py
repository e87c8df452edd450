"""Processes that compute tasks side by side: forked from this one, so they share its memory, e.g. the model's weights.

They must compute with one thread: a forked process would wait forever for the threads of OpenMP that its parent had.
"""

import json
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from dragoman.run.errors import UsageError, UserError
from dragoman.run.processes import end_with_parent

Task = TypeVar("Task")
_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (UsageError, UserError, MemoryError)}
"""Errors of a worker that keep their kind, the special before the general: commands explain each in its own words."""


@dataclass(frozen=True)
class _Worker:
    process: ForkProcess
    connection: Connection

    def assign(self, index: int) -> None:
        """Lets the worker compute one of the tasks, which it has inherited; `result` says if it has ended."""
        with suppress(ConnectionError):
            self.connection.send_bytes(str(index).encode())

    def result(self) -> Any:
        """Returns what the worker computed; an error if it failed or was killed."""
        try:
            answer = json.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.process.join()
            raise UserError(_explain_death(self.process.exitcode)) from None
        if "error" in answer:
            problem = _KINDS.get(answer["kind"], RuntimeError)(answer["error"])
            problem.add_note(answer["traceback"])
            raise problem
        return answer["result"]


def compute_in_processes(
    function: Callable[[Task], Any], tasks: Sequence[Task], num_processes: int
) -> Generator[tuple[int, Any]]:
    """Yields the index and the result of each task, in the order they are done; results travel as JSON.

    Close the generator to end the processes early.
    """
    workers: list[_Worker] = []
    try:
        workers.extend(_start_worker(function, tasks) for _ in range(min(num_processes, len(tasks))))
        yield from _hand_out(workers, len(tasks))
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def _hand_out(workers: list[_Worker], num_tasks: int) -> Iterator[tuple[int, Any]]:
    """Gives each worker another task as soon as it has finished one."""
    unassigned = iter(range(num_tasks))
    computing: dict[Connection, tuple[_Worker, int]] = {}
    for worker, index in zip(workers, unassigned, strict=False):
        worker.assign(index)
        computing[worker.connection] = worker, index
    while computing:
        for connection in wait(list(computing)):
            worker, index = computing.pop(connection)  # type: ignore[call-overload]
            result = worker.result()
            if (following := next(unassigned, None)) is not None:
                worker.assign(following)
                computing[worker.connection] = worker, following
            yield index, result


def _start_worker(function: Callable[[Task], Any], tasks: Sequence[Task]) -> _Worker:
    context = get_context("fork")
    connection, other_end = context.Pipe()
    process = context.Process(target=_work, args=(function, tasks, other_end, os.getpid()), daemon=True)
    process.start()
    other_end.close()  # so that the end of the worker is the end of the connection
    return _Worker(process, connection)


def _work(function: Callable[[Task], Any], tasks: Sequence[Task], connection: Connection, parent: int) -> None:
    """Computes the tasks it is told, until it is killed."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        while True:
            index = int(connection.recv_bytes())
            connection.send_bytes(json.dumps(_answer(function, tasks[index])).encode())
    except (EOFError, OSError):
        pass  # the parent has ended
    finally:
        os._exit(0)  # not the parent's handlers, which would write its buffered output a second time


def _answer(function: Callable[[Task], Any], task: Task) -> dict[str, Any]:
    try:
        return {"result": function(task)}
    except Exception as problem:
        kind = next((name for name, kind in _KINDS.items() if isinstance(problem, kind)), None)
        text = str(problem) if kind else f"{type(problem).__name__}: {problem}"
        return {"kind": kind, "error": text, "traceback": traceback.format_exc()}


def _explain_death(exit_code: int | None) -> str:
    cause = f"by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"with exit code {exit_code}"
    return (
        f"A process that translates was ended {cause}; if the machine has too little memory for several, "
        "use fewer with --workers."
    )
