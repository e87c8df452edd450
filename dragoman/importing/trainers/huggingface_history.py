"""Turns the entries that the HF Trainer logs (trainer_state.json and printed dicts alike) into records and facts."""

import math
import re
from typing import Any

from dragoman.importing.curves.score_scale import scale_scores
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import is_usable
from dragoman.importing.nan_watch import NanWatch

TRAINER = "HF Trainer"

_TRAIN_NAMES = {"loss": "loss", "grad_norm": "gradient_norm", "learning_rate": "learning_rate"}
_EVALUATED = {
    "loss": "loss",
    "bleu": "bleu",
    "sacrebleu": "bleu",
    "chrf": "chrf",
    "ter": "ter",
    "accuracy": "accuracy",
    "perplexity": "perplexity",
    "runtime": "seconds",
}
# With several dev sets the name of the set stands first, as in eval_news_loss.
_EVALUATION_NAME = re.compile(rf"eval_(?:(\w{{1,100}})_)?({'|'.join(_EVALUATED)})(?:_score)?", re.ASCII)
_NO_SCORE = ("_per_second", "_time", "_runtime", "_samples", "_mem_", "_delta")
_MAX_OTHER_SCORES = 20
_LOSS_NOTE = "The loss is what the model's own code returned: most likely the mean over the tokens of one batch."
_LARGEST_MISSING_SHARE = 0.02
"""train_steps_per_second and train_loss may be this much less than those of all steps, and still be of all steps."""
_SAME_SUM = 0.003
"""Largest relative difference of two sums of losses, one of them of rounded losses."""
_FEWEST_LOSSES = 5


class History:
    """Adds the entries of one run in order, then the facts that need all of them."""

    def __init__(self, run: ImportedRun) -> None:
        run.trainer = TRAINER
        self._run = run
        self._watch = NanWatch()
        self._evaluation: tuple[int, dict[str, Any]] | None = None
        self._dev_set: str | None = None
        """The first dev set, which the curves are about; empty if it has no name."""
        self._summary: tuple[int, dict[str, float]] | None = None
        self._launch_step = 0
        """Step from which the newest launch continued."""
        self._is_continued = False
        """Whether a launch was continued and has logged no step yet."""
        self._first_losses: dict[str, float] = {}
        self._losses: list[tuple[int, float]] = []
        """Step and mean loss since the entry before."""
        self._epoch = 0.0

    def add(self, step: int | None, figures: dict[str, float], **clock: float | None) -> None:
        """Adds one entry: a training step, an evaluation, or the summary at the end of training."""
        if step is None:
            return
        if "loss" in figures:
            self._add_train(step, figures, clock)
        elif "train_runtime" in figures:
            self._summary_of_launch(step, figures)
        elif any(_EVALUATION_NAME.fullmatch(name) for name in figures):
            self._add_evaluation(step, figures)

    def continue_from(self, step: int) -> None:
        """Notes that the next launch continues from a checkpoint."""
        self._launch_step = step
        self._is_continued = True

    @property
    def has_ended(self) -> bool:
        """Whether the summary came that the Trainer writes when training is over."""
        return self._summary is not None

    @property
    def summary_step(self) -> int | None:
        """The step of that summary."""
        return None if self._summary is None else self._summary[0]

    def finish(self) -> None:
        """Adds the facts that need the whole history."""
        self.write_evaluation()
        self._watch.finish(self._run)
        scale_scores(self._run)
        if self._summary is not None:
            self._add_times(*self._summary)
        self._note_accumulated_loss()
        if self._dev_set:
            self._run.facts["dev_set"] = self._dev_set
        self._run.facts["loss_unit"] = "nats per token"
        self._run.note(_LOSS_NOTE)
        self._run.note_missing_facts()

    def _add_train(self, step: int, figures: dict[str, float], clock: dict[str, float | None]) -> None:
        self.write_evaluation()
        self._summary = None  # an earlier launch ended; this one has not
        run = self._run
        self._watch_for_restart(step, figures.get("epoch", self._epoch))
        named = {ours: figures[name] for name, ours in _TRAIN_NAMES.items() if name in figures}
        loss = self._watch.add_train(step, named["loss"], named.get("gradient_norm"))
        if "train_runtime" in figures:
            clock = {"training_seconds": figures["train_runtime"], **clock}
        run.add_train(step, **(named | {"loss": loss}), **clock)
        self._first_losses.setdefault("train", named["loss"])
        self._losses.append((step, named["loss"]))

    def _watch_for_restart(self, step: int, epoch: float) -> None:
        """Adds a restart that the history shows: a step back, or epochs that count from the beginning again.

        A data set that is streamed begins again when a run is continued, and so do its epochs.
        """
        run, newest = self._run, self._run.newest_step
        if not self._is_continued and run.is_step_back(step):
            run.add_restart(step, cause="the history goes back to an earlier step")
            self._losses = [each for each in self._losses if each[0] < step]
        elif not self._is_continued and newest is not None and epoch < self._epoch:
            run.add_restart(newest, cause="continued from a checkpoint: epochs begin again")
            run.count_attempt()
            self._launch_step = newest
        self._is_continued, self._epoch = False, epoch

    def _add_evaluation(self, step: int, figures: dict[str, float]) -> None:
        """Adds to the evaluation of this step; what it has already stays.

        A later evaluation at the last step may be of the best model, which was loaded at the end.
        """
        if self._evaluation is not None and self._evaluation[0] != step:
            self.write_evaluation()
        known = self._evaluation[1] if self._evaluation else {}
        matches = {name: match for name in figures if (match := _EVALUATION_NAME.fullmatch(name))}
        if self._dev_set is None:
            sets = [match[1] or "" for match in matches.values()]
            self._dev_set = "" if "" in sets else sets[0]
        for name, value in figures.items():
            match = matches.get(name)
            if match and (match[1] or "") == self._dev_set:
                known.setdefault(_EVALUATED[match[2]], value)
            elif name.startswith("eval_") and is_usable(value) and not any(part in name for part in _NO_SCORE):
                scores = known.setdefault("other_scores", {})
                if len(scores) < _MAX_OTHER_SCORES:
                    scores.setdefault(name.removeprefix("eval_"), value)
        self._evaluation = (step, known)

    def write_evaluation(self) -> None:
        """Adds the evaluation that may not be complete before the next entry."""
        if self._evaluation is None:
            return
        step, figures = self._evaluation
        self._evaluation = None
        loss = self._watch.add_evaluation(step, figures.get("loss"))
        if loss is not None:
            self._first_losses.setdefault("evaluation", loss)
        self._run.add_evaluation(step, **(figures | {"loss": loss}))

    def _summary_of_launch(self, step: int, figures: dict[str, float]) -> None:
        self.write_evaluation()
        if self._summary is not None:
            return
        self._summary = (step, figures)
        facts, seconds = self._run.facts, figures["train_runtime"]
        if 0 < seconds < math.inf:
            facts["training_seconds"] = facts.get("training_seconds", 0.0) + seconds

    def _add_times(self, step: int, figures: dict[str, float]) -> None:
        """Sets the time per step: the Trainer counts only the time of the last launch, but maybe the steps of all."""
        seconds = figures["train_runtime"]
        made = seconds * figures.get("train_steps_per_second", 0.0)
        evaluating = sum(each.get("seconds", 0.0) for each in self._run.records if each["kind"] == "evaluation")
        self._find_launch_step(step, figures.get("train_loss"))
        num_steps: float = step - self._launch_step
        if not (0 < seconds < math.inf) or num_steps <= 0:
            return
        if not self._launch_step and 0 < made < (1 - _LARGEST_MISSING_SHARE) * step:
            num_steps = made
        is_partial = num_steps < step
        if is_partial or evaluating > seconds:
            self._run.note(
                f"train_runtime ({seconds:,.0f} s) is the time of the last launch only: the run was continued from a "
                "checkpoint, so the whole run took longer."
            )
            self._run.facts.pop("training_seconds", None)
        if is_partial:
            self._run.facts["timed_steps"] = round(num_steps)
        if is_partial or evaluating <= seconds:
            self._run.facts["mean_seconds_per_step"] = seconds / num_steps
            self._run.facts["step_time_includes_evaluation"] = True

    def _find_launch_step(self, step: int, mean_loss: float | None) -> None:
        """Finds where the last launch began, if nothing else told: it adds up its own losses, but divides by all steps.

        Newer versions divide all steps by its time too, so train_steps_per_second does not show it.
        """
        logged = self._losses
        if self._launch_step or mean_loss is None or len(logged) < _FEWEST_LOSSES or logged[-1][0] > step:
            return
        wanted, found = mean_loss * step, logged[-1][1] * (step - logged[-1][0])
        begins = [0, *(each for each, _ in logged)]
        sums = {}
        for begin, (end, loss) in zip(reversed(begins[:-1]), reversed(logged), strict=True):
            found += loss * (end - begin)
            sums[begin] = found
        if not wanted > 0 or not sums[0] < math.inf or wanted >= (1 - _LARGEST_MISSING_SHARE) * sums[0]:
            return
        nearest = min(sums, key=lambda begin: abs(sums[begin] - wanted))
        if nearest and abs(sums[nearest] - wanted) <= _SAME_SUM * wanted:
            self._launch_step = nearest
            self._run.insert_restart(nearest, cause="continued from a checkpoint: train_loss is of fewer steps")

    def _note_accumulated_loss(self) -> None:
        num = self._run.facts.get("accumulation", 1)
        train, dev = self._first_losses.get("train", 0.0), self._first_losses.get("evaluation", 0.0)
        if num > 1 and dev > 0 and 0.75 * num < train / dev < 1.5 * num and train / dev > 1.5:
            self._run.note(
                f"The training loss begins {train / dev:.1f} times as large as the dev loss, and {num} batches make "
                "one step: some versions of transformers add up the losses of these batches. Do not compare them."
            )
