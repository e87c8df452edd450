"""Notices where replicas that learn apart hurt each other: the dev loss is worse than exact sums are expected to give.

What exact sums would give is not measured, but expected from the curve of all evaluations so far, the first of which
were made together. Overfitting is not the replicas' fault: it leaves the loss of training sentences falling.
"""

import math
from collections.abc import Sequence

from dragoman.diagnosis.forecast import forecast
from dragoman.diagnosis.learning_curve import RateOfStep

_CLEAR_RISE = 1.02
"""With too few evaluations for a curve, a loss counts as worse if it rose by this factor."""

DevLoss = tuple[int, float, float]
"""Step, loss of the dev set, loss of a sample of training sentences."""


def find_harm(earlier: Sequence[DevLoss], newest: DevLoss, rate: RateOfStep) -> str | None:
    """Returns how much worse the newest evaluation is than expected; None where it is not.

    `rate` is the learning rate as a function of the step.
    """
    step, loss, train_loss = newest
    if not math.isfinite(loss):
        return f"the dev loss is {loss}"
    if not earlier:
        return None
    _, last_loss, last_train_loss = earlier[-1]
    curve = forecast("loss", [each[0] for each in earlier], [each[1] for each in earlier], rate)
    if curve is not None:
        expected = curve.after(step - curve.last_step)
        is_worse = expected.is_sound and loss > expected.high and train_loss > last_train_loss
        return (
            f"the dev loss is {loss:.3f} instead of {expected.then:.3f} ± {expected.margin:.3f}" if is_worse else None
        )
    is_worse = loss > _CLEAR_RISE * last_loss and train_loss > _CLEAR_RISE * last_train_loss
    return f"the dev loss rose from {last_loss:.3f} to {loss:.3f}" if is_worse else None
