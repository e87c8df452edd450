"""How long steps took: mean and spread, drift over the run, and outliers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.diagnosis.step_model import SHORTEST_STEP

Floats = NDArray[np.float64]
_OUTLIER_DEVIATIONS = 6.0
"""Robust standard deviations above the median from which an interval is an outlier."""
_SMALLEST_EXCESS = 0.03
"""Share of the median; an interval that exceeds it by less is no outlier, however even the others are."""
FEWEST_FOR_DRIFT = 10


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
