"""Signals that end a process, turned so that a rig is always taken down first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_main_thread() -> bool:
    """Only the main thread may change what signals do, and only it is interrupted by them."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def endings_raised() -> Iterator[None]:
    """Makes signals that would end the process at once raise SystemExit, so that `with` blocks are left in order."""
    silent = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL] if is_main_thread() else []
    for number in silent:
        signal.signal(number, raise_exit)
    try:
        yield
    finally:
        for number in silent:
            signal.signal(number, signal.SIG_DFL)


def raise_exit(number: int, _: FrameType | None) -> None:
    """Leaves the program with the exit code a shell gives for this signal."""
    raise SystemExit(128 + number)


@contextmanager
def endings_deferred() -> Iterator[None]:
    """Lets the block finish before such a signal takes effect."""
    arrived: list[int] = []
    numbers = ENDING if is_main_thread() else ()
    before = {number: signal.signal(number, lambda received, _: arrived.append(received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in arrived:
            signal.raise_signal(received)
