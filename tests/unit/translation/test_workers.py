"""Tasks computed in forked processes: all results, and a clear end whatever happens to a process."""

import os
import signal
import time
from contextlib import closing

import psutil
import pytest

from dragoman.run.errors import UsageError, UserError
from dragoman.translation.torch_search import workers
from dragoman.translation.torch_search.workers import compute_in_processes


@pytest.mark.parametrize("num_processes", [1, 2, 5])
def test_each_task_is_computed_once(num_processes: int) -> None:
    tasks = [f"Größe {number}\u2028" for number in range(7)]
    results = dict(compute_in_processes(lambda task: [task, 1 / 3], tasks, num_processes))
    assert results == {index: [task, 1 / 3] for index, task in enumerate(tasks)}


def test_processes_share_the_work_and_end_with_it() -> None:
    before = set(psutil.Process().children())
    results = [pid for _, pid in compute_in_processes(lambda _: (time.sleep(0.05), os.getpid())[1], range(8), 2)]
    assert len(set(results)) == 2
    assert os.getpid() not in results
    assert set(psutil.Process().children()) == before


def test_closing_early_ends_the_processes() -> None:
    before = set(psutil.Process().children())
    with closing(compute_in_processes(lambda _: time.sleep(60 if _ else 0), range(2), 2)) as results:
        assert next(results) == (0, None)
        assert len(psutil.Process().children()) == len(before) + 2
    assert set(psutil.Process().children()) == before


def test_an_error_in_a_process_is_raised_here() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero") as caught:
        list(compute_in_processes(lambda task: 1 / task, [1, 0], 2))
    assert "Traceback" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", [UserError, UsageError, MemoryError])
def test_errors_that_commands_explain_keep_their_kind(kind: type[Exception]) -> None:
    def fail(_: int) -> None:
        raise kind("no room")

    with pytest.raises(kind) as caught:
        list(compute_in_processes(fail, range(2), 2))
    assert type(caught.value) is kind
    assert str(caught.value) == "no room"


def test_a_process_that_ends_before_its_task_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    start = workers._start_worker

    def start_and_kill(*arguments):
        worker = start(*arguments)
        worker.process.kill()
        worker.process.join()
        return worker

    monkeypatch.setattr(workers, "_start_worker", start_and_kill)
    with pytest.raises(UserError, match="ended by signal 9"):
        list(compute_in_processes(lambda task: task, range(4), 2))


def test_a_killed_process_is_a_clear_error() -> None:
    with pytest.raises(UserError, match=r"ended by signal 9; .* use fewer with --workers"):
        list(compute_in_processes(lambda _: os.kill(os.getpid(), signal.SIGKILL), range(4), 2))
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_an_interrupt_reaches_only_the_parent() -> None:
    def interrupt_itself(task: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return task

    assert dict(compute_in_processes(interrupt_itself, [5, 6], 2)) == {0: 5, 1: 6}
