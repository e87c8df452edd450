"""Question 2: is the model fully trained?"""

import numpy as np

from dragoman.diagnosis.divergence import Divergence
from dragoman.diagnosis.forecast import Forecast, Prospect, round_steps
from dragoman.diagnosis.wording import join_words
from dragoman.report.best_checkpoint import BY_LOSS
from dragoman.report.content import Answer, Table
from dragoman.report.durations import describe_hours, format_briefly
from dragoman.report.findings import Findings
from dragoman.report.learning_charts import learning_charts
from dragoman.report.nan_loss import NanLoss, likely_causes
from dragoman.report.scores import score_of
from dragoman.report.state import (
    cause_of_death,
    describe_divergence,
    describe_nan_cost,
    describe_rest,
    describe_warmup,
    is_stop,
    shorten_cause,
)
from dragoman.run.config import TrainingSettings
from dragoman.run.schedule import build_schedule, decay_length
from dragoman.run.summary import with_full_stop
from dragoman.run.units import counted

_TRAINED = "Is the model fully trained, and how can you tell?"
FEWEST_EVALUATIONS = 5
_FEWEST_LATE = 3
_MORE_SHARE = 0.1
"""Length of the first forecast, as a share of the steps so far."""
_HOW_FORECASTS_WORK = (
    "The forecast fits floor + A · (sum of learning rates)^-alpha + D · rate + E · (sum of rates), averaged over "
    "alpha; the intervals hold the true value nine times out of ten (benchmarks/forecast.py tests them on real curves)."
)


def answer_trained(findings: Findings) -> Answer:
    """The plan of the run, and a forecast of loss and BLEU with the cost of more steps."""
    nan, progress = findings.nan_loss, findings.progress
    if nan is not None:
        return _answer_nan(findings, nan)
    if progress.is_untrained:
        return _answer_untrained(findings)
    if findings.divergence is not None:
        return _answer_diverged(findings, findings.divergence)
    loss, bleu = findings.loss_forecast, findings.bleu_forecast
    if loss is None and bleu is None:
        return _without_forecast(findings)
    answer, short = _trained_or_not(findings, loss, bleu)
    missing = [] if bleu or findings.is_bleu_forced else [_missing_score(findings)]
    has_table = loss is not None and not is_schedule_over(findings)
    return Answer(
        _TRAINED,
        " ".join(filter(None, (answer, what_more_would_bring(findings)))),
        _trained_evidence(findings, loss, bleu),
        confidence=min(0.85, 0.45 + 0.02 * max(len(findings.dev_loss[0]), len(findings.bleu[0]))),
        charts=learning_charts(findings),
        tables=_prospects(findings, loss, bleu) if has_table and loss is not None else [],
        missing=missing,
        short=short,
    )


def _answer_nan(findings: Findings, nan: NanLoss) -> Answer:
    best = findings.best_checkpoint
    advice = f"Use the checkpoint of {best.describe()}." if best else "No checkpoint of this run is worth using."
    if best is None and nan.last_good_step:
        advice = f"Only checkpoints up to step {nan.last_good_step:,} can be used."
    return Answer(
        _TRAINED,
        f"No: the training loss is not a number since step {nan.step:,}, so nothing was learned after it.",
        [describe_nan_cost(nan).strip(), advice],
        confidence=1.0,
        charts=learning_charts(findings),
        short=f"No: NaN since step {nan.step:,}",
    )


def _answer_diverged(findings: Findings, found: Divergence) -> Answer:
    best = findings.best_checkpoint
    advice = [f"Use the checkpoint of {best.describe()}."] if best else []
    return Answer(
        _TRAINED,
        f"No: {describe_divergence(findings, found)}",
        [f"Likely cause: {join_words(likely_causes(findings.evidence, found.step), 'or')}.", *advice],
        confidence=0.9,
        charts=learning_charts(findings),
        short=f"No: diverged after step {found.last_good_step:,}",
    )


def _answer_untrained(findings: Findings) -> Answer:
    charts, last = learning_charts(findings), findings.evidence.last_step
    if findings.evidence.may_have_steps and not last:
        return Answer(_TRAINED, f"Not known. {findings.evidence.missing_steps}", charts=charts, short="Not known")
    if not last:
        seen = "logged" if findings.evidence.facts.has_begun_training else "trained"
        return Answer(_TRAINED, f"No: no step was {seen}.", confidence=0.9, charts=charts, short=f"No step {seen}")
    why = f"No: the run made only {findings.progress.describe()}."
    return Answer(_TRAINED, why, confidence=0.95, charts=charts, short=f"No: only {counted(last, 'step')}")


def _without_forecast(findings: Findings) -> Answer:
    """Judges a run with too few evaluations by its own plan."""
    progress = findings.progress
    too_few = describe_evaluations(findings)
    if any(each.step > 0 for each in findings.evaluations):
        too_few += f", but a forecast needs at least {FEWEST_EVALUATIONS} evaluations"
    missing = [missing_evaluations(findings)]
    charts = learning_charts(findings)
    if progress.is_unfinished:
        seen = ", as far as this log shows" if findings.evidence.is_excerpt else ""
        said = [f"No{seen}: it made {progress.describe()}.", describe_warmup(findings), describe_rest(findings)]
        answer = " ".join(filter(None, said))
        evidence = [f"What more steps would bring cannot be said: {too_few}."]
        short = f"No: {progress.percent} of the plan"
        return Answer(_TRAINED, answer, evidence, 0.9, charts, missing=missing, short=short)
    if not progress.is_over and (found := _describe_early_end(findings)):
        evidence = [f"What more steps would bring cannot be said: {too_few}."]
        return Answer(_TRAINED, found[0], evidence, 0.7, charts, missing=missing, short=found[1])
    if progress.is_over:
        noun = findings.evidence.step_noun
        is_planned = progress.share is not None or not findings.evidence.is_imported
        did = f"did all of its {progress.steps_done:,} {noun}s"
        did = did if is_planned else f"ended by itself after {counted(progress.steps_done, noun)}"
        short = "Plan finished" if is_planned else "Ended by itself"
        answer = f"It {did}. Whether more would help cannot be said: {too_few}."
        return Answer(_TRAINED, answer, confidence=0.3, charts=charts, missing=missing, short=short)
    return Answer(_TRAINED, f"Cannot say: {too_few}.", charts=charts, missing=missing, short="Cannot say")


def _describe_early_end(findings: Findings) -> tuple[str, str] | None:
    """Says that a run without a known plan ended too early, also in a few words; None where nothing shows it."""
    if warmup := describe_warmup(findings):
        return f"No: it made only {findings.progress.describe()}. {warmup}", "No: still warming up"
    cause = cause_of_death(findings)
    if not cause or is_stop(cause):
        return None
    return f"Probably not: it did not end by itself. {with_full_stop(cause)}", f"Probably not: {shorten_cause(cause)}"


def describe_evaluations(findings: Findings) -> str:
    """Says how often the run was evaluated: "it was never evaluated", "it was evaluated once"."""
    count = len([each for each in findings.evaluations if each.step > 0])
    if not count and findings.evidence.evaluations and findings.nan_loss is not None:
        return "it was evaluated only after its loss became NaN"
    if not count and findings.evidence.facts.has_unread_evaluations:
        return "it was evaluated, but the log does not show the results"
    if findings.evidence.may_have_steps:
        where = "this excerpt" if findings.evidence.is_excerpt else "what could be read of the log"
        return f"{where} shows {'no evaluation' if not count else counted(count, 'evaluation')}"
    times = {0: "was never evaluated", 1: "was evaluated once", 2: "was evaluated twice"}
    return f"it {times.get(count, f'was evaluated {count} times')}"


def missing_evaluations(findings: Findings) -> str:
    """Names what is needed to judge the curves."""
    setting = "" if findings.evidence.is_imported else " (evaluation.evaluate_every)"
    return f"Evaluate more often{setting}."


def _missing_score(findings: Findings) -> str:
    if findings.is_score_falling:
        return "A forecast of BLEU: it has been falling, which the fitted curve does not show."
    if len(findings.bleu[1]) >= FEWEST_EVALUATIONS:
        return "A forecast of BLEU: all scores are 0."
    return f"A forecast of BLEU: fewer than {FEWEST_EVALUATIONS} evaluations have BLEU scores."


def _trained_or_not(findings: Findings, loss: Forecast | None, bleu: Forecast | None) -> tuple[str, str]:
    """Returns the answer as a message and in a few words."""
    answer, short = _by_the_curves(findings, loss, bleu)
    progress = findings.progress
    if not progress.is_unfinished:
        return answer, short
    plan = f"It made {progress.describe()}."
    if short == "No":
        short = f"No: {progress.percent} of the plan"
    return " ".join(filter(None, (answer, plan, describe_warmup(findings), describe_rest(findings)))), short


def _by_the_curves(findings: Findings, loss: Forecast | None, bleu: Forecast | None) -> tuple[str, str]:
    found = findings.overfitting
    if found is not None and found.is_overfitting:
        return _while_overfitting(findings, bleu)
    if is_schedule_over(findings):
        return "Yes, as far as its learning-rate schedule goes.", "Yes: the schedule is over"
    is_loss_flat, is_bleu_flat = loss is None or loss.is_flat, bleu is None or has_levelled_off(findings, bleu)
    name = _bleu_kind(findings)
    if is_loss_flat and (best_step := step_of_stall(findings)) is not None:
        also = "" if loss is None else "the loss is flat, and "
        return f"Effectively yes: {also}{name} has not risen since step {best_step:,}.", "Effectively yes"
    if is_loss_flat and is_bleu_flat:
        return "Effectively yes: the curves are flat.", "Effectively yes"
    if is_loss_flat:
        return f"Nearly: the loss is flat, but {name} is still rising.", "Nearly"
    if bleu is not None and is_bleu_flat:
        return f"Not quite: the loss is still falling, but {name} has levelled off.", "Not quite"
    return "No: the loss is still falling.", "No"


def _while_overfitting(findings: Findings, bleu: Forecast | None) -> tuple[str, str]:
    """Weighs a rising dev loss against the score of the translations, which may still rise."""
    found = findings.overfitting
    noun = findings.evidence.step_noun
    rises = f"the dev loss has been rising since {noun} {found.best_step:,}" if found else ""
    if not does_score_disagree(findings):
        start = max(found.best_step, step_of_falling_score(findings) or 0) if found else 0
        since = f" since {findings.evidence.step_noun} {start:,}" if found else ""
        return f"Yes, and it has been overfitting{since}: more steps would make it worse.", "Yes, and overfitting"
    name = findings.score.name if findings.score else "BLEU"
    if bleu is not None and not has_levelled_off(findings, bleu) and name == "BLEU":
        return f"Not quite: {rises}, but BLEU still rises.", "Not quite: BLEU still rises"
    best = findings.best_checkpoint
    where = f"was best at {noun} {best.step:,} and " if best else ""
    return f"Nearly: {rises}, and {name} {where}hardly rises any more.", "Nearly"


def has_levelled_off(findings: Findings, bleu: Forecast) -> bool:
    """Whether BLEU no longer rises: by its fitted curve, or because it was best long ago."""
    return bleu.is_flat or step_of_stall(findings) is not None


def step_of_stall(findings: Findings) -> int | None:
    """Returns the step of the best BLEU if none of the last third of the evaluations is better; None otherwise."""
    steps, values = findings.bleu
    # An untrained model may score high: teacher forcing lets it echo the reference.
    is_trained = steps > 0
    steps, values = steps[is_trained], values[is_trained]
    best = int(values.argmax()) if len(values) else 0
    num_late = len(values) // 3
    if num_late < _FEWEST_LATE or best >= len(values) - num_late or not values[best]:
        return None
    return int(steps[best])


def does_score_disagree(findings: Findings) -> bool:
    """Whether the translations became better by their score while the dev loss rose, and did not become worse later."""
    best, found, score = findings.best_checkpoint, findings.overfitting, findings.score
    if best is None or found is None or score is None or best.by == BY_LOSS or best.step <= found.best_step:
        return False
    if findings.is_score_falling:
        return False
    at_lowest_loss = score_near(findings, found.best_step)
    return at_lowest_loss is None or best.value != at_lowest_loss


def step_of_falling_score(findings: Findings) -> int | None:
    """Returns the step of the best score if the translations have become worse since then; None otherwise."""
    best = findings.best_checkpoint
    is_known = best is not None and best.by != BY_LOSS and findings.is_score_falling
    return best.step if best is not None and is_known else None


def score_near(findings: Findings, step: int) -> float | None:
    """Returns the score of the evaluation at a step; None where it has none."""
    score = findings.score
    here = [each for each in findings.evaluations if each.step == step]
    return score_of(here[0], score.key) if here and score is not None else None


def _trained_evidence(findings: Findings, loss: Forecast | None, bleu: Forecast | None) -> list[str]:
    best_step = step_of_stall(findings)
    is_late_rise = bleu is not None and not bleu.is_flat and best_step is not None
    shown = (loss, None if is_late_rise else bleu)  # a fitted curve that still rises is wrong then
    evidence = [_describe_flatness(findings, each) for each in shown if each is not None]
    if bleu is not None and best_step is not None:
        num_after = int((findings.bleu[0] > best_step).sum())
        name = _bleu_kind(findings)
        evidence.append(f"The {num_after} evaluations after step {best_step:,} had no better {name}.")
    elif loss is not None and not (findings.overfitting and findings.overfitting.is_overfitting):
        evidence += _describe_stall(loss, bleu)
    if findings.rates.assumption:
        evidence.append(findings.rates.assumption)
    return [*evidence, _HOW_FORECASTS_WORK]


def what_more_would_bring(findings: Findings) -> str:
    """Describes the effect of more steps, or of a longer run if the schedule is over; empty without a forecast."""
    loss, bleu, more = findings.loss_forecast, findings.bleu_forecast, first_horizon(findings)
    known = loss or bleu
    if known is None or more is None:
        return ""
    if not is_schedule_over(findings):
        ahead = loss.after(more) if loss else None
        return _describe_prospect(
            findings,
            counted(more, f"more {findings.evidence.step_noun}"),
            ahead,
            bleu.after(more) if bleu else None,
            more,
        )
    over = "The schedule has reduced the learning rate to zero, so more steps would change nothing."
    if findings.overfitting is not None and findings.overfitting.may_be_overfitting:
        return f"{over} More data or more dropout would help more than a longer schedule: the dev loss rose."
    if findings.rates.settings is None:
        return f"{over} If the model is not good enough, train again with a longer schedule."
    num_steps = 2 * known.last_step
    rate = build_schedule(_stretched(findings.rates.settings, known.last_step), findings.rates.width or 1)
    what = f"A new run with twice the steps ({num_steps:,})"
    longer = loss.in_longer_run(rate, num_steps) if loss else None
    if longer is not None and not longer.is_useful:
        return f"{over} {what} would be better; the curve still falls too steeply to say by how much."
    longer_bleu = bleu.in_longer_run(rate, num_steps) if bleu else None
    return f"{over} {_describe_prospect(findings, what, longer, longer_bleu, num_steps)}"


def _stretched(settings: TrainingSettings, last_step: int) -> TrainingSettings:
    """Returns the settings with a decay over twice as many steps."""
    decay = round(decay_length(settings) + settings.batch_growth.full_steps(last_step, 2 * last_step))
    return settings.model_copy(update={"max_steps": 2 * last_step, "decay_steps": decay})


def first_horizon(findings: Findings) -> int | None:
    """Number of further steps of the first forecast; None where there is no forecast."""
    known = findings.loss_forecast or findings.bleu_forecast
    return None if known is None else round_steps(_MORE_SHARE * known.last_step)


def is_schedule_over(findings: Findings) -> bool:
    """Whether the learning rate is (almost) zero, so that more steps would change nothing."""
    known = findings.loss_forecast or findings.bleu_forecast
    if known is None or not findings.rates.is_known:
        return False
    rate, last_step = findings.rates.rate, known.last_step
    peak = max(rate(int(step)) for step in np.linspace(0, last_step, 200))
    return rate(int(last_step * 1.05) + 1) < 1e-3 * peak


def _describe_prospect(
    findings: Findings, what: str, loss: Prospect | None, bleu: Prospect | None, num_steps: int
) -> str:
    """Describes gain, time and cost of more steps."""
    figures = []
    if loss is not None and loss.is_useful:
        figures.append(f"dev loss {loss.now:.3f} → {loss.then:.3f} ± {loss.margin:.3f}")
    if bleu is not None and bleu.is_useful:
        shown = bleu.scaled(findings.bleu_unit)
        digits = _bleu_digits(findings)
        change = round(shown.change, digits) + 0.0  # not "-0.0"
        figures.append(f"{_bleu_kind(findings)} {change:+.{digits}f} ± {shown.margin:.{digits}f}")
    if not figures and findings.overfitting is not None and findings.overfitting.is_overfitting:
        return ""  # the answer says already that they make it worse
    if not figures:
        return f"The curves do not show what {what[:1].lower()}{what[1:]} would bring."
    if findings.seconds_per_further_step is not None:
        seconds = findings.seconds_per_further_step * num_steps
        figures.append(format_briefly(seconds))
        if findings.evidence.price_per_hour is not None:
            figures.append(f"cost {findings.evidence.price_per_hour * seconds / 3600:,.2f}")
    return f"{what}: {', '.join(figures)}."


def _bleu_kind(findings: Findings) -> str:
    return "teacher-forced BLEU" if findings.is_bleu_forced else "BLEU"


def _bleu_digits(findings: Findings) -> int:
    return 4 if findings.is_bleu_forced else 1


def _describe_flatness(findings: Findings, found: Forecast) -> str:
    is_bleu = found.figure == "bleu"
    name = _bleu_kind(findings) if is_bleu else "loss"
    gain = f"{0.1 * findings.bleu_unit:g}{'' if findings.is_bleu_forced else ' points'}" if is_bleu else "0.005"
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


def _prospects(findings: Findings, loss: Forecast, bleu: Forecast | None) -> list[Table]:
    """A table of what more steps would bring; none where no forecast says anything."""
    price, per_step = findings.evidence.price_per_hour, findings.seconds_per_further_step
    choices = {first_horizon(findings) or 1, round_steps(0.5 * loss.last_step), loss.last_step}
    planned = findings.evidence.steps_planned
    if planned is not None and loss.last_step < planned <= loss.last_step * 2:
        choices.add(planned - loss.last_step)
    figures = {"loss": (loss, 1.0, 3)}
    if bleu is not None:
        figures[_bleu_kind(findings)] = (bleu, findings.bleu_unit, _bleu_digits(findings))
    ahead = {steps: {name: each[0].after(steps) for name, each in figures.items()} for steps in sorted(choices)}
    # A column or row in which no forecast says anything is left out.
    names = [name for name in figures if any(row[name].is_useful for row in ahead.values())]
    rows = []
    for steps, found in ahead.items():
        if not any(found[name].is_useful for name in names):
            continue
        row = [f"{steps:,}", *(cell for name in names for cell in _prospect_cells(found[name], *figures[name][1:]))]
        row += [] if per_step is None else [describe_hours(per_step * steps)]
        row += [] if per_step is None or price is None else [f"{price * per_step * steps / 3600:,.2f}"]
        rows.append(row)
    columns = [f"more {findings.evidence.step_noun}s", *(each for name in names for each in (name, "90% interval"))]
    columns += [] if per_step is None else ["time"]
    columns += [] if per_step is None or price is None else ["cost"]
    return [Table("Gain from more steps", columns, rows, tuple(range(len(columns))))] if rows else []


def _prospect_cells(found: Prospect, unit: float, digits: int) -> tuple[str, str]:
    if not found.is_useful:
        return "not known", ""
    shown = found.scaled(unit)
    return f"{shown.then:.{digits}f}", f"{shown.low:.{digits}f} to {shown.high:.{digits}f}"
