"""How far a run came: steps done of steps planned, warm-up, and what the rest would take."""

import math
from dataclasses import dataclass, replace

from dragoman.report.evidence import Evidence
from dragoman.run.units import counted

FEW_STEPS = 10
"""A model that made no more steps than this is as good as untrained."""


@dataclass(frozen=True)
class RunProgress:
    """Steps done of steps planned."""

    steps_done: int
    steps_planned: int | None
    epochs_done: float | None
    epochs_planned: float | None
    warmup_steps: int | None
    is_over: bool
    """Whether the run did what it was to do, as far as its records can show."""
    seconds_left: float | None
    """Time of the steps that are left; None where that is not known, or where the run is over."""
    cost_left: float | None
    unit: str = "step"
    """Name of what one step counts: an update, or an epoch, a checkpoint or a line of the log."""

    @property
    def share(self) -> float | None:
        """Share of the plan that was done, 0 to 1; None without a plan. A run ends with the first limit it reaches."""
        shares = []
        if self.steps_planned:
            shares.append(self.steps_done / self.steps_planned)
        if self.epochs_planned and self.epochs_done is not None:
            shares.append(self.epochs_done / self.epochs_planned)
        return min(1.0, max(shares)) if shares else None

    @property
    def is_unfinished(self) -> bool:
        """Whether the run is known to have done less than it was to do."""
        return not self.is_over and self.share is not None and self.share < 1

    @property
    def percent(self) -> str:
        """The share in percent, rounded down: only a complete run shows 100%, and only one without a step 0%."""
        percent = 100 * (self.share or 0.0)
        return f"{math.floor(percent)}%" if percent >= 1 or not percent else f"{max(0.001, percent):.1g}%"

    @property
    def is_warming_up(self) -> bool:
        """Whether the learning rate was still rising at the last step."""
        return bool(self.warmup_steps) and self.steps_done < (self.warmup_steps or 0)

    @property
    def is_untrained(self) -> bool:
        """Whether so few steps were made that no figure says anything about the model."""
        is_few = self.steps_done <= FEW_STEPS if self.unit == "step" else self.steps_done < 1
        return is_few and not (self.is_over and self.steps_done > 0)

    def describe(self) -> str:
        """Says what was done of what was planned: "45,000 of 300,000 planned steps (15%)"."""
        if self.steps_planned and self.steps_done / self.steps_planned >= (self.share or 0.0):
            return f"{self.steps_done:,} of {self.steps_planned:,} planned {self.unit}s ({self.percent})"
        if self.epochs_planned and self.epochs_done is not None:
            return f"{self.epochs_done:.3g} of {self.epochs_planned:g} planned epochs ({self.percent})"
        return counted(self.steps_done, self.unit)


def find_progress(evidence: Evidence, seconds_per_step: float | None) -> RunProgress:
    """Compares what was done with the plan of the run itself; `seconds_per_step` is the time of a full step."""
    facts, done, planned = evidence.facts, evidence.last_step or 0, evidence.steps_planned
    epochs = [record.epoch for record in evidence.train if record.epoch is not None]
    epochs_done = facts.epochs_done if facts.epochs_done is not None else max(epochs, default=None)
    # The last steps of a run may not have been logged.
    is_near_end = planned is not None and planned - done < max(evidence.train_steps, default=0)
    is_over = evidence.state == "finished" or is_near_end
    progress = RunProgress(
        done, planned, epochs_done, facts.epochs_planned, _warmup(evidence), is_over, None, None, evidence.step_noun
    )
    if seconds_per_step is None or not progress.is_unfinished or not progress.share or not done:
        return progress
    steps_in_all = round(done / progress.share)
    seconds_left = evidence.batch_growth.full_steps(done, steps_in_all) * seconds_per_step
    price = evidence.price_per_hour
    cost_left = None if price is None else price * seconds_left / 3600
    return replace(progress, seconds_left=seconds_left, cost_left=cost_left)


def _warmup(evidence: Evidence) -> int | None:
    warmup = evidence.warmup_steps
    return int(warmup) if warmup and warmup >= 1 else None
