"""Computes the time of a training step from dated log lines, apart from evaluations and checkpoints."""

from dragoman.importing.log_text import LogClock


class PausingClock:
    """Clock that stands still while the trainer evaluates and saves."""

    def __init__(self) -> None:
        self._clock = LogClock()
        self._paused_seconds = 0.0
        self._pause: tuple[float, float] | None = None
        self._last_time: float | None = None

    @property
    def log_every(self) -> int:
        """Steps between the last two log lines."""
        return self._clock.log_every

    def begin_pause(self, start: float | None) -> None:
        """Begins an evaluation at this time; not before the last logged step, as durations are rounded."""
        if start is not None and self._pause is None:
            start = start if self._last_time is None else max(start, self._last_time)
            self._pause = (start, start)

    def extend_pause(self, now: float | None) -> None:
        """Notes that the evaluation, or what follows it, was still going on at this time."""
        if self._pause is not None and now is not None:
            self._pause = (self._pause[0], max(self._pause[1], now))

    def end_pause(self) -> None:
        """Ends the evaluation: what follows is training."""
        if self._pause is not None:
            self._paused_seconds += self._pause[1] - self._pause[0]
            self._pause = None

    def seconds_per_step(self, step: int, now: float | None) -> float | None:
        """Returns the mean since the previous logged step without the pauses in between; None where unknown."""
        self.end_pause()
        self._last_time = now
        return self._clock.seconds_per_step(step, None if now is None else now - self._paused_seconds)

    def restart(self) -> None:
        """Forgets the previous line: the run began again."""
        self._clock.restart()
        self._pause, self._last_time = None, None
