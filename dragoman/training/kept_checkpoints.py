"""Decides which checkpoints of a run folder stay, and points the links `latest` and `best` at steps."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dragoman.run.checkpoints import (
    STATE_FILE,
    AverageOf,
    SavedEvaluation,
    check_sizes,
    copied_step,
    is_copied_link,
    is_state_readable,
    rank_evaluation,
    rank_steps,
    read_evaluations,
    translator_files,
    verify_checkpoint,
)
from dragoman.run.config import CheckpointSettings, Metric, Settings
from dragoman.run.errors import UserError
from dragoman.run.files import replace_link
from dragoman.run.folder import RunFolder


@dataclass(frozen=True)
class FinalAverage:
    """Which checkpoints are averaged at the end of training: only regular ones.

    A request to stop leaves checkpoints at other steps. Without those, a resumed run averages what an uninterrupted one
    averages.
    """

    checkpoints: AverageOf
    every: int
    """Steps between regular checkpoints; for the best ones, between evaluations."""
    best_by: Metric

    @classmethod
    def from_settings(cls, settings: Settings) -> "FinalAverage | None":
        """Returns what the settings ask for; None where nothing is averaged."""
        if not settings.checkpoints.average:
            return None
        average = AverageOf.parse(settings.checkpoints.average)
        every = settings.checkpoints.save_every if average.order == "last" else settings.evaluation.evaluate_every
        return cls(average, every, settings.best_by)

    def choose(self, run: RunFolder, steps: Iterable[int]) -> list[int]:
        """Returns the steps among these that would be averaged."""
        return self.checkpoints.choose(run, self.regular(steps), self.best_by)[: self.checkpoints.number]

    def regular(self, steps: Iterable[int], last: int | None = None) -> list[int]:
        """Returns the steps that an uninterrupted run would have too, and the last one."""
        return [step for step in steps if step % self.every == 0 or step == last]


class KeptCheckpoints:
    """The last and the best checkpoints of a run; one object for the life of a process."""

    def __init__(
        self, run: RunFolder, keep: CheckpointSettings, best_by: Metric, average: FinalAverage | None = None
    ) -> None:
        """`average` keeps as many more as it needs."""
        self._run = run
        self._keep_last, self._keep_best = keep.keep_last, keep.keep_best
        self._best_by = best_by
        self._average = average
        if average is not None and average.checkpoints.order == "best":
            self._keep_best = max(self._keep_best, average.checkpoints.number)
        self._verified: set[int] = set()
        """Steps whose hashes were compared, or that this process has written."""
        self._damaged: set[int] = set()
        self._problems: list[str] = []

    def is_among_best(
        self, step: int, evaluation: SavedEvaluation, being_saved: tuple[int, SavedEvaluation] | None = None
    ) -> bool:
        """Whether a step with this evaluation would be among the best, counting one that is still being written.

        An older checkpoint of this step will be replaced, and later ones are left from before the run went back.
        """
        earlier = [other for other in self._run.checkpoint_steps() if other < step and self._is_complete(other)]
        evaluations = read_evaluations(self._run, earlier)
        if being_saved is not None and being_saved[0] < step:
            evaluations[being_saved[0]] = being_saved[1]
        tokenizer = evaluation.get("tokenizer")
        ranks = [rank_evaluation(other, each, self._best_by, tokenizer) for other, each in evaluations.items()]
        own = rank_evaluation(step, evaluation, self._best_by, tokenizer)
        return sum(rank < own for rank in ranks) < self._keep_best

    def add(self, step: int) -> list[str]:
        """Moves the links to what is kept now that this step was written, and removes the rest; returns new damage.

        Later steps stay: they are damaged, since the run was resumed from an earlier one, and will be written again.
        Damaged ones stay too: they may be unreadable only for now.
        """
        self._verified.add(step)
        self._damaged.discard(step)
        for name in ("latest", "best"):  # before the steps are listed: a copy may be the only one of its step
            if is_copied_link(link := self._run.checkpoints / name):
                self._remove_copy(link)
        self._point("latest", step)
        earlier = [other for other in self._run.checkpoint_steps() if other <= step]
        self._find_unranked_damage(earlier)
        kept = {*earlier[-self._keep_last :], *self._best(earlier, self._keep_best)}
        if self._average is not None:
            kept |= set(self._average.choose(self._run, earlier))
        self._point("best", next(iter(self._best(kept, 1)), None))
        for other in set(earlier) - kept - self._damaged:
            shutil.rmtree(self._run.checkpoint(other), ignore_errors=True)
        problems, self._problems = self._problems, []
        return problems

    def _best(self, steps: Iterable[int], number: int) -> list[int]:
        return list(islice(filter(self._is_intact, rank_steps(self._run, steps, self._best_by)), number))

    def _find_unranked_damage(self, steps: Iterable[int]) -> None:
        """Notes steps that have no rank because their state.json cannot be read; others were only not evaluated."""
        for step in steps:
            checkpoint = self._run.checkpoint(step)
            if not is_state_readable(checkpoint):
                self._note_damage(step, f"{checkpoint / STATE_FILE} is missing or damaged.")

    def _note_damage(self, step: int, problem: object) -> None:
        if step not in self._damaged:
            self._problems.append(f"The checkpoint of step {step:,} does not count among the best any more: {problem}")
        self._damaged.add(step)

    def _is_intact(self, step: int) -> bool:
        """Whether a translator can use it; compares hashes once, because that reads all weights, and sizes always."""
        checkpoint = self._run.checkpoint(step)
        try:
            if step in self._verified:
                check_sizes(checkpoint, translator_files(checkpoint))
            else:
                verify_checkpoint(checkpoint, translator_files(checkpoint))
        except UserError as error:
            self._note_damage(step, error)
            return False
        self._verified.add(step)
        self._damaged.discard(step)
        return True

    def _is_complete(self, step: int) -> bool:
        """Whether no damage is known and all sizes are right: quick enough for the training loop."""
        try:
            check_sizes(self._run.checkpoint(step), translator_files(self._run.checkpoint(step)))
        except UserError:
            return False
        return step not in self._damaged

    def _point(self, name: str, step: int | None) -> None:
        """Points a link at a step; without a step there is no link."""
        link = self._run.checkpoints / name
        if step is None:
            link.unlink(missing_ok=True)
        else:
            replace_link(link, self._run.checkpoint(step).name)

    def _remove_copy(self, folder: Path) -> None:
        """Removes what a tool copied in place of a link; a step that exists only there gets its own name."""
        with suppress(UserError):
            step = copied_step(folder)
            if step not in self._run.checkpoint_steps():
                folder.rename(self._run.checkpoint(step))
                return
        shutil.rmtree(folder)
