"""Evaluates a run on its dev set: the trained weights, and their average if there is one; the better ones count."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from dragoman.cluster.failure import write_traceback
from dragoman.cluster.step_clock import Part
from dragoman.cluster.world import World
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.evaluation.validation import Evaluation, EvaluationFailedError, evaluate_on_dev, save_translations
from dragoman.monitoring.watcher import Watcher
from dragoman.run.checkpoints import SavedEvaluation, WeightsName
from dragoman.run.commands import command_for
from dragoman.run.config import Settings
from dragoman.run.errors import describe_fault
from dragoman.run.folder import RunFolder
from dragoman.training.dev_progress import is_better
from dragoman.training.learner import Learner
from dragoman.training.stopping import StopConditions, StopReason
from dragoman.training.weight_average import WeightAverage

_SAVED = ("loss", "bleu", "chrf", "tokenizer")


@dataclass(frozen=True)
class JudgedWeights:
    """The evaluation of the better one of two sets of weights."""

    evaluation: Evaluation
    weights: WeightsName
    other: SavedEvaluation | None
    """Figures of the other weights; None where there is no average."""
    seconds: float
    """What evaluating both took."""

    def is_average_better(self, settings: Settings) -> bool:
        """Whether the average, which was evaluated last, is better than the trained weights."""
        return self.other is not None and is_better(_saved(self.evaluation), self.other, settings.best_by)

    def saved(self) -> SavedEvaluation:
        """Returns the figures for state.json."""
        return _saved(self.evaluation) | ({} if self.other is None else {"weights": self.weights})

    def figures(self) -> dict[str, Any]:
        """Returns the figures for metrics.jsonl; those of the other weights are beside them."""
        figures = self.evaluation.figures() | {"seconds": self.seconds}
        return figures if self.other is None else figures | {"weights": self.weights, "other_weights": self.other}


def _saved(evaluation: Evaluation) -> SavedEvaluation:
    return {name: getattr(evaluation, name) for name in _SAVED}


@dataclass(frozen=True)
class DevEvaluator:
    """Evaluates the model of a run at any step, and reports the result."""

    run: RunFolder
    settings: Settings
    corpus: PreparedCorpus
    world: World
    watcher: Watcher
    stop: StopConditions
    learner: Learner
    agreed_weights: Callable[[], AbstractContextManager[None]] = nullcontext
    """Lets the model compute with the weights that are judged, where ranks have different ones."""

    def evaluate(self, step: int) -> JudgedWeights | StopReason:
        """Collective: evaluates the weights and their average, and reports; returns why there is no result.

        That is NONE where it failed: a model that cannot be judged now can still be trained and saved.
        """
        judged = self._measure(step, self._judge_both)
        if isinstance(judged, JudgedWeights):
            self.report(step, judged)
        return judged

    def evaluate_average(
        self, step: int, average: WeightAverage, trained: SavedEvaluation
    ) -> JudgedWeights | StopReason:
        """Collective: evaluates only an average, beside trained weights whose figures are known; reports nothing."""
        return self._measure(step, lambda: self._judge_average(average, trained))

    def report(self, step: int, judged: JudgedWeights) -> None:
        """Writes the record of an evaluation, and on the first rank its translations."""
        self.watcher.evaluated(step, judged.figures())
        if self.world.is_first:
            self._save_translations(step, judged.evaluation)

    def _measure(self, step: int, judge: Callable[[], JudgedWeights | None]) -> JudgedWeights | StopReason:
        """Collective: counts the time of an evaluation, which may fail or be interrupted."""
        self.learner.clock.switch(Part.EVALUATION)
        begin = time.perf_counter()
        try:
            judged = judge()
        except EvaluationFailedError as error:
            self.stop.timer.leave_out(time.perf_counter() - begin)
            self._report_failure(step, error)
            return StopReason.NONE
        finally:
            self.learner.clock.switch(Part.OTHER)
        if judged is None:
            return StopReason(self.world.start_vote(self.stop.reason_to_stop_at_once()).result())
        self.stop.timer.add_evaluation(judged.seconds)
        return judged

    def _judge_both(self) -> JudgedWeights | None:
        """Collective: evaluates the trained weights, and the average if there is one; None where interrupted."""
        with self.agreed_weights():
            trained = self._evaluate_model()
        if trained is None:
            return None
        if self.learner.average is None:
            return JudgedWeights(trained, "trained", None, trained.seconds)
        judged = self._judge_average(self.learner.average, _saved(trained))
        if judged is None:
            return None
        seconds = trained.seconds + judged.seconds
        if judged.is_average_better(self.settings):
            return replace(judged, seconds=seconds)
        return JudgedWeights(trained, "trained", _saved(judged.evaluation), seconds)

    def _judge_average(self, average: WeightAverage, trained: SavedEvaluation) -> JudgedWeights | None:
        with average.used_by(self.learner.model):
            evaluation = self._evaluate_model()
        return None if evaluation is None else JudgedWeights(evaluation, "averaged", trained, evaluation.seconds)

    def _evaluate_model(self) -> Evaluation | None:
        return evaluate_on_dev(
            self.learner.model,
            self.corpus,
            self.settings,
            self.world,
            should_stop=lambda: self.stop.reason_to_stop_at_once() is not StopReason.NONE,
        )

    def _save_translations(self, step: int, evaluation: Evaluation) -> None:
        """Writes translations.jsonl; no fault here may end a run, whose scores are already in metrics.jsonl."""
        try:
            save_translations(self.run, step, evaluation)
        except Exception as error:
            self.watcher.say(
                f"The translations of step {step} could not be saved in {self.run.translations} "
                f"({describe_fault(error)}). The run goes on without them."
            )

    def _report_failure(self, step: int, error: EvaluationFailedError) -> None:
        """Says why there are no scores."""
        details = write_traceback(self.run.path, self.world.rank, error.__cause__) if error.__cause__ else None
        where = f" Details are in {details}." if details else ""
        self.watcher.say(
            f"Step {step} could not be evaluated ({error}).{where} The run goes on without these scores; "
            f"to evaluate it later: {command_for(f'evaluate --checkpoint {step}', self.run.path)}"
        )
