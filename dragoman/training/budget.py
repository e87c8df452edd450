"""When to stop, besides the number of steps: a signal, a number of hours, an amount of money."""

import signal
import time
from enum import IntEnum
from types import FrameType

from dragoman.cluster.heartbeat import PAUSE_SIGNAL
from dragoman.run.config import TrainingSettings
from dragoman.run.folder import RunFolder
from dragoman.run.status import is_stop_requested

LOOK_SECONDS = 1.0


class StopReason(IntEnum):
    """Why a run ends; ranks vote on it, and the largest wins."""

    NONE = 0
    STEPS = 1
    TIME = 2
    COST = 3
    HOST_BACK = 4
    SIGNAL = 5
    REQUEST = 6
    """By `dragoman stop`: unlike a signal, which a job manager may send, it means that the run is not to go on."""


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


class StopNotice:
    """Notes signals that ask for the end, from as early on as possible: before, they would end the process."""

    def __init__(self) -> None:
        self.reason = StopReason.NONE

    def install(self) -> None:
        """From now on SIGTERM and SIGINT ask for an orderly end, and a launcher may ask for a pause."""
        for number in (signal.SIGTERM, signal.SIGINT, PAUSE_SIGNAL):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = max(self.reason, StopReason.HOST_BACK if number == PAUSE_SIGNAL else StopReason.SIGNAL)


class StopWatch:
    """Knows what to stop for: a signal, a request in the run folder (for the rank that is given it), a budget."""

    def __init__(
        self, settings: TrainingSettings, clock: Clock, notice: StopNotice, run: RunFolder | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._notice = notice
        self._run = run
        self._last_look = 0.0

    def reason(self) -> StopReason:
        """What this rank would stop for now."""
        if self.is_asked_to_end():
            return self._notice.reason
        cost = self._clock.cost
        if self._settings.max_cost is not None and cost is not None and cost >= self._settings.max_cost:
            return StopReason.COST
        if self._settings.max_hours is not None and self._clock.seconds >= self._settings.max_hours * 3600:
            return StopReason.TIME
        return StopReason.NONE

    def is_asked_to_end(self) -> bool:
        """Whether somebody has asked; the run folder is looked at once a second."""
        # A launcher passes a request on as a signal, which may come before the next look.
        is_due = time.monotonic() - self._last_look > LOOK_SECONDS or self._notice.reason is StopReason.SIGNAL
        if self._run and is_due:
            self._last_look = time.monotonic()
            if is_stop_requested(self._run):
                self._notice.reason = StopReason.REQUEST
        return self._notice.reason is not StopReason.NONE
