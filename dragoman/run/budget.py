"""The time that a run may take and has taken, as the launcher and the workers know it. Does not import torch.

spent.json keeps it apart from checkpoints: a crash gives back steps, but no time.
"""

import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from dragoman.run.files import read_json, write_json
from dragoman.run.folder import RunFolder
from dragoman.run.records import number_or_none

if TYPE_CHECKING:
    from dragoman.run.config import TrainingSettings

WRITE_SECONDS = 5.0
"""Time between two writes of spent.json."""
END_SECONDS = 1.0
"""What it takes to close files and end the processes."""
_UNKNOWN_EVALUATION_SHARE = 0.1
_UNKNOWN_EVALUATION_SECONDS = 600.0
"""What is kept for the first evaluation: this share of the budget, but not more than these seconds."""


@dataclass(frozen=True)
class Budget:
    """The seconds that a run may take, and what limits them."""

    seconds: float = math.inf
    reason: str = "none"
    """The name of a `StopReason` in lower case: time, cost or none."""

    @property
    def setting(self) -> str:
        """The setting that limits the run; empty if none does."""
        return {"time": "training.max_hours", "cost": "training.max_cost"}.get(self.reason, "")

    @classmethod
    def from_settings(cls, training: "TrainingSettings") -> Self:
        """Returns the smaller one of max_hours and max_cost."""
        return cls.smaller(training.max_hours, training.max_cost, training.price_per_hour)

    @classmethod
    def smaller(cls, max_hours: float | None, max_cost: float | None, price_per_hour: float | None) -> Self:
        """Returns the smaller one of two limits, each of which may be missing."""
        budgets = []
        if max_cost is not None and price_per_hour:
            budgets.append(cls(max_cost / price_per_hour * 3600, "cost"))
        if max_hours is not None:
            budgets.append(cls(max_hours * 3600, "time"))
        return min(budgets, key=lambda budget: budget.seconds, default=cls())


@dataclass
class MeasuredSeconds:
    """What the parts of a run took when they were measured last; 0 if never."""

    start: float = 0.0
    """From the launcher's order to start until the first step can begin."""
    step: float = 0.0
    """The longest of the last steps."""
    evaluation: float = 0.0
    checkpoint: float = 0.0

    @property
    def to_save(self) -> float:
        """Seconds for a checkpoint that is being written, the last one, and the end of the processes."""
        return 2 * self.checkpoint + END_SECONDS

    def to_evaluate(self, budget: Budget) -> float:
        """Seconds for an evaluation; one that was never measured is assumed to take a share of the budget."""
        return self.evaluation or min(_UNKNOWN_EVALUATION_SHARE * budget.seconds, _UNKNOWN_EVALUATION_SECONDS)

    def to_end_after_next_step(self, budget: Budget, is_evaluation_due: bool) -> float:
        """Seconds for this step, its evaluation if one is due, the next step, and the end of the run."""
        num_evaluations = 2 if is_evaluation_due else 1
        return 2 * self.step + num_evaluations * self.to_evaluate(budget) + self.to_save

    def to_start_and_end(self, budget: Budget) -> float:
        """Seconds to start workers for a single step, and the end of the run."""
        return self.start + self.step + self.to_evaluate(budget) + self.to_save


@dataclass(frozen=True)
class SpentRecord:
    """Content of spent.json."""

    seconds: float
    """What the run has taken, over all launchers."""
    launch: str
    """The name of the launcher whose workers wrote this."""
    launch_seconds: float
    """How long that launcher had been running."""
    measured: MeasuredSeconds

    def seconds_before(self, launch: str) -> float:
        """Returns the seconds that the run had taken when a launcher began."""
        if self.launch == launch:
            return max(0.0, self.seconds - self.launch_seconds)
        # A launcher that was killed has spent up to WRITE_SECONDS more than its workers could write.
        return self.seconds + WRITE_SECONDS

    def write(self, run: RunFolder) -> None:
        """Writes the file; a full disk must not end a run, and the next write catches up."""
        with suppress(OSError):
            write_json(run.spent, asdict(self))


def read_spent(run: RunFolder) -> SpentRecord | None:
    """Reads spent.json; None where it is missing or damaged."""
    try:
        found = read_json(run.spent)
        seconds, launch_seconds = (number_or_none(found[name]) for name in ("seconds", "launch_seconds"))
        names = ("start", "step", "evaluation", "checkpoint")
        measured = MeasuredSeconds(*(number_or_none(found["measured"].get(name)) or 0.0 for name in names))
        launch = str(found["launch"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None if seconds is None or launch_seconds is None else SpentRecord(seconds, launch, launch_seconds, measured)
