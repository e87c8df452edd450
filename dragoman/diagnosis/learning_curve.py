"""Fits a learning curve with a formula that includes the learning-rate schedule, and with its uncertainty.

The loss after s steps is modelled as

    floor + A · learned(s)^-alpha + D · rate(s) + E · learned(s),    A, D, E ≥ 0

`learned` is the sum of all learning rates so far: a step at half the rate moves the weights half as far, so curves
with different schedules follow one power law of it. `rate` is the recent learning rate, relative to its peak: a high
rate keeps the weights moving around the minimum, and the loss falls when it is lowered. E is overfitting: the cost of
every further pass over the same text. BLEU follows the same law with the opposite sign.

alpha is unknown: the fit averages over many values, weighted by how well each explains the curve; the other
coefficients have a closed form (Bayesian linear regression). So the fit takes milliseconds, needs no starting point,
and has an interval. benchmarks/forecast.py tests it on real curves.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RateOfStep = Callable[[int], float]

FEWEST_POINTS = 5
"""Fewest points of a curve to fit; fewer do not show its shape."""
_EXPONENTS = np.concatenate([[-0.5, -0.25], np.arange(0.05, 2.0, 0.1), [2.25, 2.5, 3.0, 3.5, 4.0]])
"""Curves with a negative exponent never level off; BLEU is like that for a while. The values are close together:
otherwise overfitting would explain a curve between two of them, and a falling curve would be forecast to rise."""
NUM_DRAWS, NUM_KEPT = 400, 2_000
"""Samples of the coefficients: drawn for each exponent, and kept of all together by their probability."""
MAX_RATE_POINTS = 4_000
"""Steps at which the schedule is evaluated, so that a million steps do not take seconds."""
_COOLING_SHARE = 0.02
"""Time that the loss takes to follow a lowered learning rate, as a share of the steps so far."""
FORMULA_ERROR = 0.4
"""Standard deviation of the formula's error, as a share of the change that it predicts or of the change that as much
learning made before, whichever is larger; chosen by benchmarks/forecast.py."""
_MOST_POINTS = 20
"""A curve counts as at most this many independent values, however many it has: neighbouring evaluations are of almost
the same model and share their errors."""
_NUM_ANCHORS = 3
"""Number of last values that define where the curve is now."""
_INTERVAL = 0.9
_IMPOSSIBLE = -20.0
"""Log evidence against an exponent whose curves are all impossible."""
FURTHEST = 5.0
"""How far a curve is extrapolated, in multiples of the fitted length."""
_LARGEST_VALUE = 1e15
"""Larger values are refused: their sums could overflow."""
_LEAST_NOISE = 1e-3
"""Least noise, as a share of the spread of a curve; avoids a division by zero for a perfect one."""


class Schedule:
    """Sums of the learning rates of a run."""

    def __init__(self, rate: RateOfStep, num_steps: int) -> None:
        """Computes sums up to a number of steps."""
        points = np.unique(np.linspace(0, max(1, num_steps), MAX_RATE_POINTS).astype(np.int64))
        rates = np.array([max(0.0, rate(int(step))) for step in points])
        peak = float(rates.max()) or 1.0
        self._points = points.astype(np.float64)
        self._rates = rates / peak
        middle = (self._rates[1:] + self._rates[:-1]) / 2
        self._learned = np.concatenate([[0.0], np.cumsum(middle * np.diff(self._points))])

    def learned(self, steps: Floats) -> Floats:
        """The sum of all learning rates up to each step, in steps at the peak rate; at least one."""
        return np.asarray(np.maximum(1.0, np.interp(steps, self._points, self._learned)), dtype=np.float64)

    def rate(self, steps: Floats) -> Floats:
        """Recent mean of the learning rate, as a share of the peak."""
        begin = steps * (1 - _COOLING_SHARE) - 1
        sums = np.interp(steps, self._points, self._learned) - np.interp(begin, self._points, self._learned)
        return np.asarray(sums / (steps - begin), dtype=np.float64)


@dataclass(frozen=True)
class Expected:
    """Expected values at some steps, with bounds that hold in nine of ten cases."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class CurveFit:
    """A fitted curve: samples of possible coefficients, all equally likely."""

    schedule: Schedule
    last_step: float
    scale: float
    """`learned` at the last step, which is the unit of the coefficients."""
    exponents: Floats
    coefficients: Floats
    """A row of floor, A, D and E for each sample."""
    noises: Floats
    is_rising: bool
    bound: float
    """Smallest possible value; for a rising curve, the largest."""
    offset: float = 0.0
    """Mean difference of the last values from the formula, so that the forecast begins where the curve is."""
    formula_error: float = FORMULA_ERROR

    @property
    def noise(self) -> float:
        """Standard deviation of single values around the curve."""
        return float(np.median(self.noises))

    def under(self, schedule: Schedule) -> "CurveFit":
        """Returns the curve of the same model with another schedule of the same peak."""
        return replace(self, schedule=schedule)

    def curve(self, steps: Sequence[float]) -> Expected:
        """Expected curve, without the noise of single evaluations."""
        return self._expect(np.asarray(steps, dtype=np.float64), 0.0)

    def predict(self, steps: Sequence[float]) -> Expected:
        """Expected results of evaluations at these steps."""
        return self._expect(np.asarray(steps, dtype=np.float64), 1.0)

    @property
    def _sign(self) -> float:
        return -1.0 if self.is_rising else 1.0

    def _values(self, steps: Floats) -> Floats:
        """Returns a row for each sample; rising curves are negated."""
        relative, rate = self.schedule.learned(steps) / self.scale, self.schedule.rate(steps)
        floor, power, by_rate, by_overfitting = self.coefficients.T[:, :, None]
        falling = power * _fall(relative, self.exponents[:, None])
        values = floor + falling + by_rate * rate + by_overfitting * relative
        return np.asarray(np.maximum(values, self._sign * self.bound), dtype=np.float64)

    def _expect(self, steps: Floats, noise_share: float) -> Expected:
        values = self._values(steps)
        spread = _spread(len(values))
        values = values + self._model_error(steps, values)[None, :] * spread[:, None]
        # Shuffled, otherwise both errors would always have the same sign.
        shuffled = np.random.default_rng(1).permutation(spread)
        values = self._sign * (values + noise_share * (self.noises * shuffled)[:, None]) + self.offset
        # Errors and the offset may have moved values beyond the bound again.
        values = np.minimum(values, self.bound) if self.is_rising else np.maximum(values, self.bound)
        low, middle, high = np.quantile(values, [(1 - _INTERVAL) / 2, 0.5, (1 + _INTERVAL) / 2], axis=0)
        return Expected(middle, low, high)

    def _model_error(self, steps: Floats, values: Floats) -> Floats:
        """Standard deviation of the formula's error at each step; none at steps that the fit has seen."""
        change = np.median(values - self._values(np.array([self.last_step])), axis=0)
        _, power, _, by_overfitting = self.coefficients.T[:, :, None]
        earlier = 1 / np.maximum(1.0, self.schedule.learned(steps) / self.scale)
        past = power * _fall(earlier, self.exponents[:, None]) + by_overfitting * (earlier - 1)
        error = self.formula_error * np.maximum(np.abs(change), np.abs(np.median(past, axis=0)))
        return np.asarray(np.where(steps > self.last_step, error, 0.0), dtype=np.float64)


def fit_curve(
    steps: Sequence[float],
    values: Sequence[float],
    schedule: Schedule,
    is_rising: bool = False,
    bound: float = -math.inf,
) -> CurveFit | None:
    """Fits a curve that falls, or rises like BLEU, not beyond its bound; None for too few values."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(x) < FEWEST_POINTS or not np.all(np.abs(y) <= _LARGEST_VALUE):  # also refuses NaN
        return None
    sign = -1.0 if is_rising else 1.0
    y, bound = sign * y, bound if math.isfinite(bound) else -sign * math.inf
    spread = float(np.ptp(y)) or max(1e-9, abs(float(y[-1])) * 1e-6)
    learned, rate = schedule.learned(x), schedule.rate(x)
    relative = learned / learned[-1]
    # Recent values count most: the beginning of a run follows another law than its end.
    weights = relative / relative.mean() * min(1.0, _MOST_POINTS / len(x))
    exponents, draws, noises, evidences = [], [], [], []
    random = np.random.default_rng(0)
    for exponent in _EXPONENTS:
        columns = np.stack([np.ones_like(x), _fall(relative, exponent), rate, relative], axis=1)
        found = _regress(columns, y, weights, spread, random)
        found = found and _keep_possible(*found, float(exponent), sign * bound)
        if found is None:
            continue
        coefficients, noise, evidence = found
        exponents.append(np.full(len(noise), exponent))
        draws.append(coefficients)
        noises.append(noise)
        evidences.append(np.full(len(noise), evidence - np.log(len(noise))))
    if not draws:
        return None
    log_weights = np.concatenate(evidences)
    share = np.exp(log_weights - log_weights.max())
    chosen = random.choice(len(share), size=NUM_KEPT, p=share / share.sum())
    fit = CurveFit(
        schedule,
        float(x[-1]),
        float(learned[-1]),
        np.concatenate(exponents)[chosen],
        np.concatenate(draws)[chosen],
        np.concatenate(noises)[chosen],
        is_rising,
        bound,
    )
    residuals = np.asarray(values, dtype=np.float64) - fit.curve(steps).value
    return replace(fit, offset=float(residuals[-_NUM_ANCHORS:].mean()))


_PRIOR_SCALES = np.array([10.0, 3.0, 0.2, 0.1])
"""Prior scales of the four coefficients, in spreads of the curve: without evidence, the learning rate and overfitting
matter less than learning."""


def _regress(
    columns: Floats, y: Floats, weights: Floats, spread: float, random: np.random.Generator
) -> tuple[Floats, Floats, float] | None:
    """Samples coefficients and noise, and computes the log evidence; None if the columns are degenerate."""
    centre = float(np.average(y, weights=weights))
    target = (y - centre) / spread
    precision = np.diag(_PRIOR_SCALES**-2.0)
    least = _LEAST_NOISE**2
    gram = (columns * weights[:, None]).T @ columns
    moment = (columns * weights[:, None]).T @ target
    # The prior is in units of the spread, not of the noise, so the noise is estimated first, from a fit without prior.
    noise2 = max(least, _noise_estimate(columns, target, weights))
    posterior = np.linalg.inv(gram / noise2 + precision)
    mean = posterior @ (moment / noise2)
    residual = target - columns @ mean
    num_values = float(weights.sum())
    freedom = max(1.0, num_values - 3.0)
    scale2 = (float(np.sum(weights * residual**2)) + least) / freedom
    sign, log_det = np.linalg.slogdet(posterior @ precision)
    if sign <= 0:
        return None
    evidence = (
        0.5 * log_det
        - 0.5 * float(mean @ precision @ mean)
        - 0.5 * float(np.sum(weights * residual**2)) / noise2
        - 0.5 * num_values * float(np.log(noise2))
    )
    noise = np.sqrt(np.maximum(least, scale2 * freedom / random.chisquare(freedom, NUM_DRAWS)))
    root = np.linalg.cholesky(posterior + 1e-12 * np.eye(len(mean)))
    draws = mean + (noise / np.sqrt(noise2))[:, None] * (random.standard_normal((NUM_DRAWS, len(mean))) @ root.T)
    is_curve = np.all(draws[:, 1:] >= 0, axis=1)
    if not is_curve.any():
        # No sample has the right signs, for example for a straight line: use the nearest one, with less weight.
        draws[:, 1:] = np.maximum(draws[:, 1:], 0.0)
        is_curve[:] = True
        evidence += _IMPOSSIBLE
    evidence += float(np.log(is_curve.mean()))
    kept = draws[is_curve] * spread
    kept[:, 0] += centre
    return kept, noise[is_curve] * spread, evidence


def _keep_possible(
    coefficients: Floats, noise: Floats, evidence: float, exponent: float, bound: float
) -> tuple[Floats, Floats, float]:
    """Keeps the curves that stay within the bound: no loss is negative, no BLEU above 100."""
    floor, power, _, by_overfitting = coefficients.T
    # A positive exponent has a limit; any other curve is checked as far as it is extrapolated.
    furthest = -1 / exponent if exponent > 0 else float(_fall(np.array([FURTHEST]), exponent)[0])
    is_possible = floor + power * furthest + by_overfitting >= bound
    if not is_possible.any():
        return coefficients, noise, evidence + _IMPOSSIBLE
    return coefficients[is_possible], noise[is_possible], evidence + float(np.log(is_possible.mean()))


def _noise_estimate(columns: Floats, target: Floats, weights: Floats) -> float:
    """Variance around the best fit of these columns, with a slight ridge penalty."""
    root = np.sqrt(weights)[:, None]
    ridge = 1e-3 * np.eye(columns.shape[1])
    stacked = np.concatenate([columns * root, ridge])
    aim = np.concatenate([target * root[:, 0], np.zeros(columns.shape[1])])
    solution = np.linalg.lstsq(stacked, aim, rcond=None)[0]
    residual = target - columns @ solution
    return float(np.sum(weights * residual**2) / max(1.0, float(weights.sum()) - 3.0))


def _fall(relative: Floats, exponent: Floats | float) -> Floats:
    """Box-Cox transform of relative^-exponent, which also falls for negative exponents."""
    return np.asarray((relative**-exponent - 1) / exponent, dtype=np.float64)


def _spread(count: int) -> Floats:
    """Standard normal values at even quantiles, instead of random ones."""
    from scipy.special import ndtri

    return np.asarray(ndtri((np.arange(count) + 0.5) / count), dtype=np.float64)
