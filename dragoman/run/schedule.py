"""Learning-rate schedules: every policy of OpenSeq2Seq, each with optional warm-up; and one that follows plateaus.

`step` is the number of optimizer updates already done, so the first update uses rate(0). Where the batch grows, a decay
counts smaller steps in proportion to their tokens: their number says little about how much text was seen.
"""

import math
from collections.abc import Callable

from dragoman.run.config import TrainingSettings

Rate = Callable[[int], float]


def build_schedule(settings: TrainingSettings, width: int) -> Rate:
    """Builds the learning rate as a function of the step; the transformer policy scales with the model's `width`."""
    peak, warmup, cap = settings.learning_rate, settings.warmup_steps, settings.maximum_learning_rate
    decay = _build_decay(settings)

    def uncapped(step: int) -> float:
        if settings.schedule == "transformer":
            return float(peak * width**-0.5 * min((step + 1) * warmup**-1.5, (step + 1) ** -0.5))
        rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return rise * decay(step)

    return uncapped if cap is None else lambda step: min(uncapped(step), cap)


def peak_rate(schedule: Rate, settings: TrainingSettings) -> float:
    """Returns the largest rate of a schedule that rises during warm-up and never rises afterwards."""
    return max(schedule(step) for step in (0, max(0, settings.warmup_steps - 1), settings.warmup_steps))


def lower_at_plateaus(rate: float, num_cuts: int, settings: TrainingSettings) -> float:
    """Lowers the rate of the schedule "plateau" once for each time that the dev set did not get better."""
    if settings.schedule != "plateau" or num_cuts == 0:
        return rate
    # The floor never raises a rate: that of warm-up, or one that is set below the floor.
    return max(rate * settings.decay_rate**num_cuts, min(rate, settings.minimum_learning_rate))


def decay_length(settings: TrainingSettings) -> float:
    """Returns the length of the decay in steps of full size."""
    return settings.decay_steps or max(1, settings.batch_growth.full_steps(settings.warmup_steps, settings.max_steps))


def _build_decay(settings: TrainingSettings) -> Rate:
    """Builds the rate after warm-up; decay starts where warm-up ends."""
    peak, floor = settings.learning_rate, settings.minimum_learning_rate
    decay_steps, growth = decay_length(settings), settings.batch_growth

    def progress(step: int) -> float:
        return growth.full_steps(settings.warmup_steps, step) / decay_steps

    match settings.schedule:
        case "transformer" | "fixed" | "plateau":
            return lambda _: peak
        case "piecewise_constant":
            factors = dict(zip((0, *settings.boundaries), (1.0, *settings.multipliers), strict=True))
            return lambda step: peak * factors[max(boundary for boundary in factors if boundary <= step)]
        case "exponential":
            return lambda step: peak * settings.decay_rate ** progress(step)
        case "polynomial":
            return lambda step: floor + (peak - floor) * (1 - min(progress(step), 1)) ** settings.decay_power
        case "cosine":
            return lambda step: floor + (peak - floor) * (1 + math.cos(math.pi * min(progress(step), 1))) / 2
        case "inverse_polynomial":
            return lambda step: peak * (1 + progress(step)) ** -settings.decay_power
