"""What follows from the evidence, worked out once: all answers speak of the same figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dragoman.diagnosis.forecast import Forecast, forecast, smallest_smoothed_loss
from dragoman.diagnosis.network_estimate import (
    NetworkEstimate,
    Setting,
    estimate_network,
    shape_of,
    tokens_of_sentences,
)
from dragoman.diagnosis.overfitting import Overfitting, find_overfitting
from dragoman.diagnosis.step_times import StepTimes, describe_step_times
from dragoman.diagnosis.verdict import Verdict, judge_records
from dragoman.model.shape import ModelShape
from dragoman.report.evidence import Evidence, Floats, curve
from dragoman.report.machines import MachineSeries, read_machines
from dragoman.report.rates import LearningRates, learning_rates
from dragoman.run.status import number_or_none

HALF_GRADIENTS = ("fairseq",)
"""Trainers that send gradients in half precision when they train in it."""


@dataclass(frozen=True)
class Findings:
    """Everything an answer may need."""

    evidence: Evidence

    @cached_property
    def machines(self) -> MachineSeries:
        """The samples of all machines."""
        return read_machines(self.evidence.run)

    @cached_property
    def interval_steps(self) -> Floats:
        """How many steps each logged interval with a time has."""
        steps, _ = curve(self.evidence.train, "seconds_per_step")
        if not len(steps):
            return steps
        between = np.diff(steps)
        # The first has none before it; a log may begin with step 0, or in the middle of a run.
        first = min(float(steps[0]), float(np.median(between))) if len(between) else float(steps[0])
        return np.asarray(np.maximum(1.0, np.concatenate([[first], between])), dtype=np.float64)

    @cached_property
    def step_times(self) -> StepTimes | None:
        """Mean, median, 95th percentile, drift, outliers; of a log without times, what its trainer summed up."""
        told = number_or_none(self.evidence.facts.get("mean_seconds_per_step"))
        if not len(self.evidence.step_seconds) and told and told > 0:
            return StepTimes(told, told, None, None, [])
        return describe_step_times(self.evidence.step_seconds, self.interval_steps)

    @cached_property
    def training_seconds(self) -> float | None:
        """Spent on steps in all, evaluations included where the steps' times include them."""
        told = [number_or_none(record.get("training_seconds")) for record in self.evidence.train[-1:]]
        if told and told[0] is not None:
            return told[0]
        seconds = self.evidence.step_seconds
        if not len(seconds) and self.step_times is not None and self.evidence.last_step:
            return self.step_times.mean * self.evidence.last_step
        return float(np.sum(seconds * self.interval_steps)) if len(seconds) else None

    @property
    def whole_step_seconds(self) -> float | None:
        """Of a step with its share of evaluations and checkpoints: what more steps would take."""
        if self.training_seconds is not None and (num_steps := float(self.interval_steps.sum())):
            return self.training_seconds / num_steps
        return self.step_times.mean if self.step_times else None

    @cached_property
    def wall_seconds(self) -> float | None:
        """From the first sign of life to the last."""
        times = [time for record in self.evidence.records if (time := number_or_none(record.get("time"))) is not None]
        started = number_or_none(self.evidence.facts.get("started"))
        if self.evidence.facts.get("clock") == "reconstructed" or len(times) < 2:
            return self.training_seconds
        return max(times) - min([*times, *([started] if started else [])])

    @cached_property
    def cost(self) -> float | None:
        """Of the whole run, where the price is known."""
        told = [number_or_none(record.get("cost")) for record in self.evidence.train[-1:]]
        if told and told[0] is not None and self.evidence.known.price_per_hour is None:
            return told[0]
        price, seconds = self.evidence.price_per_hour, self.wall_seconds
        return None if price is None or seconds is None else price * seconds / 3600

    @cached_property
    def rates(self) -> LearningRates:
        """The learning rate at any step."""
        return learning_rates(self.evidence)

    @property
    def bleu_name(self) -> str:
        """The figure of evaluations that BLEU is in: real translations before teacher forcing."""
        has_bleu = any(number_or_none(each.get("bleu")) is not None for each in self.evidence.evaluations)
        return "bleu" if has_bleu else "teacher_forced_bleu"

    @cached_property
    def bleu(self) -> tuple[Floats, Floats]:
        """Steps and BLEU from 0 to 100, of whichever kind there is."""
        steps, values = curve(self.evidence.evaluations, self.bleu_name)
        return steps, values * (100 if self.bleu_name == "teacher_forced_bleu" else 1)

    @property
    def bleu_unit(self) -> float:
        """What 1 of those is in the unit of its log: teacher-forced BLEU goes from 0 to 1."""
        return 0.01 if self.bleu_name == "teacher_forced_bleu" else 1.0

    @cached_property
    def dev_loss(self) -> tuple[Floats, Floats]:
        """Steps and losses of evaluations."""
        return curve(self.evidence.evaluations, "loss")

    @cached_property
    def loss_forecast(self) -> Forecast | None:
        """What more steps would do to the loss of the dev set."""
        return forecast("loss", *_as_lists(self.dev_loss), self.rates.rate, self.lowest_loss)

    @property
    def lowest_loss(self) -> float:
        """Of a perfect model; other trainers may count smoothing otherwise, so that only 0 is certain of theirs."""
        smoothing = number_or_none(self.evidence.training.get("label_smoothing"))
        if self.evidence.is_foreign or self.evidence.shape is None or not smoothing or not 0 < smoothing < 1:
            return 0.0
        return smallest_smoothed_loss(smoothing, self.evidence.shape.target_vocab_size)

    @cached_property
    def bleu_forecast(self) -> Forecast | None:
        """What more steps would do to BLEU."""
        return forecast("bleu", *_as_lists(self.bleu), self.rates.rate)

    @cached_property
    def comparable_train_loss(self) -> tuple[Floats | None, bool]:
        """The training loss at the steps of evaluations, and whether it was measured like theirs, without dropout."""
        steps, losses = self.dev_loss
        _, sample = curve(self.evidence.evaluations, "train_sample_loss")
        if len(sample) == len(losses) and len(sample):
            return sample, True
        train_steps, train = curve(self.evidence.train, "loss")
        if len(train) < 2 or not len(steps):
            return None, False
        return smooth_at(train_steps, train, steps), False

    @cached_property
    def overfitting(self) -> Overfitting | None:
        """Whether the training text is being learned by heart."""
        steps, losses = self.dev_loss
        train, _ = self.comparable_train_loss
        is_trained = steps > 0
        train = None if train is None else train[is_trained]
        return find_overfitting(steps[is_trained].tolist(), losses[is_trained].tolist(), _listed(train))

    @cached_property
    def network(self) -> NetworkEstimate | None:
        """By arithmetic, for runs that measured nothing themselves; None without the time of a step."""
        if self.step_times is None:
            return None
        return estimate_network(_network_setting(self.evidence, self.step_times))

    @cached_property
    def verdict(self) -> Verdict:
        """What held the run back: measured where there are measurements, otherwise estimated."""
        measured = judge_records(self.evidence.records)
        if measured.is_known or self.network is None or not self.evidence.is_foreign:
            return measured
        return self.network.verdict


def smooth_at(steps: Floats, values: Floats, at: Floats) -> Floats:
    """The mean of noisy values around some steps: over as many as lie between two of those steps."""
    half = (float(np.median(np.diff(at))) if len(at) > 1 else float(steps[-1] - steps[0])) / 2
    # As far on either side: a mean over what came before would lag behind a falling curve.
    reach = np.minimum(half, np.maximum(half / 4, float(steps[-1]) - at))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.searchsorted(steps, at - reach, side="left")
    last = np.searchsorted(steps, at + reach, side="right")
    # Where no value lies so near, the next one must do.
    first = np.minimum(first, len(steps) - 1)
    last = np.maximum(last, first + 1)
    return np.asarray((sums[last] - sums[first]) / (last - first), dtype=np.float64)


def _as_lists(pair: tuple[Floats, Floats]) -> tuple[list[float], list[float]]:
    return pair[0].tolist(), pair[1].tolist()


def _listed(values: Floats | None) -> Sequence[float] | None:
    return None if values is None else values.tolist()


def _network_setting(evidence: Evidence, times: StepTimes) -> Setting:
    facts, known = evidence.facts, evidence.known
    gpus = facts.get("gpus")
    gpu = known.gpu or (gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], str) else None)
    assumptions: list[str] = []
    precision = str(facts.get("precision") or evidence.training.get("precision") or "fp32")
    is_half = precision in ("fp16", "bf16") and evidence.trainer in HALF_GRADIENTS
    return Setting(
        seconds_per_step=times.median,
        parameters=evidence.parameters,
        num_ranks=evidence.num_ranks,
        num_nodes=evidence.num_nodes,
        gradient_bytes=2 if is_half else 4,
        gpu=gpu,
        precision=precision,
        link=known.link,
        tokens_per_rank=_tokens_per_rank(evidence, times, assumptions),
        shape=_shape(evidence),
        assumptions=assumptions,
    )


def _tokens_per_rank(evidence: Evidence, times: StepTimes, assumptions: list[str]) -> float | None:
    facts, ranks = evidence.facts, evidence.num_ranks
    tokens = number_or_none(facts.get("batch_tokens"))
    if tokens and ranks:
        return tokens / ranks
    _, rates = curve(evidence.train, "target_tokens_per_second")
    if len(rates) and ranks:
        return float(np.median(rates)) * times.median / ranks
    objects = number_or_none(facts.get("objects_per_second"))
    if objects and ranks:
        # Source and target tokens of all ranks together, over whole steps.
        return objects / 2 * times.mean / ranks
    sentences = number_or_none(facts.get("batch_sentences_per_rank"))
    if not sentences:
        return None
    tokens = tokens_of_sentences(sentences)
    assumptions.append(
        f"A batch of {sentences:,.0f} sentences has {tokens:,.0f} target tokens (30.5 a sentence, as in WMT 2016)."
    )
    return tokens


def _shape(evidence: Evidence) -> ModelShape | None:
    names = ("width", "feed_forward", "heads", "encoder_layers", "decoder_layers")
    found: dict[str, Any] = {name: number_or_none(evidence.facts.get(name)) for name in names}
    if evidence.shape is not None or not all(found.values()):
        return evidence.shape
    vocab = number_or_none(evidence.facts.get("vocab_size"))
    sizes = {name: int(value) for name, value in found.items()}
    return shape_of(**sizes, vocab_size=int(vocab) if vocab else None)
