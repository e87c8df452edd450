"""The learning rate of a run at any step, past or to come: by the formula of its settings, or by what was recorded."""

from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from dragoman.diagnosis.learning_curve import Floats, RateOfStep
from dragoman.model.shape import load_preset, preset_names
from dragoman.report.evidence import Evidence, curve, table
from dragoman.run.config import TrainingSettings
from dragoman.run.schedule import build_schedule
from dragoman.run.status import number_or_none

SAME_SHAPE = 0.02
"""How far recorded rates may be from a shape, relatively, to be taken for it."""
FEWEST_RATES = 5
LARGEST_RATE = 1e15


@dataclass(frozen=True)
class LearningRates:
    """How the learning rate goes."""

    rate: RateOfStep
    settings: TrainingSettings | None
    """Where the formula is known."""
    width: int | None
    recorded: tuple[Floats, Floats]
    """Steps and rates."""
    assumption: str
    """How rates to come were found; empty where the settings tell."""

    @property
    def is_known(self) -> bool:
        """Whether anything at all is known about it."""
        return self.settings is not None or len(self.recorded[0]) > 0

    @property
    def typical_deviation(self) -> float | None:
        """Of recorded rates from the formula, as a share; None where one of them is missing."""
        steps, rates = self.recorded
        if self.settings is None or not len(steps):
            return None
        # A record of step s shows the rate of the update that made it the s-th; foreign logs may count from 0.
        expected = np.array([self.rate(max(0, int(step) - 1)) for step in steps])
        errors = np.abs(rates - expected) / np.maximum(expected, 1e-30)
        return float(np.median(errors))


def learning_rates(evidence: Evidence) -> LearningRates:
    """From the settings where they are complete, otherwise from the records."""
    recorded = curve(evidence.train, "learning_rate")
    width = _width(evidence)
    settings = _settings(evidence)
    if settings is not None and (width is not None or settings.schedule != "transformer"):
        return LearningRates(_bounded(build_schedule(settings, width or 1)), settings, width, recorded, "")
    if len(recorded[0]) >= FEWEST_RATES:
        rate, assumption = _continue_records(*recorded)
        return LearningRates(rate, None, width, recorded, assumption)
    return LearningRates(lambda _: 1.0, None, width, recorded, "The learning rate is not known; taken as constant.")


def _bounded(rate: RateOfStep) -> RateOfStep:
    """A rate one can sum up, whatever settings a stranger wrote: some grow beyond all numbers."""

    def bounded(step: int) -> float:
        try:
            return min(LARGEST_RATE, rate(step))
        except OverflowError:
            return LARGEST_RATE

    return bounded


def _width(evidence: Evidence) -> int | None:
    model = table(evidence.config.get("model"))
    preset = model.get("preset")
    known: list[float | None] = [
        evidence.shape.width if evidence.shape else None,
        number_or_none(model.get("width")),
        load_preset(preset).width if isinstance(preset, str) and preset in preset_names() else None,
        number_or_none(evidence.facts.get("width")),
    ]
    return next((int(width) for width in known if width and width > 0), None)


def _settings(evidence: Evidence) -> TrainingSettings | None:
    """Only where the settings say which schedule it was: a foreign run has none of our defaults."""
    if "schedule" not in evidence.training or "learning_rate" not in evidence.training:
        return None
    known = {key: value for key, value in evidence.training.items() if key in TrainingSettings.model_fields}
    try:
        return TrainingSettings.model_validate(known)
    except ValidationError:
        return None


def _continue_records(steps: Floats, rates: Floats) -> tuple[RateOfStep, str]:
    """What was recorded, and beyond it the shape that its second half has."""
    half = len(steps) // 2
    late_steps, late_rates = steps[half:], rates[half:]
    last_step, last_rate = float(steps[-1]), float(rates[-1])

    def inside(step: int) -> float:
        return float(np.interp(step, steps, rates))

    if _is_close(late_rates, last_rate * np.sqrt(last_step / np.maximum(late_steps, 1))):
        return (
            lambda step: inside(step) if step <= last_step else last_rate * (last_step / step) ** 0.5,
            "Beyond the records the learning rate is taken to fall on with the square root of the steps.",
        )
    slope = (late_rates[-1] - late_rates[0]) / max(1.0, late_steps[-1] - late_steps[0])
    if slope < 0 and _is_close(late_rates, last_rate + slope * (late_steps - last_step)):
        return (
            lambda step: inside(step) if step <= last_step else max(0.0, last_rate + slope * (step - last_step)),
            "Beyond the records the learning rate is taken to fall on in a straight line.",
        )
    return (
        lambda step: inside(step) if step <= last_step else last_rate,
        "Beyond the records the learning rate is taken to stay as it was.",
    )


def _is_close(rates: Floats, shape: Floats) -> bool:
    return bool(np.all(np.abs(rates - shape) <= SAME_SHAPE * np.maximum(np.abs(shape), 1e-30)))
