"""The checkpoint to use: the best by the score of the translations where there is one, otherwise by the dev loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.report.scores import TaskScore, score_of
from dragoman.run.records import EvaluationRecord

BY_LOSS = "dev loss"


@dataclass(frozen=True)
class BestCheckpoint:
    """The step whose checkpoint is the best."""

    step: int
    by: str
    """Name of the figure that decides: BLEU, chrF, dev loss."""
    value: float
    shown: str
    """The value, formatted."""
    is_averaged: bool = False
    """Whether the figure is that of averaged weights."""
    unit: str = "step"
    """Name of what one step of the records is."""

    def describe(self) -> str:
        """Names the step and the figure that makes it the best."""
        extreme = "the lowest" if self.by == BY_LOSS else "the best"
        weights = " with averaged weights" if self.is_averaged else ""
        return f"{self.unit} {self.step:,} ({self.by} {self.shown}{weights}, {extreme})"

    def to_json(self) -> dict[str, Any]:
        """Returns the values of report.json."""
        averaged = {"weights": "averaged"} if self.is_averaged else {}
        return {"step": self.step, "by": self.by, "value": self.value} | averaged


def find_best_checkpoint(
    evaluations: Sequence[EvaluationRecord],
    score: TaskScore | None,
    is_by_loss: bool = False,
    is_fine_tuned: bool = False,
) -> BestCheckpoint | None:
    """Finds the best evaluation of trained weights; equal scores are ordered by loss. None where nothing was evaluated.

    Those of step 0 are trained only where the run started from another one.
    """
    trained = [record for record in evaluations if record.step > 0 or is_fine_tuned]
    if score is not None and not is_by_loss:
        sign = 1 if score.is_lower_better else -1
        scored = [(record, value) for record in trained if (value := score_of(record, score.key)) is not None]
        best, value = min(scored, key=lambda found: (sign * found[1], _loss_or_infinity(found[0])))
        return BestCheckpoint(best.step, score.name, value, score.format(value), best.weights == "averaged")
    by_loss = [record for record in trained if record.loss is not None]
    if not by_loss:
        return None
    lowest = min(by_loss, key=_loss_or_infinity)
    loss = _loss_or_infinity(lowest)
    return BestCheckpoint(lowest.step, BY_LOSS, loss, f"{loss:.4f}", lowest.weights == "averaged")


def _loss_or_infinity(record: EvaluationRecord) -> float:
    return float("inf") if record.loss is None else record.loss
