"""Finds the step from which the figures of a run are no numbers any more, whatever file they come from."""

import math
from dataclasses import dataclass

from dragoman.importing.imported_run import ImportedRun, LogFailure

_ENOUGH_GRADIENTS = 2
"""One gradient that is not a number is a skipped step of mixed precision; several in a row are not."""
_BROKEN_EVALUATION = (
    "The training loss stayed a number, so the model may be sound: look for an empty dev set, a sentence without "
    "tokens, or an overflow of fp16 that only the evaluation has."
)


@dataclass
class _Streak:
    """The values at the end of a curve that are no numbers."""

    since: int | None = None
    sound_before: int | None = None
    """Last step before it with a sound training loss."""
    num: int = 0
    num_recovered: int = 0
    last_recovered: int | None = None

    def add(self, step: int, is_bad: bool, sound_before: int | None = None) -> None:
        if not is_bad:
            self._recover()
        elif self.since is None:
            self.since, self.sound_before, self.num = step, sound_before, 1
        else:
            self.num += 1

    def _recover(self) -> None:
        if self.since is not None:
            self.num_recovered += self.num
            self.last_recovered = self.since
        self.since, self.num = None, 0


class NanWatch:
    """Watches losses and gradients in order of their steps; `finish` tells the run since when they are no numbers."""

    def __init__(self) -> None:
        self._train, self._dev, self._gradient, self._zero = _Streak(), _Streak(), _Streak(), _Streak()
        self._last_sound_step: int | None = None
        """Last step with a training loss that is a number and not exactly 0."""

    def add_train(self, step: int, loss: float | None, gradient_norm: float | None) -> float | None:
        """Watches a training step and returns its loss.

        The HF Trainer leaves losses that are no numbers out of its mean: 0 with a gradient that is not a number.
        """
        is_bad_gradient = gradient_norm is not None and not math.isfinite(gradient_norm)
        if gradient_norm is not None:
            self._gradient.add(step, is_bad_gradient, self._last_sound_step)
        if loss is None:
            return None
        if loss == 0 and is_bad_gradient:
            loss = math.nan
        self._train.add(step, not math.isfinite(loss), self._last_sound_step)
        self._zero.add(step, loss == 0, self._last_sound_step)
        if math.isfinite(loss) and loss != 0:
            self._last_sound_step = step
        return loss

    def add_evaluation(self, step: int, loss: float | None) -> float | None:
        """Watches the loss of a dev set and returns it if it is a number."""
        if loss is None:
            return None
        self._dev.add(step, not math.isfinite(loss), self._last_sound_step)
        return loss if math.isfinite(loss) else None

    def finish(self, run: ImportedRun) -> None:
        """Sets first_nan_step if figures were no numbers up to the end; notes those that recovered."""
        found = [self._train]
        if self._gradient.since is not None and self._gradient.num >= _ENOUGH_GRADIENTS:
            found.append(self._gradient)
            run.note(f"The gradient norm is not a number from step {self._gradient.since:,} to the end.")
        if self._dev.since is not None:
            found += self._found_by_evaluation(run, self._dev.since)
        steps = {streak.since: streak.sound_before for streak in reversed(found) if streak.since is not None}
        if steps:
            run.first_nan_step = min(steps)
            run.last_finite_step = steps[min(steps)]
        _note_recovered(run, self._train, "training loss")
        _note_recovered(run, self._dev, "loss of the dev set")

    def _found_by_evaluation(self, run: ImportedRun, since: int) -> list[_Streak]:
        """Returns the streaks of a broken model; for a broken evaluation of a sound model it adds a failure instead."""
        if self._last_sound_step is not None and self._last_sound_step > since:
            what = f"The loss of the dev set is not a number from step {since:,} to the end."
            run.add_failure(LogFailure(what, _BROKEN_EVALUATION, step=since, is_fatal=False))
            return []
        run.note(f"The loss of the dev set is not a number from step {since:,} to the end.")
        # A loss of exactly 0 beside a dev loss that is not a number is not a loss either.
        return [self._dev, self._zero]


def _note_recovered(run: ImportedRun, streak: _Streak, what: str) -> None:
    if streak.last_recovered is None:
        return
    times = "once" if streak.num_recovered == 1 else f"{streak.num_recovered:,} times"
    run.note(
        f"The {what} was not a number {times}, last from step {streak.last_recovered:,}, and was a number again later."
    )
