"""The pace of a run: its recent speed and loss, and how long it still takes."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Self

from dragoman.diagnosis.wording import format_step
from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.budget import Budget
from dragoman.run.config import Settings
from dragoman.run.units import format_duration

_WINDOW_SECONDS = 30.0
_WINDOW_STEPS = 100
"""The recent steps are those of the last half minute, but at least a few and at most this many."""
_FEW_STEPS = 3
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class RunLength:
    """How far a run goes: its last step, its evaluations and its limits."""

    num_steps: int
    evaluate_every: int = 10**9
    budget: Budget = field(default_factory=Budget)
    price_per_hour: float | None = None
    growth: BatchGrowth = field(default_factory=lambda: BatchGrowth(1, 1))

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Returns the length of a run."""
        training, every = settings.training, settings.evaluation.evaluate_every
        budget = Budget.from_settings(training)
        return cls(training.max_steps, every, budget, training.price_per_hour, training.batch_growth)

    def num_evaluations_after(self, step: int) -> int:
        """Counts the evaluations of later steps; the last step is always evaluated."""
        at_end = self.num_steps % self.evaluate_every != 0 and step < self.num_steps
        return self.num_steps // self.evaluate_every - step // self.evaluate_every + at_end


@dataclass(frozen=True)
class FinishedStep:
    """Figures of one step, as the first rank knows them without asking the others."""

    seconds: float
    num_target_tokens: int = 0
    """Target tokens of all ranks."""
    loss_sum: float = 0.0
    num_loss_tokens: int = 0
    """Target tokens that the loss was summed over: those of the first rank."""
    spent_seconds: float = 0.0
    """Training time up to this step, over all restarts."""
    batch_share: float = 1.0
    """Size of the batch as a share of a full one."""


class Pace:
    """Follows the steps of a run and says how fast it is and how long it still takes."""

    def __init__(self, length: RunLength, expected_seconds: float | None = None) -> None:
        self.length = length
        self._expected_seconds = expected_seconds
        self._recent: deque[FinishedStep] = deque(maxlen=_WINDOW_STEPS)
        self._num_steps = 0
        self._spent_seconds = 0.0
        self.evaluation_seconds: float | None = None
        self._evaluated_step = 0

    def expect(self, seconds_per_full_step: float) -> None:
        """Uses a predicted speed until steps have been made."""
        self._expected_seconds = seconds_per_full_step

    def spend(self, seconds: float) -> None:
        """Notes the training time before this start, which counts for the budgets."""
        self._spent_seconds = seconds

    def add_step(self, step: FinishedStep) -> None:
        """Adds a step; the first one, which is slower than all others, counts only until the second is made."""
        if self._num_steps == 1:
            self._recent.clear()
        self._num_steps += 1
        self._recent.append(step)
        self._spent_seconds = step.spent_seconds
        while len(self._recent) > _FEW_STEPS and sum(each.seconds for each in self._recent) > _WINDOW_SECONDS:
            self._recent.popleft()

    def add_evaluation(self, step: int, seconds: float) -> None:
        """Adds the evaluation of a step."""
        self._evaluated_step, self.evaluation_seconds = step, seconds

    @property
    def seconds_per_full_step(self) -> float | None:
        """Mean of the recent steps, without evaluations; before the first step, the predicted speed.

        Smaller batches count in proportion to their tokens.
        """
        if not self._recent:
            return self._expected_seconds
        return sum(each.seconds for each in self._recent) / sum(each.batch_share for each in self._recent)

    @property
    def tokens_per_second(self) -> float | None:
        """Target tokens of all ranks per second."""
        seconds = sum(each.seconds for each in self._recent)
        return sum(each.num_target_tokens for each in self._recent) / seconds if seconds else None

    @property
    def loss(self) -> float | None:
        """Loss per target token of the recent steps, on the first rank."""
        # A step that overflows in fp16 is skipped, and its loss with it.
        usable = [each for each in self._recent if each.num_loss_tokens and math.isfinite(each.loss_sum)]
        num_tokens = sum(each.num_loss_tokens for each in usable)
        return sum(each.loss_sum for each in usable) / num_tokens if usable else None

    def seconds_left(self, step: int) -> float | None:
        """Seconds until the last step or the end of a budget, with evaluations once one was timed."""
        if self.seconds_per_full_step is None:
            return None
        seconds = self.length.growth.full_steps(step, self.length.num_steps) * self.seconds_per_full_step
        return min(seconds + self._seconds_of_evaluations(step), self._seconds_of_budget)

    def _seconds_of_evaluations(self, step: int) -> float:
        """Seconds of the evaluations to come, that of this step included if it was not made yet."""
        num_evaluations = self.length.num_evaluations_after(max(0, self._evaluated_step, step - 1))
        return num_evaluations * (self.evaluation_seconds or 0.0)

    @property
    def _seconds_of_budget(self) -> float:
        return max(0.0, self.length.budget.seconds - self._spent_seconds)

    def describe_expectation(self, step: int) -> str:
        """Says how long the steps after this one will take, and what they cost; empty where that is not known."""
        seconds_per_step, seconds = self.seconds_per_full_step, self.seconds_left(step)
        growth = self.length.growth
        num_left = self.length.num_steps - step
        if not seconds_per_step or seconds is None or num_left <= 0:
            return ""
        price = self.length.price_per_hour
        cost = "" if price is None else f" and a cost of about {seconds / SECONDS_PER_HOUR * price:,.2f}"
        at_first = "" if growth.share_at(step) == 1 else f"{format_step(growth.share_at(step) * seconds_per_step)} to "
        steps = f"{num_left:,} {'more ' if step else ''}steps at {at_first}{format_step(seconds_per_step)} a step"
        if seconds == self._seconds_of_budget:
            full_steps = max(0.0, seconds - self._seconds_of_evaluations(step)) / seconds_per_step
            num_made = growth.steps_within(growth.full_steps(0, step) + full_steps) - step
            return (
                f"Expected: {format_duration(seconds)}{cost}, until {self.length.budget.setting} ends the run after "
                f"about {num_made:,} of {steps}."
            )
        on_top = "evaluations included" if self.evaluation_seconds is not None else "and evaluations come on top"
        return f"Expected: about {format_duration(seconds)}{cost} for {steps}, {on_top}."
