"""Forecasts loss and BLEU after more steps, with intervals, and where their curves become flat."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from dragoman.diagnosis.learning_curve import FURTHEST, CurveFit, RateOfStep, Schedule, fit_curve

_LARGEST_BLEU = 100.0
_NUM_TESTED = 60
FLAT_GAIN = {"loss": 0.005, "bleu": 0.1}
"""A curve is flat where 10 % more steps gain less than this."""
_LEAST_BLEU = 5.0
"""Below this a model has only begun to translate, and nobody can foresee when BLEU takes off."""
_WIDEST_CHANGES, _WIDEST_GAINS = 2.0, 10.0
"""A margin of more than two changes says nothing about the change, unless it is below ten gains of a flat curve: then
it says that nothing much will happen."""


@dataclass(frozen=True)
class Prospect:
    """Value of a figure after more steps."""

    more_steps: int
    now: float
    """The last measured value."""
    then: float
    low: float
    high: float
    """An evaluation will give a value between low and high in nine of ten cases."""
    is_sound: bool
    """Whether the interval ends before the limits of possible values, and BLEU is not still almost zero; if not, the
    curve is too steep, or too young, for a forecast."""
    is_useful: bool = True
    """Whether the forecast is sound and its interval narrow enough to say something; otherwise do not show it, but say
    that it is not known what more steps would bring."""

    @property
    def change(self) -> float:
        """Expected change from now."""
        return self.then - self.now

    @property
    def margin(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def scaled(self, factor: float) -> "Prospect":
        """Returns the same in another unit."""
        return replace(
            self, now=factor * self.now, then=factor * self.then, low=factor * self.low, high=factor * self.high
        )

    def to_json(self) -> dict[str, float | bool]:
        """Returns JSON values."""
        return asdict(self) | {"change": self.change, "margin": self.margin}


@dataclass(frozen=True)
class Forecast:
    """The fitted curve of a figure."""

    figure: str
    fit: CurveFit
    last_step: int
    last_value: float
    flat_from: int | None
    """First step of the flat part of the curve; None if it is further away than the forecast reaches."""

    def after(self, more_steps: int) -> Prospect:
        """Forecasts the value after more steps."""
        return self._prospect(self.fit, self.last_step + more_steps)

    def in_longer_run(self, rate: RateOfStep, num_steps: int) -> Prospect:
        """Forecasts the end of a new run with another length and schedule of the same peak."""
        return self._prospect(self.fit.under(Schedule(rate, num_steps)), num_steps)

    def _prospect(self, fit: CurveFit, step: int) -> Prospect:
        expected = fit.predict([step])
        low, high = float(expected.low[0]), float(expected.high[0])
        is_sound = high < fit.bound if fit.is_rising else low > fit.bound
        if self.figure == "bleu":
            is_sound = is_sound and low > 0 and self.last_value >= _LEAST_BLEU
        found = Prospect(step - self.last_step, self.last_value, float(expected.value[0]), low, high, is_sound)
        # Not the change from the last value, which may be a lucky or unlucky one.
        change = found.then - float(self.fit.curve([self.last_step]).value[0])
        widest = max(_WIDEST_CHANGES * abs(change), _WIDEST_GAINS * least_gain(self.figure))
        return replace(found, is_useful=is_sound and found.margin <= widest)

    @property
    def is_flat(self) -> bool:
        """Whether the run has reached the flat part."""
        return self.flat_from is not None and self.flat_from <= self.last_step


def forecast(
    figure: str, steps: Sequence[float], values: Sequence[float], rate: RateOfStep, bound: float = 0.0
) -> Forecast | None:
    """Fits evaluations by step; None if there are too few. BLEU rises, everything else falls, towards a bound."""
    # The evaluation of the untrained model does not lie on the curve.
    known = [(step, value) for step, value in zip(steps, values, strict=True) if step > 0]
    if not known:
        return None
    steps, values = zip(*known, strict=True)
    last_step = int(steps[-1])
    schedule = Schedule(rate, int(last_step * FURTHEST) + 1)
    fit = fit_curve(steps, values, schedule, figure == "bleu", _LARGEST_BLEU if figure == "bleu" else bound)
    if fit is None:
        return None
    flat_from = _flat_from(fit, last_step, least_gain(figure))
    return Forecast(figure, fit, last_step, float(values[-1]), flat_from)


def least_gain(figure: str) -> float:
    """Gain below which a curve of this figure is flat."""
    return FLAT_GAIN.get(figure, FLAT_GAIN["loss"])


def _flat_from(fit: CurveFit, last_step: int, smallest: float) -> int | None:
    """First step after which the curve stays flat; it may be flat for a while in the middle of its schedule."""
    steps = np.unique([*np.geomspace(max(1.0, last_step / 10), last_step * FURTHEST / 1.1, _NUM_TESTED), last_step])
    gains = fit.curve(steps.tolist()).value - fit.curve((1.1 * steps).tolist()).value
    # A curve that gets worse gains nothing either.
    steep = np.flatnonzero((-gains if fit.is_rising else gains) >= smallest)
    first = int(steep[-1]) + 1 if len(steep) else 0
    return int(steps[first]) if first < len(steps) else None


def smallest_smoothed_loss(label_smoothing: float, vocab_size: int) -> float:
    """Smoothed loss of a perfect model: the entropy of the smoothed target."""
    other = label_smoothing / vocab_size
    own = 1 - label_smoothing + other
    return -own * math.log(own) - ((vocab_size - 1) * other * math.log(other) if other else 0.0)


def round_steps(num_steps: float) -> int:
    """Rounds to 1, 2 or 5 times a power of ten."""
    if num_steps < 1:
        return 1
    power = 10 ** int(np.floor(np.log10(num_steps)))
    return int(min((1, 2, 5, 10), key=lambda factor: abs(factor * power - num_steps)) * power)
