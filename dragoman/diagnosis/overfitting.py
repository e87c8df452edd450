"""Is a model overfitting? A statistical test on the curves of dev loss and training loss.

Neighbouring evaluations are of almost the same model and share its errors, so a loss wanders even where nothing is
learned or lost; real curves wander almost as much as random walks do. So a rise counts only if few random walks of the
same length look as much like overfitting: its probability is their share among simulated ones. Independent errors give
even fewer false alarms; benchmarks/overfitting.py measures both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats, float], Floats]
"""How much each row looks like overfitting, in units of its own wandering; the second argument is the rounding."""
FEWEST_EVALUATIONS = 5
STATED_ALARMS = 0.05
"""Largest share of false alarms that is promised."""
SIGNIFICANT = 0.04
"""Probability below which a rise counts; a little less than promised, for noise that is worse than a random walk."""
_LARGE_RISE = 0.2
"""Share of the lowest loss by which it rose clearly: evaluations differ by a few percent by chance."""
_SIGNIFICANT_IF_LARGE = 0.2
"""Probability below which such a large rise counts."""
LATE_SHARE = 1 / 3
"""Share of the evaluations that are the end of the run."""
_SMALLEST_GROWTH = 0.005
"""Smallest growth of a loss or gap that counts, in nats, however certain it is."""
_MOST_BLOCKS = 16
"""A rise is sought in the means of at most this many parts of a run; means have less noise than single evaluations."""
_FEWEST_RISES = 3
"""Fewest parts after the best one: fewer do not show whether the rise is more than chance."""
_NUM_WALKS = 2_000
_LONGEST_WALK = 200
"""Longer curves are thinned, so that a log with thousands of evaluations does not take seconds."""


@dataclass(frozen=True)
class Overfitting:
    """Result of the tests."""

    is_overfitting: bool
    """Whether the dev loss rises since its best level, or has settled above it, more than by chance."""
    may_be_overfitting: bool
    """Whether it rose clearly, but in so few evaluations that chance explains it too."""
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
    num_late = _num_late(len(x))
    slope, _ = _line(x[-num_late:], dev[-num_late:])
    best = int(np.argmin(dev))
    rise_p = _chance(dev, (_late_trend, _rise_since_best, _settled_rise))
    is_risen = float(np.mean(dev[-2:]) - dev[best]) > _SMALLEST_GROWTH
    is_large = float(np.mean(dev[-num_late:])) > (1 + _LARGE_RISE) * float(np.mean(np.sort(dev)[:2]))
    is_overfitting = rise_p < (_SIGNIFICANT_IF_LARGE if is_large else SIGNIFICANT) and is_risen
    has_risen_far = float(np.mean(dev[-2:])) > (1 + _LARGE_RISE) * float(dev[best])
    gap_p: float | None = None
    gap_ends: tuple[float | None, float | None] = (None, None)
    if train_losses is not None:
        gap_p, gap_ends = _gap_trend(x, dev - np.asarray(train_losses, dtype=np.float64))
    return Overfitting(
        is_overfitting=is_overfitting,
        may_be_overfitting=not is_overfitting and has_risen_far and rise_p < _SIGNIFICANT_IF_LARGE,
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


def _num_late(count: int) -> int:
    return max(FEWEST_EVALUATIONS - 1, round(count * LATE_SHARE))


def _is_growing(begin: float | None, end: float | None) -> bool:
    """Whether the gap is positive and grows by more than rounding errors."""
    return begin is not None and end is not None and end > 0 and end - begin > _SMALLEST_GROWTH


def _gap_trend(x: Floats, gap: Floats) -> tuple[float, tuple[float, float]]:
    late = max(FEWEST_EVALUATIONS - 1, len(x) // 2)
    slope, level = _line(x[-late:], gap[-late:])
    begin, end = (level + slope * (step - float(np.mean(x[-late:]))) for step in (x[-late], x[-1]))
    return _chance(gap[-late:], (_trend,)), (float(begin), float(end))


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Returns slope and mean of a straight line through the points."""
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred)), float(y.mean())


def _chance(values: Floats, statistics: tuple[Statistic, ...]) -> float:
    """Share of random walks that look at least as much like overfitting, by the statistic that is clearest for each."""
    values = values[:: -math.ceil(len(values) / _LONGEST_WALK)][::-1]
    differences = np.diff(np.sort(values))
    # Losses of a log may be rounded; then their smallest difference is one unit of the last digit.
    rounding = float(np.min(differences[differences > 0])) if differences.any() else 0.0
    rounding = max(rounding, 1e-12 * float(np.max(np.abs(values))))
    of_walks, clearest = _of_walks(statistics, len(values))
    found = [statistic(values[None, :], rounding) for statistic in statistics]
    smallest = float(np.min(np.mean(of_walks >= np.stack(found), axis=1)))
    return float((1 + np.sum(clearest <= smallest)) / (1 + _NUM_WALKS))


@lru_cache(maxsize=64)
def _of_walks(statistics: tuple[Statistic, ...], length: int) -> tuple[Floats, Floats]:
    """Returns the statistics of random walks without a trend, and for each walk the share that exceeds its clearest."""
    walks = np.cumsum(np.random.default_rng(0).standard_normal((_NUM_WALKS, length)), axis=1)
    found = np.stack([statistic(walks, 0.0) for statistic in statistics])
    ranks = np.argsort(np.argsort(-found, axis=1, kind="stable"), axis=1, kind="stable")
    # The smallest of several shares is small more often than each of them, for walks as for the curve.
    return found, np.min(1 + ranks, axis=0) / _NUM_WALKS


def _rise_since_best(rows: Floats, rounding: float) -> Floats:
    """Mean rise from part to part since the best part, in units of how much the rises differ from each other."""
    ends = np.linspace(0, rows.shape[1], min(_MOST_BLOCKS, rows.shape[1]) + 1).round().astype(int)
    means = np.add.reduceat(rows, ends[:-1], axis=1) / np.diff(ends)
    rises = np.diff(means, axis=1)
    best = np.argmin(means[:, : means.shape[1] - _FEWEST_RISES], axis=1)[:, None]
    counts = rises.shape[1] - best
    is_since = np.arange(rises.shape[1]) >= best
    mean = np.sum(rises * is_since, axis=1, keepdims=True) / counts
    # Differences of neighbouring rises, not of all: overfitting often becomes faster and faster.
    variance = np.sum(np.diff(rises, axis=1) ** 2 * is_since[:, :-1], axis=1, keepdims=True) / (2 * (counts - 1))
    return _in_units(mean, np.sqrt(variance / counts), rounding)


def _settled_rise(rows: Floats, rounding: float) -> Floats:
    """Height of the end of the run above the best part before it, in units of how far the end itself wanders."""
    num_late = _num_late(rows.shape[1])
    width = max(2, num_late // 2)
    late, before = rows[:, -num_late:], rows[:, :-num_late]
    if before.shape[1] < width:
        return np.zeros(len(rows))
    level = late.mean(axis=1, keepdims=True)
    best = np.lib.stride_tricks.sliding_window_view(before, width, axis=1).mean(axis=2).min(axis=1, keepdims=True)
    return _in_units(level - best, _wandering(late - level), rounding)


def _late_trend(rows: Floats, rounding: float) -> Floats:
    return _trend(rows[:, -_num_late(rows.shape[1]) :], rounding)


def _trend(rows: Floats, rounding: float) -> Floats:
    """Rise of a straight line through each row, in units of how far the values wander around it."""
    x = np.arange(rows.shape[1]) - (rows.shape[1] - 1) / 2
    slope = (rows @ x / (x @ x))[:, None]
    residuals = rows - rows.mean(axis=1, keepdims=True) - slope * x
    return _in_units(slope * rows.shape[1], _wandering(residuals), rounding)


def _wandering(residuals: Floats) -> Floats:
    """Root mean square of the sums of residuals, per value: large if neighbours deviate in the same direction."""
    sums = np.cumsum(residuals, axis=1)
    return np.asarray(np.sqrt(np.mean(sums**2, axis=1, keepdims=True)) / np.sqrt(residuals.shape[1]))


def _in_units(rise: Floats, unit: Floats, rounding: float) -> Floats:
    return np.asarray((rise / np.maximum(np.hypot(unit, rounding / 3), 1e-300))[:, 0], dtype=np.float64)
