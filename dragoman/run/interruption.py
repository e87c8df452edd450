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


class _Interrupter:
    """A signal handler that raises KeyboardInterrupt, but not while the work cleans up after the first signal."""

    def __init__(self) -> None:
        self._stopped_at: float | None = None

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._stopped_at is None or now - self._stopped_at > _CLEANING_SECONDS:
            self._stopped_at = now
            raise KeyboardInterrupt


@contextmanager
def signals_as_keyboard_interrupt() -> Iterator[None]:
    """Raises KeyboardInterrupt at each of these signals; does nothing outside the main thread.

    A signal that is ignored stays ignored, as `nohup` asks for SIGHUP. Blocks inside each other are one block.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if not is_main_thread or any(isinstance(handler, _Interrupter) for handler in before.values()):
        yield
        return
    interrupter = _Interrupter()
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, interrupter)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
