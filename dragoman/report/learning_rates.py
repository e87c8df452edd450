"""Learning rate of a run at any step: by the formula of its settings, or by continuing its records."""

from dataclasses import dataclass

import numpy as np

from dragoman.diagnosis.learning_curve import RateOfStep
from dragoman.model.shape import load_preset, preset_names
from dragoman.report.evidence import Curve, Evidence, Floats, curve
from dragoman.report.run_tables import scheduled_training
from dragoman.run.config import TrainingSettings
from dragoman.run.schedule import build_schedule

_SAME_SHAPE = 0.02
"""Largest relative distance of recorded learning rates from a known shape."""
FEWEST_RATES = 5
_LARGEST_RATE = 1e15


@dataclass(frozen=True)
class LearningRates:
    """Learning rate of a run at any step, also at steps after its end."""

    rate: RateOfStep
    settings: TrainingSettings | None
    """None where the formula is not known."""
    width: int | None
    recorded: Curve
    assumption: str
    """Assumption about rates after the last record; empty where the formula is known."""

    @property
    def is_known(self) -> bool:
        """Whether the formula or any recorded rate is known."""
        return self.settings is not None or len(self.recorded[0]) > 0

    @property
    def cuts(self) -> list[tuple[int, float]]:
        """Records after warm-up that show a lower rate than the one before: step and rate."""
        steps, rates = self.recorded
        first = self.settings.warmup_steps if self.settings else 0
        pairs = zip(range(1, len(steps)), rates[1:], rates[:-1], strict=True)
        return [(int(steps[i]), float(rate)) for i, rate, before in pairs if rate < before and steps[i] > first]

    @property
    def typical_deviation(self) -> float | None:
        """Median relative distance of recorded rates from the formula; None where there is none or no record."""
        steps, rates = self.recorded
        if self.settings is None or self.settings.schedule == "plateau" or not len(steps):
            return None
        # The record of step s shows the rate of the s-th update; other trainers may count from 0.
        expected = np.array([self.rate(max(0, int(step) - 1)) for step in steps])
        errors = np.abs(rates - expected) / np.maximum(expected, 1e-30)
        return float(np.median(errors))


def learning_rates(evidence: Evidence) -> LearningRates:
    """Finds the learning rates from the settings if they are complete, otherwise from the records."""
    recorded = curve(evidence.train, "learning_rate")
    if not len(recorded[0]):
        recorded = curve(evidence.evaluations, "learning_rate")
    width = _width(evidence)
    settings = scheduled_training(evidence.config)
    if settings is not None and settings.schedule == "plateau" and len(recorded[0]):
        return LearningRates(follow_plateaus(settings, recorded), settings, width, recorded, "")
    if settings is not None and (width is not None or settings.schedule != "transformer"):
        return LearningRates(_bounded(build_schedule(settings, width or 1)), settings, width, recorded, "")
    if len(recorded[0]) >= FEWEST_RATES:
        rate, assumption = continue_records(*recorded)
        return LearningRates(rate, None, width, recorded, assumption)
    assumption = "The learning rate is not known; it is assumed to be constant."
    return LearningRates(lambda _: 1.0, None, width, recorded, assumption)


def follow_plateaus(settings: TrainingSettings, recorded: Curve) -> RateOfStep:
    """Returns the rate of the schedule "plateau", which only the records tell: it depends on the dev set."""
    formula = _bounded(build_schedule(settings, 1))
    steps, rates = recorded

    def rate(step: int) -> float:
        if step < settings.warmup_steps:
            return formula(step)
        # The record of step s shows the rate of the s-th update.
        after = int(np.searchsorted(steps, step + 1))
        return float(rates[min(after, len(rates) - 1)])

    return rate


def _bounded(rate: RateOfStep) -> RateOfStep:
    """Clamps the rate so that sums stay finite, whatever the settings are."""

    def bounded(step: int) -> float:
        try:
            return min(_LARGEST_RATE, rate(step))
        except OverflowError:
            return _LARGEST_RATE

    return bounded


def _width(evidence: Evidence) -> int | None:
    model = evidence.settings.model
    known: list[float | None] = [
        evidence.shape.width if evidence.shape else None,
        model.width,
        load_preset(model.preset).width if model.preset in preset_names() else None,
        evidence.facts.width,
    ]
    return next((int(width) for width in known if width and width > 0), None)


def continue_records(steps: Floats, rates: Floats) -> tuple[RateOfStep, str]:
    """Interpolates the recorded rates, and continues them with the shape that their second half has."""
    half = len(steps) // 2
    late_steps, late_rates = steps[half:], rates[half:]
    last_step, last_rate = float(steps[-1]), float(rates[-1])

    def inside(step: int) -> float:
        return float(np.interp(step, steps, rates))

    if _is_close(late_rates, last_rate * np.sqrt(last_step / np.maximum(late_steps, 1))):
        return (
            lambda step: inside(step) if step <= last_step else last_rate * (last_step / step) ** 0.5,
            "After the last record the learning rate is assumed to keep falling with the square root of the step.",
        )
    slope = (late_rates[-1] - late_rates[0]) / max(1.0, late_steps[-1] - late_steps[0])
    if slope < 0 and _is_close(late_rates, last_rate + slope * (late_steps - last_step)):
        return (
            lambda step: inside(step) if step <= last_step else max(0.0, last_rate + slope * (step - last_step)),
            "After the last record the learning rate is assumed to keep falling linearly.",
        )
    return (
        lambda step: inside(step) if step <= last_step else last_rate,
        "After the last record the learning rate is assumed to stay the same.",
    )


def _is_close(rates: Floats, shape: Floats) -> bool:
    return bool(np.all(np.abs(rates - shape) <= _SAME_SHAPE * np.maximum(np.abs(shape), 1e-30)))
