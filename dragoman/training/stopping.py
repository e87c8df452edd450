"""Why a run ends before its last step: a request, a budget that is used up, or gradients that are not finite."""

import math
import signal
import time
from collections import deque
from enum import IntEnum
from types import FrameType

from dragoman.cluster.heartbeat import PAUSE_SIGNAL
from dragoman.run.budget import Budget, MeasuredSeconds
from dragoman.run.config import TrainingSettings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.status import is_stop_requested
from dragoman.training.learner import LossScale
from dragoman.training.spent_time import SpentTime

LOOK_SECONDS = 1.0
MAX_SKIPS_IN_A_ROW = 50
_RECENT_STEPS = 20


class StopReason(IntEnum):
    """Why a run ends; ranks vote on it, and the largest value wins."""

    NONE = 0
    STEPS = 1
    PATIENCE = 2
    """The dev set did not get better for as many evaluations as evaluation.patience."""
    TIME = 3
    COST = 4
    HOST_BACK = 5
    SIGNAL = 6
    REQUEST = 7
    """`dragoman stop`: unlike a signal, which a job manager may send, it means that the run must not be restarted."""


class StopNotice:
    """Remembers stop signals; installed early, because before that they would kill the process."""

    def __init__(self) -> None:
        self.reason = StopReason.NONE

    def install(self) -> None:
        """Makes SIGTERM and SIGINT ask for an orderly end, and the launcher's PAUSE_SIGNAL for a pause."""
        for number in (signal.SIGTERM, signal.SIGINT, PAUSE_SIGNAL):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = max(self.reason, StopReason.HOST_BACK if number == PAUSE_SIGNAL else StopReason.SIGNAL)


class StepTimer:
    """Measures steps and evaluations, to know how long the run needs to end in good order."""

    def __init__(self, measured: MeasuredSeconds) -> None:
        self._measured = measured
        self._recent_steps: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._step_begin: float | None = None

    def begin_step(self) -> None:
        """Measures the step that ended now, with everything between two steps except an evaluation."""
        now = time.monotonic()
        if self._step_begin is not None:
            self._recent_steps.append(now - self._step_begin)
            self._measured.step = max(self._recent_steps)
        self._step_begin = now

    def add_evaluation(self, seconds: float) -> None:
        """Keeps what an evaluation took, and does not count it as a part of its step."""
        self._measured.evaluation = seconds
        self.leave_out(seconds)

    def leave_out(self, seconds: float) -> None:
        """Does not count time as a part of its step; a failed evaluation does not tell what a whole one takes."""
        if self._step_begin is not None:
            self._step_begin += seconds


class StopConditions:
    """Checks everything a run may stop for: a signal, a request in the run folder, a budget.

    Only the rank that is given the run folder looks for requests there.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        spent: SpentTime,
        notice: StopNotice,
        run: RunFolder | None = None,
        has_final_average: bool = False,
    ) -> None:
        """`has_final_average`: one more evaluation follows the last step, which a budget must allow."""
        self._has_final_average = has_final_average
        self.spent = spent
        self.timer = StepTimer(spent.measured)
        self._budget = Budget.from_settings(settings)
        self._notice = notice
        self._run = run
        self._last_look = 0.0

    def reason_before_step(self, is_evaluation_due: bool) -> StopReason:
        """Returns why this rank would stop after the step that begins now: with one more, the budget might not last."""
        self.timer.begin_step()
        measured = self.spent.measured
        for_average = measured.to_evaluate(self._budget) if self._has_final_average else 0.0
        return self._reason(measured.to_end_after_next_step(self._budget, is_evaluation_due) + for_average)

    def reason_to_stop_at_once(self) -> StopReason:
        """Returns why this rank would even interrupt an evaluation: there is just enough time left to save."""
        return self._reason(self.spent.measured.to_save)

    def _reason(self, reserve_seconds: float) -> StopReason:
        if self.is_asked_to_end():
            return self._notice.reason
        is_used_up = self.spent.seconds + reserve_seconds >= self._budget.seconds
        return StopReason[self._budget.reason.upper()] if is_used_up else StopReason.NONE

    def is_asked_to_end(self) -> bool:
        """Whether a signal or a request has come; looks into the run folder once a second."""
        # A launcher forwards a request as a signal, which may come before the next look.
        is_due = time.monotonic() - self._last_look > LOOK_SECONDS or self._notice.reason is StopReason.SIGNAL
        if self._run and is_due:
            self._last_look = time.monotonic()
            if is_stop_requested(self._run):
                self._notice.reason = StopReason.REQUEST
        return self._notice.reason is not StopReason.NONE


class FiniteGuard:
    """Ends a run whose gradients are NaN or infinite, with the likely cause."""

    def __init__(self, loss_scale: LossScale) -> None:
        self._loss_scale = loss_scale
        self._recent_norms: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._num_skips_in_a_row = 0

    def check(self, step: int, is_finite: bool, gradient_norm: float, learning_rate: float) -> None:
        """Raises a UserError at a gradient that is not finite, unless fp16 may recover by halving its loss scale."""
        if is_finite:
            self._recent_norms.append(gradient_norm)
            self._num_skips_in_a_row = 0
            return
        self._num_skips_in_a_row += 1
        if self._loss_scale.is_dynamic and self._num_skips_in_a_row < MAX_SKIPS_IN_A_ROW:
            return
        raise UserError(
            f"Training stopped at step {step}: the gradient is {'NaN' if math.isnan(gradient_norm) else 'infinite'}. "
            f"{self._likely_cause(learning_rate)} This step changed no weight, and the last checkpoint is good."
        )

    def _likely_cause(self, learning_rate: float) -> str:
        if self._loss_scale.is_dynamic:
            return (
                f"{MAX_SKIPS_IN_A_ROW} steps in a row overflowed in fp16, down to a loss scale of "
                f"{self._loss_scale.value:g}: the weights are probably too large; use precision bf16 or fp32."
            )
        advice = "lower training.learning_rate, raise training.warmup_steps or set training.clip_norm"
        if not self._recent_norms:
            return f"No step before it was good (learning rate {learning_rate:.2e}): {advice}."
        first, last = self._recent_norms[0], self._recent_norms[-1]
        if last > 10 * first:
            return (
                f"The gradient norm rose from {first:.3g} to {last:.3g} over the last {len(self._recent_norms)} steps, "
                f"so the learning rate ({learning_rate:.2e}) is probably too high: {advice}."
            )
        return (
            f"There was no sign of it before (norm {last:.3g} one step earlier, learning rate {learning_rate:.2e}): "
            f"{advice}."
        )
