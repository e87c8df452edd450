"""What more steps would bring: loss and BLEU apart, with intervals, and where their curves become flat."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from dragoman.diagnosis.learning_curve import FURTHEST, CurveFit, RateOfStep, Schedule, fit_curve

LARGEST_BLEU = 100.0
NUM_LOOKS = 60
FLAT_GAIN = {"loss": 0.005, "bleu": 0.1}
"""A curve is called flat where a tenth more steps brings less."""


@dataclass(frozen=True)
class Prospect:
    """What a figure will be after more steps."""

    more_steps: int
    now: float
    """As it was measured last."""
    then: float
    low: float
    high: float
    """An evaluation then will say something between these, nine times of ten."""
    is_sound: bool
    """Whether the interval stays away from what is possible at all: otherwise the curve is too steep for a forecast."""

    @property
    def change(self) -> float:
        """From now to then."""
        return self.then - self.now

    @property
    def margin(self) -> float:
        """Half the interval."""
        return (self.high - self.low) / 2

    def scaled(self, factor: float) -> "Prospect":
        """In another unit."""
        return replace(
            self, now=factor * self.now, then=factor * self.then, low=factor * self.low, high=factor * self.high
        )

    def to_json(self) -> dict[str, float | bool]:
        """Plain values."""
        return asdict(self) | {"change": self.change, "margin": self.margin}


@dataclass(frozen=True)
class Forecast:
    """One figure, looked at ahead."""

    figure: str
    fit: CurveFit
    last_step: int
    last_value: float
    flat_from: int | None
    """The step from which on the curve is flat; None if that is beyond where it was looked for."""

    def after(self, more_steps: int) -> Prospect:
        """So many steps later."""
        return self._prospect(self.fit, self.last_step + more_steps)

    def in_longer_run(self, rate: RateOfStep, num_steps: int) -> Prospect:
        """If the run were made anew with so many steps and another schedule, which has the same peak."""
        return self._prospect(self.fit.under(Schedule(rate, num_steps)), num_steps)

    def _prospect(self, fit: CurveFit, step: int) -> Prospect:
        expected = fit.predict([step])
        low, high = float(expected.low[0]), float(expected.high[0])
        is_sound = high < fit.bound if fit.is_rising else low > fit.bound
        return Prospect(step - self.last_step, self.last_value, float(expected.value[0]), low, high, is_sound)

    @property
    def is_flat(self) -> bool:
        """Whether the run has reached where nothing more is to be had."""
        return self.flat_from is not None and self.flat_from <= self.last_step


def forecast(
    figure: str, steps: Sequence[float], values: Sequence[float], rate: RateOfStep, bound: float = 0.0
) -> Forecast | None:
    """Fits evaluations by step; None where there are too few. BLEU rises, everything else falls, up to a bound."""
    # An untrained model follows no law, and its teacher-forced BLEU is absurd.
    known = [(step, value) for step, value in zip(steps, values, strict=True) if step > 0]
    if not known:
        return None
    steps, values = zip(*known, strict=True)
    last_step = int(steps[-1])
    schedule = Schedule(rate, int(last_step * FURTHEST) + 1)
    fit = fit_curve(steps, values, schedule, figure == "bleu", LARGEST_BLEU if figure == "bleu" else bound)
    if fit is None:
        return None
    flat_from = _flat_from(fit, last_step, FLAT_GAIN.get(figure, FLAT_GAIN["loss"]))
    return Forecast(figure, fit, last_step, float(values[-1]), flat_from)


def _flat_from(fit: CurveFit, last_step: int, least_gain: float) -> int | None:
    """The first step from which on it stays flat: a curve may pause in the middle of its schedule."""
    steps = np.unique([*np.geomspace(max(1.0, last_step / 10), last_step * FURTHEST / 1.1, NUM_LOOKS), last_step])
    gains = fit.curve(steps.tolist()).value - fit.curve((1.1 * steps).tolist()).value
    # A curve that turns round brings nothing either.
    steep = np.flatnonzero((-gains if fit.is_rising else gains) >= least_gain)
    first = int(steep[-1]) + 1 if len(steep) else 0
    return int(steps[first]) if first < len(steps) else None


def smallest_smoothed_loss(label_smoothing: float, vocab_size: int) -> float:
    """The smoothed loss of a model that knows everything: the entropy of the smoothed target itself."""
    other = label_smoothing / vocab_size
    own = 1 - label_smoothing + other
    return -own * math.log(own) - ((vocab_size - 1) * other * math.log(other) if other else 0.0)


def round_steps(num_steps: float) -> int:
    """The nearest number of steps a person would say: 1, 2 or 5 with zeros."""
    if num_steps < 1:
        return 1
    power = 10 ** int(np.floor(np.log10(num_steps)))
    return int(min((1, 2, 5, 10), key=lambda factor: abs(factor * power - num_steps)) * power)
