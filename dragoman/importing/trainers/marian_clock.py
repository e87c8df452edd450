"""Tells the time of validation and saving from that of training in a Marian log."""

_MAX_GAP_SECONDS = 5.0
"""Lines that are closer in time belong to one pause of the training."""


class PauseClock:
    """Measures how long the training paused between two of its lines.

    Marian's own time per line includes validation and saving. A line about saving is written before it, a validation
    score after it; so a validation has a known beginning if it follows a line of training of the same step, or saving.
    """

    def __init__(self) -> None:
        self._train: tuple[int, float] | None = None
        self._step: int | None = None
        self._begin: float | None = None
        self._end: float | None = None
        self._validation_begin: float | None = None
        self._has_score = False
        self._seconds = 0.0
        self._is_exact = True

    def train(self, step: int, now: float | None) -> tuple[float, bool]:
        """Notes a line of training; returns the pause before it and whether that is all of it."""
        self._close()
        pause, is_exact = self._seconds, self._is_exact
        self._seconds, self._is_exact = 0.0, True
        self._train = None if now is None else (step, now)
        return pause, is_exact

    def save(self, step: int | None, now: float | None) -> None:
        """Notes a line about saving; the step is None where it does not say it."""
        if now is None:
            return
        is_same = self._is_near(now) if step is None or self._step is None else step == self._step
        if not is_same:
            self._close()
            self._begin = now
        self._step, self._end = self._step if step is None else step, now

    def validate(self, step: int, now: float | None) -> float | None:
        """Notes a score; returns the seconds of the validation so far, None where its beginning is unknown."""
        if now is None:
            return None
        if self._end is None or self._step not in (step, None):
            self._close()
            self._begin = self._validation_begin = self._train[1] if self._train and self._train[0] == step else None
            self._is_exact = self._is_exact and self._begin is not None
        elif not self._has_score:
            self._validation_begin = self._end
        self._step, self._end, self._has_score = step, now, True
        return None if self._validation_begin is None else max(0.0, now - self._validation_begin)

    def _is_near(self, now: float) -> bool:
        return self._end is not None and 0 <= now - self._end <= _MAX_GAP_SECONDS

    def _close(self) -> None:
        if self._begin is not None and self._end is not None:
            self._seconds += max(0.0, self._end - self._begin)
        self._step = self._begin = self._end = self._validation_begin = None
        self._has_score = False
