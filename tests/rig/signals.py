"""Handles signals that end the process, so that a rig is always removed first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_main_thread() -> bool:
    """Whether this is the main thread: only it may change signal handlers, and only it is interrupted."""
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
    """Exits with the code that a shell uses for this signal."""
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
