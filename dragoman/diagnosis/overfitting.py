"""Is a model overfitting? A statistical test on the curves of dev loss and training loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FEWEST_EVALUATIONS = 5
SIGNIFICANT = 0.05
LATE_SHARE = 1 / 3
"""Share of the evaluations at the end of the run whose trend is tested."""
_SMALLEST_GROWTH = 0.005
"""Smallest growth of a gap that counts, in nats, however certain it is."""
_NUM_AROUND_BEST = 2
"""Evaluations on each side of the best one that define its level; the best one itself may be luck."""


@dataclass(frozen=True)
class Overfitting:
    """Result of the tests."""

    is_overfitting: bool
    """Whether the dev loss rises at the end or is above its best level, more than by chance."""
    is_memorising: bool
    """Whether the training loss is below the dev loss and the gap grows, more than by chance; harmless while the dev
    loss still falls."""
    rise_p: float
    """Probability of such a rise by chance."""
    gap_p: float | None
    best_step: int
    best_loss: float
    last_loss: float
    late_slope: float
    """Change of the dev loss per 1,000 steps at the end of the run."""
    gap_begin: float | None
    gap_end: float | None
    """Dev loss minus training loss, at the beginning and end of the second half."""


def find_overfitting(
    steps: Sequence[float], dev_losses: Sequence[float], train_losses: Sequence[float] | None
) -> Overfitting | None:
    """Tests evaluations in order of their steps; `train_losses` are of the same steps. None if there are too few."""
    x, dev = np.asarray(steps, dtype=np.float64), np.asarray(dev_losses, dtype=np.float64)
    if len(x) < FEWEST_EVALUATIONS:
        return None
    num_late = max(FEWEST_EVALUATIONS - 1, round(len(x) * LATE_SHARE))
    slope, slope_p = _rising_trend(x[-num_late:], dev[-num_late:])
    best = int(np.argmin(dev))
    around = [i for i in range(best - _NUM_AROUND_BEST, best + _NUM_AROUND_BEST + 1) if i != best]
    before = list(range(best - 2 * _NUM_AROUND_BEST, best))
    levels = [_level_test(dev, places, num_late) for places in (around, before)]
    # Three tests are made, so each must be three times as significant (Bonferroni).
    rise_p = min(1.0, 3 * min(slope_p, *levels))
    gap_p: float | None = None
    gap_ends: tuple[float | None, float | None] = (None, None)
    if train_losses is not None:
        gap_p, gap_ends = _gap_trend(x, dev - np.asarray(train_losses, dtype=np.float64))
    return Overfitting(
        is_overfitting=rise_p < SIGNIFICANT,
        is_memorising=gap_p is not None and gap_p < SIGNIFICANT and _is_growing(*gap_ends),
        rise_p=rise_p,
        gap_p=gap_p,
        best_step=int(x[best]),
        best_loss=float(dev[best]),
        last_loss=float(dev[-1]),
        late_slope=1_000 * slope,
        gap_begin=gap_ends[0],
        gap_end=gap_ends[1],
    )


def _is_growing(begin: float | None, end: float | None) -> bool:
    """Whether the gap is positive and grows by more than rounding errors."""
    return begin is not None and end is not None and end > 0 and end - begin > _SMALLEST_GROWTH


def _gap_trend(x: Floats, gap: Floats) -> tuple[float, tuple[float, float]]:
    late = max(FEWEST_EVALUATIONS - 1, len(x) // 2)
    slope, p = _rising_trend(x[-late:], gap[-late:])
    middle, level = float(np.mean(x[-late:])), float(np.mean(gap[-late:]))
    begin, end = (level + slope * (step - middle) for step in (x[-late], x[-1]))
    return p, (float(begin), float(end))


def _rising_trend(x: Floats, y: Floats) -> tuple[float, float]:
    """Returns the slope and its probability by chance; values that are correlated with their neighbours count less."""
    from scipy.special import stdtr

    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - slope * centred
    correlation = _neighbour_correlation(residual)
    num_values = len(x) * (1 - correlation) / (1 + correlation)
    freedom = max(1.0, num_values - 2)
    variance = float(residual @ residual) / max(1, len(x) - 2) * len(x) / max(num_values, 1.0)
    error = np.sqrt(variance / (centred @ centred))
    if error <= 1e-12 * max(1e-12, float(np.max(np.abs(y)))) / float(np.max(np.abs(centred))):
        return slope, 0.0 if slope > 0 else 1.0
    return slope, float(stdtr(freedom, -slope / error))


def _neighbour_correlation(residual: Floats) -> float:
    power = float(residual @ residual)
    if len(residual) < 4 or power <= 0:
        return 0.0
    return float(np.clip(residual[1:] @ residual[:-1] / power, 0.0, 0.8))


def _level_test(dev: Floats, places: list[int], num_late: int) -> float:
    """Probability that the last losses are above those at some places by chance (Welch); 1 where both are the same."""
    from scipy.special import stdtr

    first_late = len(dev) - max(2, num_late // 2)
    known = [place for place in places if 0 <= place < len(dev)]
    if len(known) < 2 or max(known) >= first_late:
        return 1.0
    level, late = dev[known], dev[first_late:]
    variances = [max(1e-18, float(np.var(each, ddof=1)) / len(each)) for each in (level, late)]
    total = sum(variances)
    freedom = total**2 / sum(v**2 / (len(each) - 1) for v, each in zip(variances, (level, late), strict=True))
    return float(stdtr(freedom, -(late.mean() - level.mean()) / np.sqrt(total)))
