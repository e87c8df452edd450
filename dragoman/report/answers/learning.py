"""Questions 2, 3 and 6: is the model fully trained, is it overfitting, and what does the learning rate do?"""

import numpy as np

from dragoman.diagnosis.forecast import Forecast, Prospect, round_steps
from dragoman.report.answers.speed import describe_hours, format_briefly
from dragoman.report.content import Answer, Chart, Look, Mark, Series, Table
from dragoman.report.evidence import Floats, curve
from dragoman.report.findings import Findings
from dragoman.run.config import TrainingSettings
from dragoman.run.schedule import build_schedule

_TRAINED = "Is the model fully trained, and how can you tell?"
_OVERFITTING = "Is it overfitting?"
LEARNING_RATE = "What does the learning-rate plot show, and why?"
FEWEST_EVALUATIONS = 5
_MORE_SHARE = 0.1
"""Length of the first forecast, as a share of the steps so far."""
_NUM_CURVE_POINTS = 80
_HIDDEN_SHARE = 0.03
"""Share of the steps left out of the loss chart: losses fall so fast at first that nothing else would be visible."""
_HIDDEN_GAP_SHARE = 0.1
"""Share of the steps left out of the chart of the gap between the losses, for the same reason."""
MAX_MARKS = 20
_SAME_RATE = 0.05
"""Largest median difference between recorded learning rates and a formula that they follow."""
_FALL = {
    "transformer": "then falls with one over the square root of the step",
    "fixed": "then stays constant",
    "piecewise_constant": "then falls in jumps",
    "exponential": "then falls exponentially",
    "polynomial": "then falls to its minimum",
    "cosine": "then falls to its minimum along a cosine",
    "inverse_polynomial": "then falls with a power of the step",
}
"""Words for the learning rate after warm-up, by schedule."""
_WHY_FALL = "Decay: near a good solution, smaller steps settle where large ones would jump around it."


def answer_trained(findings: Findings) -> Answer:
    """A forecast of loss and BLEU, with the cost of more steps."""
    loss, bleu = findings.loss_forecast, findings.bleu_forecast
    charts = [chart for chart in (_loss_chart(findings), _bleu_chart(findings)) if chart is not None]
    if loss is None:
        count = int(np.sum(findings.dev_loss[0] > 0))
        why = f"Cannot say: there are {count} evaluations, and a forecast needs at least {FEWEST_EVALUATIONS}."
        return Answer(_TRAINED, why, charts=charts, missing=["Evaluate more often (evaluation.evaluate_every)."])
    evidence = [_describe_flatness(loss), *([_describe_flatness(bleu)] if bleu else []), *_describe_stall(loss, bleu)]
    if findings.rates.assumption:
        evidence.append(findings.rates.assumption)
    evidence.append(
        "The forecast fits floor + A · (sum of learning rates)^-alpha + D · rate + E · (sum of rates), averaged over "
        "alpha; the intervals hold the true value nine times out of ten (benchmarks/forecast.py tests them on real "
        "curves)."
    )
    return Answer(
        _TRAINED,
        f"{_trained_or_not(findings, loss, bleu)} {what_more_would_bring(findings)}",
        evidence,
        confidence=min(0.85, 0.45 + 0.02 * len(findings.dev_loss[0])),
        charts=charts,
        tables=[] if is_schedule_over(findings) else [_prospects(findings, loss, bleu)],
        missing=[] if bleu else [f"A forecast of BLEU: fewer than {FEWEST_EVALUATIONS} evaluations have BLEU scores."],
    )


def _trained_or_not(findings: Findings, loss: Forecast, bleu: Forecast | None) -> str:
    if findings.overfitting is not None and findings.overfitting.is_overfitting:
        return "Yes, and it has begun to overfit: more steps would make it worse."
    if is_schedule_over(findings):
        return "Yes, as far as its learning-rate schedule goes."
    if loss.is_flat and (bleu is None or bleu.is_flat):
        return "Effectively yes: the curves are flat."
    if loss.is_flat:
        return "Nearly: the loss is flat, but BLEU is still rising."
    if bleu is not None and bleu.is_flat:
        return "Not quite: the loss is still falling, but BLEU has levelled off."
    return "No: the loss is still falling."


def what_more_would_bring(findings: Findings) -> str:
    """Describes the effect of more steps, or of a longer run if the schedule is over; empty without a forecast."""
    loss, bleu, more = findings.loss_forecast, findings.bleu_forecast, first_horizon(findings)
    if loss is None or more is None:
        return ""
    if not is_schedule_over(findings):
        steps = "1 more step" if more == 1 else f"{more:,} more steps"
        return _describe_prospect(findings, steps, loss.after(more), bleu.after(more) if bleu else None, more)
    over = "The schedule has reduced the learning rate to zero, so more steps would change nothing."
    if findings.rates.settings is None:
        return f"{over} If the model is not good enough, train again with a longer schedule."
    num_steps = 2 * loss.last_step
    rate = build_schedule(_stretched(findings.rates.settings, loss.last_step), findings.rates.width or 1)
    what = f"A new run with twice the steps ({num_steps:,})"
    longer = loss.in_longer_run(rate, num_steps)
    if not longer.is_sound:
        return f"{over} {what} would be better; the curve still falls too steeply to say by how much."
    longer_bleu = bleu.in_longer_run(rate, num_steps) if bleu else None
    return f"{over} {_describe_prospect(findings, what, longer, longer_bleu, num_steps)}"


def _stretched(settings: TrainingSettings, last_step: int) -> TrainingSettings:
    """Returns the settings with a decay over twice as many steps."""
    decay = settings.decay_steps or max(1, settings.max_steps - settings.warmup_steps)
    return settings.model_copy(update={"max_steps": 2 * last_step, "decay_steps": decay + last_step})


def first_horizon(findings: Findings) -> int | None:
    """Number of further steps of the first forecast; None where there is no forecast."""
    loss = findings.loss_forecast
    return None if loss is None else round_steps(_MORE_SHARE * loss.last_step)


def is_schedule_over(findings: Findings) -> bool:
    """Whether the learning rate is (almost) zero, so that more steps would change nothing."""
    loss = findings.loss_forecast
    if loss is None or not findings.rates.is_known:
        return False
    rate, last_step = findings.rates.rate, loss.last_step
    peak = max(rate(int(step)) for step in np.linspace(0, last_step, 200))
    return rate(int(last_step * 1.05) + 1) < 1e-3 * peak


def _describe_prospect(findings: Findings, what: str, loss: Prospect, bleu: Prospect | None, num_steps: int) -> str:
    """Describes gain, time and cost of more steps."""
    figures = [f"dev loss {loss.now:.3f} → {loss.then:.3f} ± {loss.margin:.3f}"]
    if bleu is not None and bleu.is_sound:
        shown = bleu.scaled(findings.bleu_unit)
        digits = _bleu_digits(findings)
        figures.append(f"{_bleu_kind(findings)} {shown.change:+.{digits}f} ± {shown.margin:.{digits}f}")
    if findings.whole_step_seconds is not None:
        seconds = findings.whole_step_seconds * num_steps
        figures.append(format_briefly(seconds))
        if findings.evidence.price_per_hour is not None:
            figures.append(f"cost {findings.evidence.price_per_hour * seconds / 3600:,.2f}")
    return f"{what}: {', '.join(figures)}."


def _bleu_kind(findings: Findings) -> str:
    return "teacher-forced BLEU" if findings.is_bleu_forced else "BLEU"


def _bleu_digits(findings: Findings) -> int:
    return 4 if findings.is_bleu_forced else 1


def _describe_flatness(found: Forecast) -> str:
    name, gain = ("BLEU", "0.1 points") if found.figure == "bleu" else ("loss", "0.005")
    if found.flat_from is None:
        return f"The {name} curve does not become flat within {int(found.last_step * 5):,} steps."
    verb = "is flat from" if found.is_flat else "will become flat at"
    return f"The {name} curve {verb} about step {found.flat_from:,}: from there 10% more steps gain less than {gain}."


def _describe_stall(loss: Forecast, bleu: Forecast | None) -> list[str]:
    if bleu is None or bleu.is_flat == loss.is_flat:
        return []
    if bleu.is_flat:
        return [
            "BLEU has levelled off while the loss still falls: what the model still learns no longer improves its "
            "translations."
        ]
    return ["The loss hardly falls any more, but BLEU still rises."]


def _prospects(findings: Findings, loss: Forecast, bleu: Forecast | None) -> Table:
    price = findings.evidence.price_per_hour
    choices = {first_horizon(findings) or 1, round_steps(0.5 * loss.last_step), loss.last_step}
    planned = findings.evidence.settings.training.max_steps
    if planned is not None and loss.last_step < planned <= loss.last_step * 2:
        choices.add(planned - loss.last_step)
    rows = []
    for steps in sorted(choices):
        ahead = loss.after(steps)
        row = [f"{steps:,}", f"{ahead.then:.3f}", f"{ahead.low:.3f} to {ahead.high:.3f}"]
        if bleu is not None:
            there, digits = bleu.after(steps).scaled(findings.bleu_unit), _bleu_digits(findings)
            row += [f"{there.then:.{digits}f}", f"{there.low:.{digits}f} to {there.high:.{digits}f}"]
        seconds = None if findings.whole_step_seconds is None else findings.whole_step_seconds * steps
        row.append("" if seconds is None else describe_hours(seconds))
        if price is not None:
            row.append("" if seconds is None else f"{price * seconds / 3600:,.2f}")
        rows.append(row)
    columns = ["more steps", "loss", "90% interval", *([_bleu_kind(findings), "90% interval"] if bleu else []), "time"]
    columns += ["cost"] if price is not None else []
    return Table("Gain from more steps", columns, rows, tuple(range(len(columns))))


def _loss_chart(findings: Findings) -> Chart | None:
    steps, losses = findings.dev_loss
    train_steps, train = curve(findings.evidence.train, "loss")
    if not len(steps) and not len(train_steps):
        return None
    begin = _HIDDEN_SHARE * (findings.evidence.last_step or 0)
    sample_steps, sample = curve(findings.evidence.evaluations, "train_sample_loss")
    series = [
        _from(begin, "training", train_steps, train, "line"),
        _from(begin, "dev set", steps, losses, "points"),
        _from(begin, "training sentences, without dropout", sample_steps, sample, "dashed"),
    ]
    if findings.loss_forecast is not None:
        series += _forecast_series(findings.loss_forecast)
    note = (
        "Training loss is measured with dropout, dev loss without. The first "
        f"{_HIDDEN_SHARE:.0%} of the steps are not shown."
    )
    marks = [Mark(restart.step, "restart") for restart in findings.evidence.restarts[:MAX_MARKS]]
    shown = [each for each in series if len(each.x)]
    return Chart("loss", "Loss", "step", "loss in nats per token", shown, marks, note=note)


def _from(begin: float, name: str, steps: Floats, values: Floats, look: Look) -> Series:
    is_shown = steps >= begin
    return Series(name, steps[is_shown].tolist(), values[is_shown].tolist(), look)


def _bleu_chart(findings: Findings) -> Chart | None:
    steps, values = findings.bleu
    is_trained = steps > 0
    if not np.any(is_trained):
        return None
    unit = findings.bleu_unit
    series = [Series("dev set", steps[is_trained].tolist(), (unit * values[is_trained]).tolist(), "points")]
    if findings.bleu_forecast is not None:
        series += _forecast_series(findings.bleu_forecast, unit)
    if findings.is_bleu_forced:
        label, note = "teacher-forced BLEU of subwords, 0 to 1", "This is not the BLEU of translations."
        return Chart("bleu", "Teacher-forced BLEU", "step", label, series, note=note)
    return Chart("bleu", "BLEU", "step", "BLEU of translations, 0 to 100", series)


def _forecast_series(found: Forecast, unit: float = 1.0) -> list[Series]:
    """The fitted curve, continued by half the run, with its interval."""
    begin = max(1.0, _HIDDEN_SHARE * found.last_step)
    steps = np.linspace(begin, found.last_step * 1.5, _NUM_CURVE_POINTS)
    ahead = steps[steps >= found.last_step]
    expected = found.fit.predict(ahead.tolist())
    line = unit * found.fit.curve(steps.tolist()).value
    return [
        Series("fit and forecast", steps.tolist(), line.tolist(), "dashed"),
        Series("90% interval", ahead.tolist(), (unit * expected.high).tolist(), "band", (unit * expected.low).tolist()),
    ]


def answer_overfitting(findings: Findings) -> Answer:
    """A statistical test on both losses, and the checkpoint to use."""
    found = findings.overfitting
    train, is_comparable = findings.comparable_train_loss
    if found is None:
        why = f"Cannot say: this needs at least {FEWEST_EVALUATIONS} evaluations."
        return Answer(_OVERFITTING, why, missing=["Evaluate more often (evaluation.evaluate_every)."])
    best = f"the best checkpoint is that of step {found.best_step:,}"
    if found.is_overfitting:
        answer = (
            f"Yes: the dev loss rises more than chance explains (p {_p(found.rise_p)}); use the checkpoint of step "
            f"{found.best_step:,}."
        )
    elif found.is_memorising:
        answer = (
            "Not yet: the dev loss does not rise more than chance explains, but the training loss falls away from it "
            f"(p {_p(found.gap_p or 0.0)}); {best}."
        )
    else:
        answer = f"No: the dev loss does not rise more than chance explains (p {_p(found.rise_p)}); {best}."
    change = found.late_slope * (findings.evidence.last_step or 0) / 10_000
    evidence = [
        f"Best dev loss: {found.best_loss:.4f} at step {found.best_step:,}; the last is {found.last_loss:.4f}.",
        f"Over the last third of the evaluations it changes by {change:+.4f} per tenth of the run.",
    ]
    if found.gap_begin is not None and found.gap_end is not None and found.gap_p is not None:
        evidence.append(
            f"Dev loss minus training loss went from {found.gap_begin:+.3f} to {found.gap_end:+.3f} in the second half "
            f"of the run (p {_p(found.gap_p)} for a rise by chance)."
        )
    evidence += _describe_best_bleu(findings)
    missing = []
    if train is not None and not is_comparable:
        missing.append(
            "A comparable training loss: here it is that of single batches with dropout, which is too high for a fair "
            "comparison. dragoman also evaluates training sentences without dropout."
        )
    confidence = min(0.95 if is_comparable else 0.8, 0.5 + 0.02 * len(findings.dev_loss[0]))
    return Answer(_OVERFITTING, answer, evidence, confidence, _gap_charts(findings), missing=missing)


def _p(value: float) -> str:
    return f"= {value:.2g}" if value >= 0.001 else "< 0.001"


def _describe_best_bleu(findings: Findings) -> list[str]:
    steps, values = findings.bleu
    is_trained = steps > 0
    if findings.is_bleu_forced or not np.any(is_trained):
        return []
    best = int(np.argmax(values[is_trained]))
    return [f"Best BLEU: {values[is_trained][best]:.2f} at step {int(steps[is_trained][best]):,}."]


def _gap_charts(findings: Findings) -> list[Chart]:
    steps, losses = findings.dev_loss
    train, is_comparable = findings.comparable_train_loss
    if train is None:
        return []
    is_shown = steps > _HIDDEN_GAP_SHARE * steps[-1]
    how = "both without dropout" if is_comparable else "training with dropout, smoothed over the same steps"
    title = "Dev loss minus training loss"
    gap = Series(title.lower(), steps[is_shown].tolist(), (losses - train)[is_shown].tolist())
    note = f"A rising line means that the model memorises its training data ({how})."
    return [Chart("gap", title, "step", "nats per token", [gap], note=note)]


def answer_learning_rate(findings: Findings) -> Answer:
    """The plot, the formula with this run's numbers, and the reason for each part of it."""
    rates = findings.rates
    if not rates.is_known:
        missing = ["The learning rate was not logged, and the settings are not known."]
        return Answer(LEARNING_RATE, "Not known.", missing=missing)
    chart = _rate_chart(findings)
    if rates.settings is None:
        steps, values = rates.recorded
        peak = int(np.argmax(values))
        answer = f"It peaks at {values[peak]:.3e} at step {int(steps[peak]):,} and ends at {values[-1]:.3e}."
        missing = ["The formula of its schedule."]
        return Answer(LEARNING_RATE, answer, [rates.assumption], 0.7, [chart], missing=missing)
    deviation = rates.typical_deviation
    evidence = _explain_schedule(rates.settings, rates.width)
    if deviation is not None and deviation <= _SAME_RATE:
        evidence.append(f"Recorded rates agree with the formula: the median difference is {deviation:.1%}.")
    elif deviation is not None:
        evidence.append(f"Recorded rates differ from the formula: the median difference is {deviation:.0%}.")
    evidence.append("It does not react to the loss or to plateaus: it depends on the step alone.")
    confidence = 0.8 if deviation is None else (1.0 if deviation <= _SAME_RATE else 0.5)
    return Answer(LEARNING_RATE, _describe_rates(findings, rates.settings), evidence, confidence, [chart])


def _describe_rates(findings: Findings, settings: TrainingSettings) -> str:
    rate, warmup = findings.rates.rate, settings.warmup_steps
    last_step = findings.evidence.last_step or settings.max_steps
    if last_step < warmup:
        return (
            f"It was still rising when the run ended, at {rate(last_step - 1):.3e}: the warm-up has {warmup:,} steps, "
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
    match settings.schedule:
        case "cosine" | "polynomial":
            return f" It reaches {settings.minimum_learning_rate:g} after {decay:,} further steps."
        case "exponential":
            return f" It is multiplied by {settings.decay_rate:g} every {decay:,} steps."
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
    series, marks = [], []
    steps, values = rates.recorded
    if len(steps):
        series.append(Series("recorded", steps.tolist(), values.tolist()))
    if rates.settings is not None:
        points = np.unique(np.linspace(0, last_step, 300).astype(int))
        series.append(Series("by the formula", points.tolist(), [rates.rate(int(p)) for p in points], "dashed"))
        if 0 < rates.settings.warmup_steps < last_step:
            marks.append(Mark(rates.settings.warmup_steps, "end of warm-up"))
    return Chart("learning-rate", "Learning rate", "step", "learning rate", series, marks, y_from_zero=True)
