"""Stops a run whose numbers have gone bad, and says why they probably did.

One public run of the seeds' job trained 17.5 hours on NaN because nothing looked.
"""

import math
from collections import deque

from dragoman.run.errors import UserError
from dragoman.training.loss_scale import LossScale

MOST_SKIPS_IN_A_ROW = 50
RECENT_STEPS = 20


class FiniteGuard:
    """Watches every step's gradient norm."""

    def __init__(self, loss_scale: LossScale) -> None:
        self._loss_scale = loss_scale
        self._recent_norms: deque[float] = deque(maxlen=RECENT_STEPS)
        self._num_skips_in_a_row = 0

    def check(self, step: int, is_finite: bool, gradient_norm: float, learning_rate: float) -> None:
        """Remembers a good step; a bad one raises a UserError, unless fp16 may still recover by halving its scale."""
        if is_finite:
            self._recent_norms.append(gradient_norm)
            self._num_skips_in_a_row = 0
            return
        self._num_skips_in_a_row += 1
        if self._loss_scale.is_dynamic and self._num_skips_in_a_row < MOST_SKIPS_IN_A_ROW:
            return
        raise UserError(
            f"Training stopped at step {step}: the gradient is {'NaN' if math.isnan(gradient_norm) else 'infinite'}. "
            f"{self._likely_cause(learning_rate)} No weight was changed by this step; the last checkpoint is good."
        )

    def _likely_cause(self, learning_rate: float) -> str:
        if self._loss_scale.is_dynamic:
            return (
                f"{MOST_SKIPS_IN_A_ROW} steps in a row overflowed in fp16, down to a loss scale of "
                f"{self._loss_scale.value:g}: the weights are probably too large; use precision bf16 or fp32."
            )
        advice = "lower training.learning_rate, lengthen training.warmup_steps or set training.clip_norm"
        if not self._recent_norms:
            return f"It was so from the first step (learning rate {learning_rate:.2e}): {advice}."
        first, last = self._recent_norms[0], self._recent_norms[-1]
        if last > 10 * first:
            return (
                f"The gradient norm rose from {first:.3g} to {last:.3g} over the last {len(self._recent_norms)} steps, "
                f"so the learning rate ({learning_rate:.2e}) is probably too high: {advice}."
            )
        return f"It came suddenly (norm {last:.3g} one step before, learning rate {learning_rate:.2e}): {advice}."
