"""Question 6: what does the learning rate do, and why?"""

import numpy as np

from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Chart, Mark, Series
from dragoman.run.config import TrainingSettings

QUESTION = "What does the learning-rate plot show, and why?"


def answer_learning_rate(findings: Findings) -> Answer:
    """The plot, the formula with this run's numbers, and what each part is for."""
    rates = findings.rates
    if not rates.is_known:
        missing = ["The learning rate was not logged, and the settings are not known."]
        return Answer(QUESTION, "That is not known.", missing=missing)
    chart = _rate_chart(findings)
    if rates.settings is None:
        steps, values = rates.recorded
        peak = int(np.argmax(values))
        answer = f"It peaks at {values[peak]:.3e} at step {int(steps[peak]):,} and ends at {values[-1]:.3e}."
        return Answer(QUESTION, answer, [rates.assumption], 0.7, [chart], missing=["The formula of its schedule."])
    deviation = rates.typical_deviation
    sentences = [*explain_schedule(rates.settings, rates.width)]
    if deviation is not None:
        sentences.append(f"Recorded rates agree with the formula: they differ by {deviation:.1%} in the middle.")
        if deviation > 0.05:
            sentences[-1] = f"Recorded rates differ from the formula by {deviation:.0%} in the middle."
    sentences.append(
        "It does not react to the loss or to plateaus, and it explores nothing: it is a function of the step."
    )
    confidence = 0.8 if deviation is None else (1.0 if deviation <= 0.05 else 0.5)
    return Answer(QUESTION, _rate_answer(findings, rates.settings), sentences, confidence, [chart])


def _rate_answer(findings: Findings, settings: TrainingSettings) -> str:
    rate = findings.rates.rate
    last_step = findings.evidence.last_step or settings.max_steps
    if last_step < settings.warmup_steps:
        return (
            f"It was still rising when the run ended, at {rate(last_step - 1):.3e}: the warm-up has "
            f"{settings.warmup_steps:,} steps, after which it would have been {rate(settings.warmup_steps - 1):.3e}."
        )
    steps = np.unique(np.concatenate([np.linspace(0, last_step, 500), [max(0, settings.warmup_steps - 1)]]).astype(int))
    values = [rate(int(step)) for step in steps if step <= max(last_step, 1)]
    peak = int(np.argmax(values))
    rise = (
        f"rises over {settings.warmup_steps:,} steps of warm-up"
        if settings.warmup_steps
        else "begins at its full height"
    )
    fall = {
        "transformer": "then falls with one over the square root of the step",
        "fixed": "then stays",
        "piecewise_constant": "then falls in jumps",
        "exponential": "then falls exponentially",
        "polynomial": "then falls to its minimum",
        "cosine": "then falls to its minimum along a cosine",
        "inverse_polynomial": "then falls with a power of the step",
    }[settings.schedule]
    return (
        f"It {rise} to {values[peak]:.3e} (step {int(steps[peak]) + 1:,}), {fall}, and was "
        f"{rate(max(0, last_step - 1)):.3e} at the end."
    )


def explain_schedule(settings: TrainingSettings, width: int | None) -> list[str]:
    """The formula with this run's numbers, and why it has this form."""
    warmup = settings.warmup_steps
    why_rise = (
        f"Warm-up: in the first {warmup:,} steps Adam's averages of gradients are still unreliable and the weights "
        "random; large steps then would throw the model off for good."
    )
    why_fall = "Decay: near a good solution smaller steps settle where large ones would jump around it."
    if settings.schedule == "transformer":
        formula = (
            f"rate(s) = {settings.learning_rate:g} · {width}^-0.5 · min((s+1) · {warmup}^-1.5, (s+1)^-0.5), "
            "s being the updates already made."
        )
    else:
        formula = f"{settings.schedule}: a base rate of {settings.learning_rate:g}" + (
            f", times (s+1)/{warmup} while s < {warmup}." if warmup else "."
        )
        formula += _decay_numbers(settings)
    cap = settings.maximum_learning_rate
    capped = [f"It is never above {cap:g} (maximum_learning_rate)."] if cap is not None else []
    return [formula, *capped, *([why_rise] if warmup else []), *([why_fall] if settings.schedule != "fixed" else [])]


def _decay_numbers(settings: TrainingSettings) -> str:
    decay = settings.decay_steps or max(1, settings.max_steps - settings.warmup_steps)
    match settings.schedule:
        case "cosine" | "polynomial":
            return f" It reaches {settings.minimum_learning_rate:g} after {decay:,} further steps."
        case "exponential":
            return f" It falls to {settings.decay_rate:g} of itself every {decay:,} steps."
        case "piecewise_constant":
            jumps = ", ".join(
                f"× {m:g} from step {b:,}" for b, m in zip(settings.boundaries, settings.multipliers, strict=True)
            )
            return f" It changes by {jumps}."
        case "inverse_polynomial":
            return f" It falls with (1 + progress)^-{settings.decay_power:g}, progress in units of {decay:,} steps."
    return ""


def _rate_chart(findings: Findings) -> Chart:
    rates, last_step = findings.rates, findings.evidence.last_step or 1
    series = []
    steps, values = rates.recorded
    if len(steps):
        series.append(Series("recorded", steps.tolist(), values.tolist()))
    marks = []
    if rates.settings is not None:
        settings = rates.settings
        points = np.unique(np.linspace(0, last_step, 300).astype(int))
        series.append(Series("by the formula", points.tolist(), [rates.rate(int(p)) for p in points], "dashed"))
        if 0 < settings.warmup_steps < last_step:
            marks.append(Mark(settings.warmup_steps, "end of warm-up"))
    return Chart("learning-rate", "Learning rate", "step", "learning rate", series, marks, y_from_zero=True)
