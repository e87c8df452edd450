"""A training loss that is not a number: since when, the likely cause, and what was spent after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.report.evidence import Evidence, curve
from dragoman.run.records import ImportedFailure, TrainRecord

_HIGH_RATE = 2e-3
"""Learning rates above this are too high for most Transformers trained with Adam."""
_RISE = 3.0
"""The gradient norm rose if it is above this many times its median."""
_NO_SCALING = (False, 0, "none", "None", "off", "no")
_HALF_PRECISION = ("mixed", "fp16", "float16", "half")
_MAX_DEPTH = 4


@dataclass(frozen=True)
class NanLoss:
    """When the loss became NaN, and what that cost."""

    step: int
    last_good_step: int | None
    causes: list[str]
    """What the settings and records point to, the most likely first."""
    steps_after: int
    seconds_after: float | None
    cost_after: float | None
    log_line: str = ""


def find_nan_loss(evidence: Evidence, seconds_per_step: float | None) -> NanLoss | None:
    """Describes the NaN of a run; None where the loss is a number at the end."""
    step = evidence.first_nan_step
    if step is None:
        return None
    good = [record.step for record in evidence.train if record.loss is not None and record.step < step]
    steps_after = max(0, (evidence.last_step or step) - step)
    seconds = _seconds_after(evidence, step, steps_after, seconds_per_step)
    price = evidence.price_per_hour
    cost = None if price is None or seconds is None else price * seconds / 3600
    lines = [each.evidence for each in evidence.failures if is_about_nan(each) and each.evidence]
    return NanLoss(
        step, max(good, default=None), likely_causes(evidence, step), steps_after, seconds, cost, next(iter(lines), "")
    )


def is_about_nan(failure: ImportedFailure) -> bool:
    """Whether a failure says only that the loss is not a number."""
    what = failure.what.lower()
    return "not a number" in what or "nan" in what.split()


def _seconds_after(evidence: Evidence, step: int, steps_after: int, seconds_per_step: float | None) -> float | None:
    """Seconds from the first NaN to the last record, by the clock if there is one, else by the time of a step."""
    if evidence.facts.clock != "reconstructed":
        times = [record.time for record in evidence.records if record.time is not None and record.step >= step]
        if len(times) > 1:
            return max(0.0, max(times) - min(times))
    return None if seconds_per_step is None else steps_after * seconds_per_step


def likely_causes(evidence: Evidence, step: int) -> list[str]:
    """Returns why a loss became NaN or exploded at a step, the most likely first."""
    before = [record for record in evidence.train if record.step < step]
    until = [record for record in evidence.train if record.step <= step]
    found = [
        *_precision_causes(evidence),
        *_gradient_causes(before),
        *_rate_causes(evidence, until, step),
        *_clipping_causes(evidence),
    ]
    return found or ["a learning rate that is too high, or damaged data in a batch"]


def _precision_causes(evidence: Evidence) -> list[str]:
    precision, scaling = evidence.facts.precision, evidence.facts.loss_scaling
    if precision not in _HALF_PRECISION:
        return []
    if scaling is not None and (scaling in _NO_SCALING if isinstance(scaling, str | bool | int) else False):
        return [f"half precision ({precision}) without loss scaling"]
    return [f"an overflow in half precision ({precision})"]


def _gradient_causes(before: Sequence[TrainRecord]) -> list[str]:
    _, norms = curve(before, "gradient_norm")
    if len(norms) < 3 or norms[-1] <= _RISE * np.median(norms):
        return []
    return [f"gradients that grew (norm {norms[-1]:.3g} just before, {np.median(norms):.3g} in the middle)"]


def _rate_causes(evidence: Evidence, until: Sequence[TrainRecord], step: int) -> list[str]:
    _, rates = curve(until, "learning_rate")
    warmup = evidence.warmup_steps
    causes = []
    if len(rates) and rates[-1] >= _HIGH_RATE:
        causes.append(f"a learning rate that is too high ({rates[-1]:.3g})")
    if warmup == 0:
        causes.append("no warm-up of the learning rate")
    elif warmup and step <= warmup and not causes:
        causes.append(f"a learning rate that rises too fast (the warm-up has {warmup:,.0f} steps)")
    return causes


def _clipping_causes(evidence: Evidence) -> list[str]:
    clip = evidence.settings.training.clip_norm
    values = (
        [clip] if clip is not None else _clipping_values(evidence.imported.printed_config if evidence.imported else {})
    )
    return ["no clipping of gradients"] if values and not any(values) else []


def _clipping_values(config: Any, depth: int = 0) -> list[Any]:
    """Values of the settings with "clip" in their names, as a trainer printed them."""
    if not isinstance(config, dict) or depth > _MAX_DEPTH:
        return []
    found: list[Any] = []
    for name, value in config.items():
        if isinstance(value, dict):
            found += _clipping_values(value, depth + 1)
        elif "clip" in str(name).lower() and (value is None or isinstance(value, int | float)):
            found.append(value)
    return found
