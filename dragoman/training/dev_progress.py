"""Follows whether evaluations get better, for early stopping and for the schedule "plateau"."""

from dataclasses import dataclass, replace
from typing import Any

from dragoman.run.checkpoints import SavedEvaluation, rank_evaluation
from dragoman.run.config import Metric, Settings


@dataclass(frozen=True)
class DevProgress:
    """The best evaluation so far and what followed from those after it; part of every checkpoint."""

    best: SavedEvaluation | None = None
    num_without_better: int = 0
    """Evaluations since the best one."""
    num_on_plateau: int = 0
    """Evaluations since the best one or since the learning rate was lowered, without those during warm-up."""
    num_cuts: int = 0
    """How often the learning rate was lowered."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "DevProgress":
        """Reads what state.json holds."""
        return cls(**values)

    def after(self, evaluation: SavedEvaluation, settings: Settings, num_updates: int) -> "DevProgress":
        """Counts an evaluation that was made after this number of updates."""
        if self.best is None or is_better(evaluation, self.best, settings.evaluation.metric):
            return replace(self, best=evaluation, num_without_better=0, num_on_plateau=0)
        training = settings.training
        is_counted = training.schedule == "plateau" and num_updates >= training.warmup_steps
        num_on_plateau = self.num_on_plateau + is_counted
        is_cut = num_on_plateau >= training.plateau_patience
        return DevProgress(
            self.best, self.num_without_better + 1, 0 if is_cut else num_on_plateau, self.num_cuts + is_cut
        )

    def is_patience_over(self, settings: Settings) -> bool:
        """Whether the run should end because it does not get better."""
        return 0 < settings.evaluation.patience <= self.num_without_better


def is_better(evaluation: SavedEvaluation, other: SavedEvaluation, metric: Metric) -> bool:
    """Compares by the metric, and by loss where it is equal: BLEU is 0 at first, while the loss already falls."""
    tokenizer = other.get("tokenizer")
    ranks = [rank_evaluation(0, each, metric, tokenizer)[:2] for each in (evaluation, other)]
    return ranks[0] < ranks[1]
