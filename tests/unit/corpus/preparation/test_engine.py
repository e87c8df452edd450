"""Tests of the engines: tasks run in order, a few at a time; a dead worker process is an interruption."""

import multiprocessing
import operator
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.preparation.engine import SMALL_BYTES, Interrupted, OwnProcess, in_order, open_engine
from dragoman.corpus.tokenizer import VocabularyTooLarge, VocabularyTooSmall
from dragoman.run.errors import UserError


@given(st.lists(st.integers()), st.integers(1, 8))
def test_results_come_in_the_order_of_tasks_and_no_task_is_drawn_too_early(
    tasks: list[int], num_in_flight: int
) -> None:
    num_drawn, taken = 0, []

    def draw() -> Iterator[int]:
        nonlocal num_drawn
        for task in tasks:
            num_drawn += 1
            yield task

    for result in in_order(lambda task: task, operator.neg, draw(), num_in_flight):
        taken.append(result)
        assert num_drawn < len(taken) + num_in_flight
    assert taken == [-task for task in tasks]


def test_little_text_and_one_process_need_no_pool() -> None:
    for num_processes, num_bytes in ((1, 10 * SMALL_BYTES), (4, SMALL_BYTES - 1)):
        with open_engine("local", num_processes, num_bytes) as engine:
            assert isinstance(engine, OwnProcess)
            assert list(engine.map(operator.neg, [1, 2])) == [-1, -2]


def test_a_pool_works_outside_this_process_and_ends() -> None:
    others = set(multiprocessing.active_children())
    with open_engine("local", 2, SMALL_BYTES) as engine:
        assert list(engine.map(operator.neg, range(50))) == [-number for number in range(50)]
        assert len(set(multiprocessing.active_children()) - others) == 2
        # Worker processes ignore Ctrl-C, which is the parent's to handle; it is blocked from their very first moment.
        assert set(engine.map(signal.getsignal, [signal.SIGINT] * 4)) == {signal.SIG_IGN}
        no_signals: list[int] = []
        for blocked in engine.map(partial(signal.pthread_sigmask, signal.SIG_BLOCK), [no_signals] * 4):
            assert signal.SIGINT in blocked
    assert set(multiprocessing.active_children()) <= others


def test_a_dead_worker_process_is_an_interruption() -> None:
    with pytest.raises(Interrupted, match="Run the same command again"), open_engine("local", 2, SMALL_BYTES) as engine:
        list(engine.map(os._exit, [3]))


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_running_work_is_not_waited_for_when_all_ends(error: type[BaseException]) -> None:
    with suppress(error), open_engine("local", 2, SMALL_BYTES) as engine:
        assert list(engine.map(operator.neg, [1, 2, 3, 4])) == [-1, -2, -3, -4]
        results = engine.map(time.sleep, [0, 600, 600, 600, 600])
        next(results)
        begin = time.perf_counter()
        raise error
    assert time.perf_counter() - begin < 60
    assert not [child for child in multiprocessing.active_children() if child.is_alive()]


def test_errors_of_a_task_are_raised_unchanged() -> None:
    with open_engine("local", 2, SMALL_BYTES) as engine:
        for problem in (VocabularyTooLarge(9, 5), VocabularyTooSmall(3, 5), UserError("one message")):
            with pytest.raises(type(problem)) as failure:
                list(engine.map(_raise, [problem]))
            assert str(failure.value) == str(problem)
            assert vars(failure.value) == vars(problem)


def test_a_pool_can_be_opened_in_a_thread() -> None:
    results: list[int] = []

    def work() -> None:
        with open_engine("local", 2, SMALL_BYTES) as engine:
            results.extend(engine.map(operator.neg, [1, 2]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [-1, -2]


def _raise(problem: Exception) -> None:
    raise problem
