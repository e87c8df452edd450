"""When to stop, besides the number of steps: a signal, a number of hours, an amount of money."""

import signal
import time
from enum import IntEnum
from types import FrameType

from dragoman.run.config import TrainingSettings


class StopReason(IntEnum):
    """Why a run ends; ranks vote on it, and the largest wins."""

    NONE = 0
    STEPS = 1
    TIME = 2
    COST = 3
    SIGNAL = 4


class Clock:
    """Seconds of training over all restarts, and what they cost."""

    def __init__(self, seconds_before: float, price_per_hour: float | None) -> None:
        self._begin = time.monotonic() - seconds_before
        self._price_per_hour = price_per_hour

    @property
    def seconds(self) -> float:
        """Since training first began, pauses between restarts not counted."""
        return time.monotonic() - self._begin

    @property
    def cost(self) -> float | None:
        """In the currency of price_per_hour; None where no price is known."""
        return None if self._price_per_hour is None else self.seconds / 3600 * self._price_per_hour


class StopWatch:
    """Notices SIGTERM and Ctrl-C, and budgets used up."""

    def __init__(self, settings: TrainingSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._is_signalled = False

    def install(self) -> None:
        """From now on SIGTERM and SIGINT ask for an orderly end instead of ending the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def reason(self) -> StopReason:
        """What this rank would stop for now."""
        if self._is_signalled:
            return StopReason.SIGNAL
        cost = self._clock.cost
        if self._settings.max_cost is not None and cost is not None and cost >= self._settings.max_cost:
            return StopReason.COST
        if self._settings.max_hours is not None and self._clock.seconds >= self._settings.max_hours * 3600:
            return StopReason.TIME
        return StopReason.NONE

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_signalled = True
