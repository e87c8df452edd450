"""Question 2: is the model fully trained, and what would more steps bring?"""

import numpy as np

from dragoman.diagnosis.forecast import Forecast, Prospect, round_steps
from dragoman.report.answers.duration import describe_hours
from dragoman.report.evidence import Floats, curve
from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Chart, Look, Mark, Series, Table
from dragoman.run.config import TrainingSettings
from dragoman.run.schedule import build_schedule

QUESTION = "Is the model fully trained, and how can you tell?"
MORE_SHARE = 0.1
"""Of the steps so far: how many more are asked about first."""
NUM_CURVE_POINTS = 80
HIDDEN_SHARE = 0.03
"""Of the steps: losses fall so far in the beginning that nothing else could be seen beside it."""


def answer_trained(findings: Findings) -> Answer:
    """A forecast of loss and BLEU, with what more steps would cost."""
    loss, bleu = findings.loss_forecast, findings.bleu_forecast
    if loss is None:
        count = int(np.sum(findings.dev_loss[0] > 0))
        why = f"That cannot be told: there are {count} evaluations, and a forecast needs at least 5."
        missing = ["Evaluate more often (evaluation.evaluate_every): five evaluations are the least a curve needs."]
        return Answer(QUESTION, why, charts=_learning_charts(findings), missing=missing)
    answer = f"{_trained_or_not(findings, loss, bleu)} {what_more_would_bring(findings)}"
    sentences = [_flat_sentence(loss), *([_flat_sentence(bleu)] if bleu else []), *_stall_sentences(loss, bleu)]
    if findings.rates.assumption:
        sentences.append(findings.rates.assumption)
    sentences.append(
        "The forecast fits floor + A · (sum of learning rates)^-alpha + D · rate + E · (sum of rates), averaged over "
        "alpha; intervals hold nine times of ten (benchmarks/forecast.py tests them on real curves)."
    )
    num_points = len(findings.dev_loss[0])
    confidence = min(0.85, 0.45 + 0.02 * num_points)
    tables = [] if is_schedule_over(findings) else [_prospects(findings, loss, bleu)]
    missing = [] if bleu else ["There are no BLEU scores of at least five evaluations to forecast."]
    return Answer(QUESTION, answer, sentences, confidence, _learning_charts(findings), tables, missing)


def what_more_would_bring(findings: Findings) -> str:
    """In one sentence: more steps, or where the schedule has ended a longer run; empty without a forecast."""
    loss, bleu, more = findings.loss_forecast, findings.bleu_forecast, first_horizon(findings)
    if loss is None or more is None:
        return ""
    if not is_schedule_over(findings):
        steps = "1 more step" if more == 1 else f"{more:,} more steps"
        return describe_prospect(findings, steps, loss.after(more), bleu.after(more) if bleu else None, more)
    over = "The schedule has brought the learning rate to zero, so that going on brings nothing."
    if findings.rates.settings is None:
        return f"{over} Train anew with a longer schedule if it is not good enough."
    num_steps = 2 * loss.last_step
    rate = build_schedule(_stretched(findings.rates.settings, loss.last_step), findings.rates.width or 1)
    what = f"A new run of twice the steps ({num_steps:,})"
    longer = loss.in_longer_run(rate, num_steps)
    if not longer.is_sound:
        return f"{over} {what} would be better; its curve still falls too steeply to tell how much."
    found = bleu.in_longer_run(rate, num_steps) if bleu else None
    return f"{over} {describe_prospect(findings, what, longer, found, num_steps)}"


def _stretched(settings: TrainingSettings, last_step: int) -> TrainingSettings:
    """The schedule with its decay over twice as many steps."""
    decay = settings.decay_steps or max(1, settings.max_steps - settings.warmup_steps)
    update = {"max_steps": 2 * last_step, "decay_steps": decay + last_step}
    return settings.model_copy(update=update)


def first_horizon(findings: Findings) -> int | None:
    """How many more steps are asked about first; None where there is no forecast."""
    loss = findings.loss_forecast
    return None if loss is None else round_steps(MORE_SHARE * loss.last_step)


def _trained_or_not(findings: Findings, loss: Forecast, bleu: Forecast | None) -> str:
    if findings.overfitting is not None and findings.overfitting.is_overfitting:
        return "More than that: it has begun to overfit, and further steps make it worse."
    if is_schedule_over(findings):
        return "As far as its schedule went, yes."
    if loss.is_flat and (bleu is None or bleu.is_flat):
        return "Yes, as good as: its curves are flat."
    if loss.is_flat:
        return "Nearly: the loss is flat, BLEU still rises."
    if bleu is not None and bleu.is_flat:
        return "Not by its loss, which still falls, but BLEU has levelled off."
    return "No: its loss still falls."


def describe_prospect(findings: Findings, what: str, loss: Prospect, bleu: Prospect | None, num_steps: int) -> str:
    """What so many steps bring and cost."""
    parts = [f"dev loss {loss.now:.3f} → {loss.then:.3f} ± {loss.margin:.3f}"]
    if bleu is not None and bleu.is_sound:
        shown = bleu.scaled(findings.bleu_unit)
        digits = _bleu_digits(findings)
        parts.append(f"{_bleu_kind(findings)} {shown.change:+.{digits}f} ± {shown.margin:.{digits}f}")
    if findings.whole_step_seconds is not None:
        seconds = findings.whole_step_seconds * num_steps
        parts.append(_briefly(seconds))
        if findings.evidence.price_per_hour is not None:
            parts.append(f"cost {findings.evidence.price_per_hour * seconds / 3600:,.2f}")
    return f"{what}: {', '.join(parts)}."


def _bleu_kind(findings: Findings) -> str:
    return "teacher-forced BLEU" if findings.bleu_name == "teacher_forced_bleu" else "BLEU"


def _bleu_digits(findings: Findings) -> int:
    return 4 if findings.bleu_name == "teacher_forced_bleu" else 1


def _briefly(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _flat_sentence(found: Forecast) -> str:
    name, gain = ("BLEU", "0.1 points") if found.figure == "bleu" else ("loss", "0.005")
    if found.flat_from is None:
        return f"The curve of the {name} does not flatten within {int(found.last_step * 5):,} steps."
    if found.is_flat:
        how = f"is flat from about step {found.flat_from:,} on"
    else:
        how = f"flattens at about step {found.flat_from:,}"
    return f"The curve of the {name} {how}: there a tenth more steps brings less than {gain}."


def _stall_sentences(loss: Forecast, bleu: Forecast | None) -> list[str]:
    if bleu is None or bleu.is_flat == loss.is_flat:
        return []
    if bleu.is_flat:
        return [
            "BLEU stalls while the loss still falls: what the model still learns no longer shows in its translations."
        ]
    return ["The loss hardly falls any more while BLEU still rises."]


def is_schedule_over(findings: Findings) -> bool:
    """Whether the learning rate has come to (almost) zero, so that further steps would change nothing."""
    loss = findings.loss_forecast
    if loss is None or not findings.rates.is_known:
        return False
    rate, last_step = findings.rates.rate, loss.last_step
    peak = max(rate(int(step)) for step in np.linspace(0, last_step, 200))
    return rate(int(last_step * 1.05) + 1) < 1e-3 * peak


def _prospects(findings: Findings, loss: Forecast, bleu: Forecast | None) -> Table:
    rows = []
    choices = dict.fromkeys(
        [
            first_horizon(findings) or 1,
            round_steps(0.5 * loss.last_step),
            loss.last_step,
            *_steps_to_plan(findings, loss),
        ]
    )
    for steps in sorted(choices):
        ahead = loss.after(steps)
        row = [f"{steps:,}", f"{ahead.then:.3f}", f"{ahead.low:.3f} to {ahead.high:.3f}"]
        if bleu is not None:
            there, digits = bleu.after(steps).scaled(findings.bleu_unit), _bleu_digits(findings)
            row += [f"{there.then:.{digits}f}", f"{there.low:.{digits}f} to {there.high:.{digits}f}"]
        seconds = None if findings.whole_step_seconds is None else findings.whole_step_seconds * steps
        row.append("" if seconds is None else describe_hours(seconds))
        price = findings.evidence.price_per_hour
        if price is not None:
            row.append("" if seconds is None else f"{price * seconds / 3600:,.2f}")
        rows.append(row)
    columns = ["more steps", "loss", "90% interval", *([_bleu_kind(findings), "90% interval"] if bleu else []), "time"]
    columns += ["cost"] if findings.evidence.price_per_hour is not None else []
    return Table("What more steps would bring", columns, rows, tuple(range(len(columns))))


def _steps_to_plan(findings: Findings, loss: Forecast) -> list[int]:
    planned = findings.evidence.training.get("max_steps")
    if isinstance(planned, int) and loss.last_step < planned <= loss.last_step * 2:
        return [planned - loss.last_step]
    return []


def _learning_charts(findings: Findings) -> list[Chart]:
    return [chart for chart in (_loss_chart(findings), _bleu_chart(findings)) if chart is not None]


def _loss_chart(findings: Findings) -> Chart | None:
    steps, losses = findings.dev_loss
    train_steps, train = curve(findings.evidence.train, "loss")
    if not len(steps) and not len(train_steps):
        return None
    begin = HIDDEN_SHARE * (findings.evidence.last_step or 0)
    series = [_from(begin, "training", train_steps, train, "line"), _from(begin, "dev set", steps, losses, "points")]
    sample_steps, sample = curve(findings.evidence.evaluations, "train_sample_loss")
    series.append(_from(begin, "training text, as the dev set is measured", sample_steps, sample, "dashed"))
    if findings.loss_forecast is not None:
        series += _forecast_series(findings.loss_forecast)
    series = [each for each in series if len(each.x)]
    hidden = f"The first {HIDDEN_SHARE:.0%} of the steps are not shown."
    note = f"Training loss is measured with dropout, the dev set without. {hidden}"
    marks = _restart_marks(findings)
    return Chart("loss", "Loss", "step", "loss in nats per token", series, marks, note=note)


def _from(begin: float, name: str, steps: Floats, values: Floats, look: Look) -> Series:
    is_shown = steps >= begin
    return Series(name, steps[is_shown].tolist(), values[is_shown].tolist(), look)


def _bleu_chart(findings: Findings) -> Chart | None:
    steps, values = findings.bleu
    is_trained = steps > 0
    if not np.any(is_trained):
        return None
    is_forced, unit = findings.bleu_name == "teacher_forced_bleu", findings.bleu_unit
    name = "teacher-forced BLEU of pieces, 0 to 1" if is_forced else "BLEU of translations, 0 to 100"
    series = [Series("dev set", steps[is_trained].tolist(), (unit * values[is_trained]).tolist(), "points")]
    if findings.bleu_forecast is not None:
        series += _forecast_series(findings.bleu_forecast, unit)
    note = "This is not the BLEU of translations." if is_forced else ""
    return Chart("bleu", "Teacher-forced BLEU" if is_forced else "BLEU", "step", name, series, note=note)


def _forecast_series(found: Forecast, unit: float = 1.0) -> list[Series]:
    """The fitted curve, and its continuation by half the run with its interval."""
    begin = max(1.0, HIDDEN_SHARE * found.last_step)
    steps = np.linspace(begin, found.last_step * 1.5, NUM_CURVE_POINTS)
    ahead = steps[steps >= found.last_step]
    expected = found.fit.predict(ahead.tolist())
    line = unit * found.fit.curve(steps.tolist()).value
    return [
        Series("fit and forecast", steps.tolist(), line.tolist(), "dashed"),
        Series("90% interval", ahead.tolist(), (unit * expected.high).tolist(), "band", (unit * expected.low).tolist()),
    ]


def _restart_marks(findings: Findings) -> list[Mark]:
    return [Mark(restart.step, "restart") for restart in findings.evidence.restarts[:20]]
