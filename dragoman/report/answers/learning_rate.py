"""Question 6: what does the learning rate do?"""

import numpy as np

from dragoman.report.content import Answer, Chart, Mark, Series
from dragoman.report.evidence import Floats
from dragoman.report.findings import Findings
from dragoman.run.config import TrainingSettings

LEARNING_RATE = "What does the learning-rate plot show, and why?"
_SAME_RATE = 0.05
"""Largest median difference between recorded learning rates and a formula that they follow."""
_AT_TOP = 0.001
"""Share of the largest rate by which others may be lower and count as the same."""
_FEWEST_RATES = 4
"""Recorded rates that are needed to see by which formula they fall."""
_MAX_CUTS = 6
_FALL = {
    "transformer": "then falls with one over the square root of the step",
    "fixed": "then stays constant",
    "piecewise_constant": "then falls in jumps",
    "exponential": "then falls exponentially",
    "polynomial": "then falls to its minimum",
    "cosine": "then falls to its minimum along a cosine",
    "inverse_polynomial": "then falls with a power of the step",
    "plateau": "then falls each time the dev set stops getting better",
}
"""Words for the learning rate after warm-up, by schedule."""
_SHORT_FALL = {
    "transformer": "inverse square root",
    "fixed": "constant",
    "piecewise_constant": "falls in jumps",
    "exponential": "exponential decay",
    "polynomial": "polynomial decay",
    "cosine": "cosine",
    "inverse_polynomial": "inverse power",
    "plateau": "lowered at plateaus",
}
_WHY_FALL = "Decay: near a good solution, smaller steps settle where large ones would jump around it."


def answer_learning_rate(findings: Findings) -> Answer:
    """The plot, the formula with this run's numbers, and the reason for each part of it."""
    rates = findings.rates
    if not rates.is_known:
        missing = ["The learning rate was not logged, and the settings are not known."]
        return Answer(LEARNING_RATE, "Not known.", missing=missing, short="Not known")
    chart = _rate_chart(findings)
    if rates.settings is None:
        answer, short = _describe_recorded(*rates.recorded)
        missing = ["The formula of its schedule."]
        return Answer(LEARNING_RATE, answer, [rates.assumption], 0.7, [chart], missing=missing, short=short)
    deviation = rates.typical_deviation
    evidence = _explain_schedule(rates.settings, rates.width)
    if deviation is not None and deviation <= _SAME_RATE:
        evidence.append(f"Recorded rates agree with the formula: the median difference is {deviation:.1%}.")
    elif deviation is not None:
        evidence.append(f"Recorded rates differ from the formula: the median difference is {deviation:.0%}.")
    evidence.append(_describe_reaction(findings, rates.settings))
    is_recorded = rates.settings.schedule == "plateau" and len(rates.recorded[0]) > 0
    confidence = 1.0 if is_recorded else 0.8 if deviation is None else (1.0 if deviation <= _SAME_RATE else 0.5)
    answer, short = _describe_rates(findings, rates.settings), _shorten(findings, rates.settings)
    return Answer(LEARNING_RATE, answer, evidence, confidence, [chart], short=short)


def _describe_recorded(steps: Floats, values: Floats) -> tuple[str, str]:
    """Tells the course of rates whose formula is not known: long and short."""
    if len(values) == 1:
        return (
            f"One value is known: {values[0]:.3e} at step {int(steps[0]):,}.",
            f"{values[0]:.2g} at step {int(steps[0]):,}",
        )
    top, last = values.max(), len(values) - 1
    if top - values.min() <= _SAME_RATE * top:
        return _describe_small_change(values)
    at_top = np.flatnonzero(values >= (1 - _AT_TOP) * top)
    first, final = int(at_top[0]), int(at_top[-1])
    is_level = final > first and len(at_top) == final - first + 1
    parts = [f"begins at {top:.3e}" if first == 0 else f"rises to {top:.3e} at step {int(steps[first]):,}"]
    if is_level:
        parts.append(f"stays there until step {int(steps[final]):,}")
    if final < last:
        fall = " with one over the square root of the step" if _falls_with_root(steps[final:], values[final:]) else ""
        parts.append(f"falls{fall} to {values[-1]:.3e} at the end")
    between = ", and " if len(parts) > 2 else " and "
    course = between.join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"It {course}.", f"Peak {top:.2g} at step {int(steps[first]):,}"


def _describe_small_change(values: Floats) -> tuple[str, str]:
    """Tells the course of rates that are nearly equal: long and short."""
    if values.max() - values.min() <= _AT_TOP * values.max():
        return f"It stayed at {values[-1]:.3e}.", f"Constant, {values[-1]:.2g}"
    if len(np.unique(values)) > _FEWEST_RATES and np.all(np.diff(values) <= 0):
        return f"It falls slowly, from {values[0]:.3e} to {values[-1]:.3e}.", f"Falls slowly, {values[-1]:.2g}"
    return f"It hardly changed: from {values[0]:.3e} to {values[-1]:.3e}.", f"About {values[-1]:.2g}"


def _falls_with_root(steps: Floats, values: Floats) -> bool:
    """Whether the rates times the square root of the step are the same; the first may be of the time before."""
    products = values[1:] * np.sqrt(steps[1:])
    is_known = len(products) >= _FEWEST_RATES and products.min() > 0
    return bool(is_known and products.max() <= (1 + _SAME_RATE) * products.min())


def _describe_reaction(findings: Findings, settings: TrainingSettings) -> str:
    """Says whether the rate depends on results, and when it was lowered for them."""
    if settings.schedule != "plateau":
        return "It does not react to the loss or to plateaus: it depends on the step alone."
    cuts = findings.rates.cuts
    if not cuts:
        return "It reacts to the dev set, which never stopped getting better for long: it was not lowered."
    shown = ", ".join(f"{rate:.3g} from about step {step:,}" for step, rate in cuts[:_MAX_CUTS])
    more = f" and {len(cuts) - _MAX_CUTS} more times" if len(cuts) > _MAX_CUTS else ""
    return f"It reacts to the dev set: it was lowered to {shown}{more}."


def _shorten(findings: Findings, settings: TrainingSettings) -> str:
    if findings.progress.is_warming_up and findings.evidence.last_step is not None:
        return "Still warming up"
    warmup = "Warm-up, then " if settings.warmup_steps else ""
    short = f"{warmup}{_SHORT_FALL[settings.schedule]}"
    return short[0].upper() + short[1:]


def _describe_rates(findings: Findings, settings: TrainingSettings) -> str:
    rate, warmup = findings.rates.rate, settings.warmup_steps
    if not findings.evidence.last_step:
        rise = f"rises over {warmup:,} steps of warm-up" if warmup else "begins at its maximum"
        return f"By its settings it {rise}, {_FALL[settings.schedule]}; no step was made that shows it."
    last_step = findings.evidence.last_step
    if last_step < warmup:
        return (
            f"It was still rising at the last step, at {rate(last_step - 1):.3e}: the warm-up has {warmup:,} steps, "
            f"after which it would have been {rate(warmup - 1):.3e}."
        )
    steps = np.unique(np.concatenate([np.linspace(0, last_step, 500), [max(0, warmup - 1)]]).astype(int))
    values = [rate(int(step)) for step in steps if step <= max(last_step, 1)]
    peak = int(np.argmax(values))
    at_peak = f"{values[peak]:.3e} (step {int(steps[peak]) + 1:,})"
    rise = f"rises over {warmup:,} steps of warm-up to {at_peak}" if warmup else f"begins at its maximum, {at_peak}"
    return f"It {rise}, {_FALL[settings.schedule]}, and was {rate(max(0, last_step - 1)):.3e} at the end."


def _explain_schedule(settings: TrainingSettings, width: int | None) -> list[str]:
    """The formula with this run's numbers, and why it has this form."""
    warmup, base = settings.warmup_steps, settings.learning_rate
    if settings.schedule == "transformer":
        formula = (
            f"rate(s) = {base:g} · {width}^-0.5 · min((s+1) · {warmup}^-1.5, (s+1)^-0.5), where s is the number of "
            "updates already made."
        )
    else:
        rise = f", times (s+1)/{warmup} while s < {warmup}" if warmup else ""
        formula = f"{settings.schedule}: a base rate of {base:g}{rise}.{_describe_decay(settings)}"
    messages = [formula]
    if settings.maximum_learning_rate is not None:
        messages.append(f"It is never above {settings.maximum_learning_rate:g} (maximum_learning_rate).")
    if warmup:
        messages.append(
            f"Warm-up: in the first {warmup:,} steps Adam's averages of gradients are still unreliable and the weights "
            "random; large updates could damage the model for good."
        )
    if settings.schedule != "fixed":
        messages.append(_WHY_FALL)
    return messages


def _describe_decay(settings: TrainingSettings) -> str:
    decay = settings.decay_steps or max(1, settings.max_steps - settings.warmup_steps)
    is_growing = bool(settings.initial_batch_tokens and settings.decay_steps)
    steps = "steps of full batches" if is_growing else "steps"
    match settings.schedule:
        case "cosine" | "polynomial":
            return f" It reaches {settings.minimum_learning_rate:g} after {decay:,} further {steps}."
        case "exponential":
            return f" It is multiplied by {settings.decay_rate:g} every {decay:,} {steps}."
        case "piecewise_constant":
            jumps = ", ".join(
                f"× {m:g} from step {b:,}" for b, m in zip(settings.boundaries, settings.multipliers, strict=True)
            )
            return f" It changes by {jumps}."
        case "plateau":
            return (
                f" It is multiplied by {settings.decay_rate:g}, down to {settings.minimum_learning_rate:g} at the "
                f"least, after {settings.plateau_patience} evaluations in a row without a better score on the dev set."
            )
        case "inverse_polynomial":
            return f" It falls with (1 + progress)^-{settings.decay_power:g}, progress in units of {decay:,} {steps}."
    return ""


def _rate_chart(findings: Findings) -> Chart:
    rates, last_step = findings.rates, findings.evidence.last_step or 1
    series, marks = [], []
    steps, values = rates.recorded
    if len(steps):
        series.append(Series("recorded", steps.tolist(), values.tolist()))
    if rates.settings is not None:
        points = np.unique(np.linspace(0, last_step, 300).astype(int))
        if rates.settings.schedule != "plateau":
            series.append(Series("by the formula", points.tolist(), [rates.rate(int(p)) for p in points], "dashed"))
        if 0 < rates.settings.warmup_steps < last_step:
            marks.append(Mark(rates.settings.warmup_steps, "end of warm-up"))
    return Chart("learning-rate", "Learning rate", "step", "learning rate", series, marks, y_from_zero=True)
