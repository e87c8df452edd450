"""Tests of signals that end long work."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from dragoman.run.interruption import signals_as_keyboard_interrupt

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_interrupts_once_and_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with signals_as_keyboard_interrupt():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # must not interrupt the removal of files
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_as_keyboard_interrupt():
        os.kill(os.getpid(), signal.SIGHUP)


def test_other_threads_change_nothing() -> None:
    seen: list[object] = []

    def enter() -> None:
        with signals_as_keyboard_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_block_inside_another_one_does_not_interrupt_its_cleaning() -> None:
    with signals_as_keyboard_interrupt():
        with pytest.raises(KeyboardInterrupt), signals_as_keyboard_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # while the outer block removes files
