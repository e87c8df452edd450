"""Did training diverge? A loss that rises far above its lowest level and stays there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_LOSSES = 10
_WINDOW_SHARE = 0.1
"""Length of the end of a curve, and of the part that it is compared with, as a share of the curve."""
_SMALLEST_WINDOW = 3
_LARGEST_WINDOW = 50
_SMALLEST_RATIO = 1.5
_SMALLEST_RISE = 0.5
"""A rise of less, in nats, may come from other data or settings."""
_DEVIATIONS = 4.0
"""Standard deviations of single losses, from one to the next, that a rise must exceed."""
_BACK_AT_BEST = 0.25
"""Share of the rise below which a loss counts as still being at its lowest level."""


@dataclass(frozen=True)
class Divergence:
    """A loss that rose and stayed high."""

    step: int
    """The first step after which the loss never came back."""
    last_good_step: int
    lowest: float
    """Level of the loss at its lowest, a median over several values."""
    last: float
    """Level of the loss at the end."""


def find_divergence(steps: Sequence[float], losses: Sequence[float]) -> Divergence | None:
    """Finds a divergence in losses in the order of their steps; None where there is none."""
    values = np.asarray(losses, dtype=np.float64)
    if len(values) < FEWEST_LOSSES:
        return None
    width = min(_LARGEST_WINDOW, max(_SMALLEST_WINDOW, round(_WINDOW_SHARE * len(values))))
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    medians = np.median(windows, axis=1)
    best, lowest, last = int(np.argmin(medians)), float(np.min(medians)), float(medians[-1])
    if last - lowest < _SMALLEST_RISE or last < _SMALLEST_RATIO * lowest:
        return None
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2)
    if last - lowest < _DEVIATIONS * noise or np.min(windows[-1]) <= np.max(windows[best]):
        return None  # single values differ as much as the two levels do
    good = int(np.flatnonzero(values <= lowest + _BACK_AT_BEST * (last - lowest))[-1])
    if good + 1 >= len(values):
        return None
    return Divergence(int(steps[good + 1]), int(steps[good]), lowest, last)
