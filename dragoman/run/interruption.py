"""Ends long work outside training cleanly: at Ctrl-C, at SIGTERM (docker stop) and at SIGHUP (a lost terminal)."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLEANING_SECONDS = 10.0
"""Signals within this time after the first one are ignored: they must not interrupt the removal of files."""


@contextmanager
def signals_as_keyboard_interrupt() -> Iterator[None]:
    """Raises KeyboardInterrupt at each of these signals; does nothing outside the main thread.

    A signal that is ignored stays ignored, as `nohup` asks for SIGHUP.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopped_at: float | None = None

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopped_at
        now = time.monotonic()
        if stopped_at is None or now - stopped_at > _CLEANING_SECONDS:
            stopped_at = now
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
