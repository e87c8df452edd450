"""Findings: what follows from the evidence, worked out once, so that all answers use the same figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dragoman.diagnosis.divergence import FEWEST_LOSSES, Divergence, find_divergence
from dragoman.diagnosis.forecast import Forecast, forecast, smallest_smoothed_loss
from dragoman.diagnosis.network_estimate import (
    ONE_WORKER,
    NetworkEstimate,
    RunFacts,
    estimate_network,
    find_device,
    shape_of,
    tokens_of_sentences,
)
from dragoman.diagnosis.overfitting import SIGNIFICANT, Overfitting, find_overfitting
from dragoman.diagnosis.step_model import SHORTEST_STEP
from dragoman.diagnosis.verdict import Verdict, verdict_of_records
from dragoman.model.shape import ModelShape
from dragoman.report.best_checkpoint import BestCheckpoint, find_best_checkpoint
from dragoman.report.evidence import Curve, Evidence, Floats, curve, timed_records
from dragoman.report.learning_rates import LearningRates, learning_rates
from dragoman.report.machines import MachineSeries, read_machines
from dragoman.report.nan_loss import NanLoss, find_nan_loss
from dragoman.report.progress import RunProgress, find_progress
from dragoman.report.record_reading import Restart
from dragoman.report.scores import FailedScore, TaskScore, choose_task_score, find_failed_scores, without_failed_scores
from dragoman.report.time_use import TimeUse, use_of_imported_run, use_of_own_run
from dragoman.run.records import EvaluationRecord, RestartRecord

_OUTLIER_DEVIATIONS = 6.0
"""Robust standard deviations above the median from which an interval is an outlier."""
_SMALLEST_EXCESS = 0.03
"""Share of the median; an interval that exceeds it by less is no outlier, however even the others are."""
FEWEST_FOR_DRIFT = 10
_CLEAR_FALL = 0.01
"""Share of the best score by which the last ones must be worse for a fall to count."""
_ONE_WORKER_CONFIDENCE = 0.95
_FEWEST_IN_EXCERPT = 2
"""Evaluations in an excerpt that show how often a run is evaluated."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step over a run."""

    mean: float
    median: float
    p95: float | None
    """None where only a mean is known."""
    drift: float | None
    """Share by which the last quarter of the run is slower than the first; None with too few figures."""
    outliers: list[int]
    """Indices of outliers among the given values."""

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as report.json has them."""
        return {"mean": self.mean, "median": self.median, "p95": self.p95, "drift": self.drift}


def describe_step_times(seconds: Sequence[float] | Floats, num_steps: Sequence[float] | Floats) -> StepTimes | None:
    """Describes logged intervals by their seconds per step and number of steps; None without any."""
    values, weights = np.asarray(seconds, dtype=np.float64), np.asarray(num_steps, dtype=np.float64)
    if not len(values):
        return None
    median = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(values - median)))
    bound = median + max(_OUTLIER_DEVIATIONS * spread, _SMALLEST_EXCESS * median)
    return StepTimes(
        mean=float(np.average(values, weights=np.maximum(weights, 1e-9))),
        median=median,
        p95=float(np.quantile(values, 0.95)),
        drift=_drift(values),
        outliers=[int(index) for index in np.flatnonzero(values > bound)],
    )


def _drift(values: Floats) -> float | None:
    if len(values) < FEWEST_FOR_DRIFT:
        return None
    quarter = len(values) // 4
    begin, end = float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
    return end / begin - 1 if begin >= SHORTEST_STEP else None


_HALF_GRADIENTS = ("fairseq",)
"""Trainers that send gradients in half precision when they train in it."""


@dataclass(frozen=True)
class Findings:
    """Everything an answer may need."""

    evidence: Evidence

    @cached_property
    def machines(self) -> MachineSeries:
        """Utilisation and traffic of all machines."""
        return read_machines(self.evidence.run)

    @cached_property
    def interval_steps(self) -> Floats:
        """Number of steps of each logged interval with a time."""
        evidence = self.evidence
        timed = zip(evidence.train, evidence.train_steps, strict=True)
        steps = [num_steps for record, num_steps in timed if record.seconds_per_step is not None]
        return np.maximum(1.0, np.array(steps, dtype=np.float64))

    @cached_property
    def step_times(self) -> StepTimes | None:
        """Mean, median, 95th percentile, drift and outliers; only the trainer's own mean if the log has no more.

        Where the batch grew during the run, these are times of full batches.
        """
        mean = self.evidence.facts.mean_seconds_per_step
        if not len(self.evidence.step_seconds) and mean and mean > 0:
            return StepTimes(mean, mean, None, None, [])
        full_seconds = [record.seconds_per_full_step or 0.0 for record in timed_records(self.evidence)]
        # How long the steps of a gap took is not known.
        weights = [0.0 if self.evidence.is_gap(num_steps) else num_steps for num_steps in self.interval_steps]
        return describe_step_times(full_seconds, np.array(weights))

    @cached_property
    def time_use(self) -> TimeUse | None:
        """Training, evaluations, saving and standstill; None where no time is known."""
        evidence, times = self.evidence, self.step_times
        if not evidence.is_imported:
            whole = self.wall_seconds
            return None if whole is None else use_of_own_run(evidence, whole, self.pause_seconds)
        if times is None:
            return None
        if len(evidence.step_seconds):
            return use_of_imported_run(evidence, times.median)
        found = TimeUse(is_estimated=True)
        found.seconds["training"] = times.mean * (evidence.num_steps or 0)
        return found

    @cached_property
    def seconds_per_further_step(self) -> float | None:
        """Median time of a step with its share of evaluations and checkpoints, for forecasts; without standstill."""
        if self.step_times is None:
            return None
        if self.step_times.p95 is None:
            return self.step_times.mean  # evaluations are part of the trainer's own mean
        return self.step_times.median + self._overhead_per_step

    @property
    def _overhead_per_step(self) -> float:
        """Seconds that evaluations and checkpoints add to each step, if the former take as long as they usually do."""
        use, num_steps = self.time_use, self.evidence.num_steps
        if use is None or not num_steps:
            return 0.0
        if self.evidence.unseen_steps and len(self.evidence.evaluations) < _FEWEST_IN_EXCERPT:
            return 0.0
        known = [each.seconds for each in self.evidence.evaluations if each.seconds]
        usual = float(np.median(known)) * len(self.evidence.evaluations) if known else np.inf
        return (min(use.seconds["evaluation"], usual) + use.seconds["saving"]) / num_steps

    @property
    def steps_of_mean_time(self) -> int | None:
        """Number of the last steps, where only their mean time is known: that of the whole run is an estimate."""
        return None if len(self.evidence.step_seconds) else self.evidence.facts.timed_steps

    @cached_property
    def wall_seconds(self) -> float | None:
        """Time from the start to the last record, without pauses; steps that were trained again count again."""
        if self.evidence.is_imported and self.time_use is not None:
            # A summary by the trainer itself is exact; a log without a clock only has the sum of its steps.
            total = self.evidence.facts.training_seconds if self.evidence.facts.clock == "reconstructed" else None
            return max(total or 0.0, self.time_use.whole) or None
        times = [record.time for record in self.evidence.records if record.time is not None]
        least = 0.0 if self.evidence.is_imported else self._least_seconds or 0.0
        if len(times) < 2 or self.evidence.facts.clock == "reconstructed":
            return least or None
        if self.timed_from_step == self.evidence.last_step:
            return None  # the times are those of the last step and what followed it
        started = self.evidence.facts.started
        whole = max(times) - min([*times, *([started] if started else [])])
        # The first record is written after the first steps.
        return max(least, whole - self.pause_seconds)

    @property
    def timed_from_step(self) -> int | None:
        """The first step with a time, where the files do not tell how long the steps before it took; else None."""
        evidence = self.evidence
        if not evidence.is_imported or self.time_use is not None or evidence.facts.started is not None:
            return None
        if evidence.facts.clock == "reconstructed":
            return None
        timed = (
            record for record in evidence.records if not isinstance(record, RestartRecord) and record.time is not None
        )
        return next((record.step for record in timed), None)

    @property
    def _least_seconds(self) -> float | None:
        """Time that our own run recorded, or else that of its steps."""
        recorded = self.evidence.train[-1].training_seconds if self.evidence.train else None
        seconds = self.evidence.step_seconds
        if recorded is None and len(seconds):
            repeated = sum(restart.repeated_seconds for restart in self.evidence.restarts)
            return float(np.sum(seconds * self.interval_steps)) + repeated
        return recorded

    @property
    def pauses(self) -> list[Restart]:
        """Restarts by a person: a launcher that starts a run again records the cause. Other trainers record nothing."""
        return [] if self.evidence.is_imported else [each for each in self.evidence.restarts if not each.cause]

    @property
    def pause_seconds(self) -> float:
        """Time in which nobody trained, until a person continued the run."""
        return sum(pause.silent_seconds or 0.0 for pause in self.pauses)

    @cached_property
    def cost(self) -> float | None:
        """Cost of the whole run; None without a price."""
        if self.evidence.train and self.evidence.known.price_per_hour is None:
            recorded = self.evidence.train[-1].cost
            if recorded is not None:
                return recorded
        price, seconds = self.evidence.price_per_hour, self.wall_seconds
        return None if price is None or seconds is None else price * seconds / 3600

    @cached_property
    def rates(self) -> LearningRates:
        """The learning rate at any step."""
        return learning_rates(self.evidence)

    @cached_property
    def failed_scores(self) -> list[FailedScore]:
        """Scores that are left out because the scoring failed."""
        return find_failed_scores(self._evaluations_before_nan)

    @cached_property
    def evaluations(self) -> list[EvaluationRecord]:
        """Evaluations to judge the model by: none after the loss became NaN, and no score whose scoring failed."""
        return without_failed_scores(self._evaluations_before_nan, self.failed_scores)

    @property
    def _evaluations_before_nan(self) -> list[EvaluationRecord]:
        nan_step = self.evidence.first_nan_step
        return [each for each in self.evidence.evaluations if nan_step is None or each.step < nan_step]

    @cached_property
    def score(self) -> TaskScore | None:
        """The score of the translations: BLEU, else chrF, else another; None where there is none."""
        settings = self.evidence.settings
        own = settings.checkpoints.best_by or settings.evaluation.metric
        return choose_task_score(self.evaluations, own or self.evidence.facts.metric)

    @cached_property
    def best_checkpoint(self) -> BestCheckpoint | None:
        """The checkpoint to use; None where nothing was evaluated."""
        settings = self.evidence.settings
        is_by_loss = (settings.checkpoints.best_by or settings.evaluation.metric) == "loss"
        found = find_best_checkpoint(self.evaluations, self.score, is_by_loss, bool(self.evidence.start_from))
        noun = self.evidence.step_noun
        # Not "the checkpoint of checkpoint 28".
        return found if found is None or noun == "checkpoint" else replace(found, unit=noun)

    @cached_property
    def nan_loss(self) -> NanLoss | None:
        """Since when the loss is not a number; None where it is one."""
        return find_nan_loss(self.evidence, self.seconds_per_further_step)

    @cached_property
    def divergence(self) -> Divergence | None:
        """Whether the loss rose and stayed high, without becoming NaN; None where it did not."""
        if self.nan_loss is not None:
            return None
        steps, losses = curve(self.evidence.train, "loss")
        if len(losses) >= FEWEST_LOSSES:
            return find_divergence(steps.tolist(), losses.tolist())
        return find_divergence(*_as_lists(self.dev_loss)) if self._has_collapsed else None

    @property
    def _has_collapsed(self) -> bool:
        """Whether the score of the translations fell to less than half of its best, which overfitting does not do."""
        score = self.score
        is_known = score is not None and not score.is_lower_better and len(score.values) > 2
        return score is not None and is_known and max(score.values[-2:]) < max(score.values) / 2

    @cached_property
    def progress(self) -> RunProgress:
        """Steps done of steps planned, and what the rest would take."""
        return find_progress(self.evidence, self.seconds_per_further_step)

    @property
    def loss_unit(self) -> str:
        """Label of the axis of losses: the unit, where it is known."""
        unit = self.evidence.facts.loss_unit if self.evidence.is_imported else "nats per token"
        return f"loss in {unit}" if unit and unit != "unknown" else "loss as logged, unit unknown"

    @property
    def bleu_name(self) -> str:
        """Field of evaluations that holds BLEU: real translations are preferred to teacher forcing."""
        has_bleu = any(each.bleu is not None for each in self.evaluations)
        return "bleu" if has_bleu else "teacher_forced_bleu"

    @property
    def is_bleu_forced(self) -> bool:
        """Whether the only BLEU is that of teacher-forced predictions."""
        return self.bleu_name == "teacher_forced_bleu"

    @cached_property
    def bleu(self) -> Curve:
        """Steps and BLEU from 0 to 100."""
        steps, values = curve(self.evaluations, self.bleu_name)
        return steps, values * (100 if self.is_bleu_forced else 1)

    @property
    def bleu_unit(self) -> float:
        """One point of `bleu` in the unit of the records: teacher-forced BLEU goes from 0 to 1."""
        return 0.01 if self.is_bleu_forced else 1.0

    @cached_property
    def dev_loss(self) -> Curve:
        """Steps and losses of evaluations."""
        return curve(self.evaluations, "loss")

    @cached_property
    def loss_forecast(self) -> Forecast | None:
        """Dev loss that more steps would reach."""
        if self.evidence.first_nan_step is not None or self.divergence is not None:
            return None
        return forecast("loss", *_as_lists(self.dev_loss), self.rates.rate, self.lowest_loss)

    @property
    def lowest_loss(self) -> float:
        """Loss of a perfect model; 0 for other trainers, which may define smoothing differently."""
        smoothing = self.evidence.settings.training.label_smoothing
        if self.evidence.is_imported or self.evidence.shape is None or not smoothing or not 0 < smoothing < 1:
            return 0.0
        return smallest_smoothed_loss(smoothing, self.evidence.shape.target_vocab_size)

    @cached_property
    def bleu_forecast(self) -> Forecast | None:
        """BLEU that more steps would reach."""
        if self.evidence.first_nan_step is not None or self.divergence is not None or not self.bleu[1].any():
            return None
        found = forecast("bleu", *_as_lists(self.bleu), self.rates.rate)
        # A curve that follows the learning rate would rise again.
        is_wrong = found is not None and self.is_score_falling and found.after(found.last_step // 10 + 1).change > 0
        return None if is_wrong else found

    @cached_property
    def is_score_falling(self) -> bool:
        """Whether the translations became worse since their best score, more than by chance."""
        if (score := self.score) is None or not score.values:
            return False
        trained = [(step, value) for step, value in zip(score.steps, score.values, strict=True) if step > 0]
        errors = [value if score.is_lower_better else -value for _, value in trained]
        found = find_overfitting([step for step, _ in trained], errors, None)
        if found is None or found.rise_p >= SIGNIFICANT:
            return False
        return float(np.mean(errors[-2:])) - found.best_loss > _CLEAR_FALL * abs(found.best_loss)

    @cached_property
    def comparable_train_loss(self) -> tuple[Floats | None, bool]:
        """Training loss at the steps of evaluations, and whether it was measured like theirs, without dropout."""
        steps, losses = self.dev_loss
        _, sample = curve(self.evaluations, "train_sample_loss")
        if len(sample) == len(losses) and len(sample):
            return sample, True
        train_steps, train = curve(self.evidence.train, "loss")
        if len(train) < 2 or not len(steps):
            return None, False
        return _smooth_at(train_steps, train, steps), False

    @cached_property
    def overfitting(self) -> Overfitting | None:
        """Whether the model memorises the training data; None with too few evaluations."""
        steps, losses = self.dev_loss
        train, _ = self.comparable_train_loss
        is_trained = steps > 0
        train_losses: Sequence[float] | None = None if train is None else train[is_trained].tolist()
        return find_overfitting(steps[is_trained].tolist(), losses[is_trained].tolist(), train_losses)

    @cached_property
    def network(self) -> NetworkEstimate | None:
        """Estimate by arithmetic, for runs without measurements; None without step times."""
        if self.step_times is None:
            return None
        return estimate_network(_network_setting(self.evidence, self.step_times))

    @cached_property
    def verdict(self) -> Verdict:
        """Bottleneck of the run: measured where there are measurements, otherwise estimated."""
        measured = verdict_of_records(self.evidence.records)
        if measured.is_known or not self.evidence.is_imported:
            return measured
        return _verdict_without_times(self.evidence) if self.network is None else self.network.verdict


def _verdict_without_times(evidence: Evidence) -> Verdict:
    """The verdict on files of another trainer that do not say how long a step took."""
    if evidence.num_ranks == 1:
        return Verdict("unknown", 0.0, _ONE_WORKER_CONFIDENCE, ONE_WORKER)
    why = "It is not known what limited this run: its files do not say how long a step took."
    return Verdict("unknown", 0.0, 0.0, why)


def _smooth_at(steps: Floats, values: Floats, at: Floats) -> Floats:
    """Returns means of noisy values around some steps, each over as many values as lie between two of those steps."""
    half = (float(np.median(np.diff(at))) if len(at) > 1 else float(steps[-1] - steps[0])) / 2
    # Equally far on both sides: a mean over earlier values alone would lag behind a falling curve.
    reach = np.minimum(half, np.maximum(half / 4, float(steps[-1]) - at))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.searchsorted(steps, at - reach, side="left")
    last = np.searchsorted(steps, at + reach, side="right")
    # Where no value lies within reach, the next one is taken.
    first = np.minimum(first, len(steps) - 1)
    last = np.maximum(last, first + 1)
    return np.asarray((sums[last] - sums[first]) / (last - first), dtype=np.float64)


def _as_lists(points: Curve) -> tuple[list[float], list[float]]:
    return points[0].tolist(), points[1].tolist()


def _network_setting(evidence: Evidence, times: StepTimes) -> RunFacts:
    facts, known = evidence.facts, evidence.known
    assumptions: list[str] = []
    precision = facts.precision or evidence.settings.training.precision or "fp32"
    is_half = precision in ("fp16", "bf16") and evidence.trainer in _HALF_GRADIENTS
    return RunFacts(
        seconds_per_step=times.median,
        parameters=evidence.parameters,
        num_ranks=evidence.num_ranks,
        num_nodes=evidence.num_nodes,
        gradient_bytes=2 if is_half else 4,
        gpu=_known_gpu(known.gpu) or next(iter(facts.gpus or []), known.gpu),
        precision=precision,
        link=known.link,
        tokens_per_rank=_tokens_per_rank(evidence, times, assumptions),
        shape=_shape(evidence),
        assumptions=assumptions,
        trainer=evidence.trainer,
    )


def _known_gpu(stated: str | None) -> str | None:
    """Returns the stated GPU if it is one that can be computed with; otherwise the log's own is better."""
    return stated if stated and find_device(stated) is not None else None


def _tokens_per_rank(evidence: Evidence, times: StepTimes, assumptions: list[str]) -> float | None:
    facts, ranks = evidence.facts, evidence.num_ranks
    if facts.batch_tokens and ranks:
        return facts.batch_tokens / ranks
    _, rates = curve(evidence.train, "target_tokens_per_second")
    if len(rates) and ranks:
        return float(np.median(rates)) * times.median / ranks
    if facts.objects_per_second and ranks:
        # Source and target tokens of all ranks together, over whole steps.
        return facts.objects_per_second / 2 * times.mean / ranks
    sentences = facts.batch_sentences_per_rank
    if not sentences:
        return None
    tokens = tokens_of_sentences(sentences)
    assumptions.append(
        f"A batch of {sentences:,.0f} sentences has {tokens:,.0f} target tokens (30.5 per sentence, as in WMT 2016)."
    )
    return tokens


def _shape(evidence: Evidence) -> ModelShape | None:
    facts = evidence.facts
    sizes = (facts.width, facts.feed_forward, facts.heads, facts.encoder_layers, facts.decoder_layers)
    if evidence.shape is not None or not all(sizes):
        return evidence.shape
    width, feed_forward, heads, encoder_layers, decoder_layers = (int(size or 0) for size in sizes)
    vocab_size = int(facts.vocab_size) if facts.vocab_size else None
    return shape_of(width, feed_forward, heads, encoder_layers, decoder_layers, vocab_size)
