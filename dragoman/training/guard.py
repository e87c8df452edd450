"""Guards against infinite gradients: the dynamic loss scale, and the end of a run that only makes NaN."""

import math
from collections import deque
from dataclasses import dataclass

from dragoman.run.errors import UserError

FIRST_SCALE = 2.0**14
GOOD_STEPS_TO_DOUBLE = 2_000


@dataclass
class LossScale:
    """Halves when gradients overflow, doubles after 2,000 good steps; stays at 1 unless training in fp16."""

    is_dynamic: bool
    value: float = 1.0
    num_good_steps: int = 0
    num_skipped_steps: int = 0

    @classmethod
    def start(cls, precision: str) -> "LossScale":
        """The scale a run begins with."""
        return cls(is_dynamic=True, value=FIRST_SCALE) if precision == "fp16" else cls(is_dynamic=False)

    def update(self, is_finite: bool) -> None:
        """Learns from one step whether the scale was right."""
        if not self.is_dynamic:
            return
        if not is_finite:
            self.value /= 2
            self.num_good_steps = 0
            self.num_skipped_steps += 1
            return
        self.num_good_steps += 1
        if self.num_good_steps == GOOD_STEPS_TO_DOUBLE:
            self.value *= 2
            self.num_good_steps = 0


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
