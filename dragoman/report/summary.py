"""The first paragraph of a report, the figures beside it, and what to do next."""

from dragoman.diagnosis.wording import CAUSE_NAMES, format_step
from dragoman.report.answers.learning import (
    FEWEST_EVALUATIONS,
    does_score_disagree,
    has_levelled_off,
    is_schedule_over,
    what_more_would_bring,
)
from dragoman.report.durations import describe_hours, format_briefly
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.scores import (
    TASK_SCORES,
    format_score,
    is_always_zero,
    judging_keys,
    name_of_score,
    score_of,
)
from dragoman.report.state import (
    cause_of_death,
    describe_divergence,
    describe_nan,
    describe_rest,
    describe_warmup,
    is_stop,
    shorten_cause,
)
from dragoman.run.records import EvaluationRecord, ImportedLaunch
from dragoman.run.summary import with_full_stop
from dragoman.run.units import counted

_CURVES_ONLY = ("TensorBoard", "CSV")
"""Sources that do not name the program that trained."""
_MAX_LAUNCHES = 3
_EARLY = 0.5
"""Share of the plan below which the advice is to go on, whatever the model is like."""


def summarise(findings: Findings) -> str:
    """Says in one paragraph what was trained, how it ended, how good it is, what it took and what to do."""
    nan, has_steps = findings.nan_loss, findings.evidence.last_step is not None
    messages = [
        describe_nan(nan) if nan is not None else "",
        _describe_model(findings),
        _describe_divergence(findings),
        _describe_start(findings.evidence),
        _describe_end(findings),
        _describe_launches(findings.evidence),
        _describe_quality(findings),
        _describe_time(findings),
        findings.verdict.why if has_steps else "",
        f"Next: {next_step(findings)}",
    ]
    return " ".join(filter(None, messages))


def _describe_model(findings: Findings) -> str:
    evidence, progress = findings.evidence, findings.progress
    if not evidence.last_step:
        return _describe_missing_steps(evidence)
    about = "about " if evidence.facts.are_parameters_estimated else ""
    size = f" with {about}{evidence.parameters:,} parameters" if evidence.parameters else ""
    by = f" by {evidence.trainer}" if evidence.is_imported and evidence.trainer not in _CURVES_ONLY else ""
    steps = counted(evidence.last_step, evidence.step_noun)
    if evidence.step_noun == "log line" and progress.epochs_done:
        steps = f"{progress.epochs_done:.3g} epochs"
    if progress.is_unfinished and progress.steps_planned:
        steps += f" of {progress.steps_planned:,} planned ({progress.percent})"
    elif progress.is_unfinished:
        steps += f", {progress.describe()}"
    if evidence.unseen_steps:
        steps += f"; this log shows the last {evidence.num_steps:,}" if evidence.num_steps else ""
    if evidence.facts.is_cut:
        steps += ", where the file is cut off"
    workers = f" with {counted(evidence.num_ranks, 'worker')}" if evidence.num_ranks else ""
    if workers and evidence.num_nodes:
        used = evidence.machines
        workers += f" on {used.describe() if used.num_last else counted(evidence.num_nodes, 'machine')}"
    return f"A model{size} was trained{by}{workers} for {steps}."


def _describe_divergence(findings: Findings) -> str:
    found = findings.divergence
    if found is None:
        return ""
    text = describe_divergence(findings, found)
    return text[:1].upper() + text[1:]


def _describe_start(evidence: Evidence) -> str:
    """Says which run the weights came from; empty where they were random at first."""
    if not evidence.start_from:
        return ""
    provenance = evidence.config.get("provenance")
    weights = provenance.get("start_weights") if isinstance(provenance, dict) else None
    of = f"{weights} of " if isinstance(weights, str) else ""
    return f"It was fine-tuned: it started from {of}{evidence.start_from.rpartition('@')[0] or evidence.start_from}."


def _describe_missing_steps(evidence: Evidence) -> str:
    first = next(iter(evidence.failures), None)
    why = "" if first is None else f" {with_full_stop(first.what)} {first.cause}"
    return f"{evidence.missing_steps}{why}".strip()


def _describe_end(findings: Findings) -> str:
    """Says how a run ended that did not finish; a finished run needs no words."""
    evidence = findings.evidence
    if not evidence.last_step:
        return ""
    if cause := cause_of_death(findings):
        return with_full_stop(cause)
    if findings.nan_loss is not None:
        return ""
    return " ".join(filter(None, (describe_warmup(findings), describe_rest(findings))))


def _describe_launches(evidence: Evidence) -> str:
    """Mentions launches besides the one that trained."""
    trained = evidence.trained_launch
    others = [launch for launch in evidence.launches if launch is not trained]
    if not others or trained is None or trained.last_step is None:
        return ""
    aborted = [launch for launch in others if launch.last_step is None]
    if not aborted:
        ended = [f"{_name_end(each)} at step {each.last_step:,}" for each in others if each.end == "failed"]
        why = f" ({', '.join(ended[:_MAX_LAUNCHES])})" if ended else ""
        return f"The log holds {len(evidence.launches)} launches{why}."
    named = [_name_end(launch) for launch in aborted[:_MAX_LAUNCHES]]
    more = ", …" if len(aborted) > _MAX_LAUNCHES else ""
    verb = "launch made no step" if len(aborted) == 1 else "launches made no step"
    return f"{len(aborted)} more {verb} ({', '.join(named)}{more})."


def _name_end(launch: ImportedLaunch) -> str:
    why = shorten_cause(launch.reason) if launch.reason else "the log does not say why"
    return f"number {launch.number}: {why}"


def _describe_quality(findings: Findings) -> str:
    evidence = findings.evidence
    if not findings.evaluations:
        if evidence.last_step is None:
            return ""
        if evidence.facts.has_unread_evaluations:
            return "It was evaluated, but the log does not show the results, so its quality is not known."
        if evidence.is_excerpt:
            return "This excerpt shows no evaluation, so its quality is not known."
        return "It was never evaluated, so its quality is not known." if findings.nan_loss is None else ""
    last = findings.evaluations[-1]
    figures = _quality_figures(findings, last)
    if not figures:
        return ""
    if last.step == 0 or findings.progress.is_untrained:
        return f"Before it had learned anything (step {last.step:,}), it had {' and '.join(figures)}."
    when = ", before its loss became NaN," if findings.nan_loss is not None else ""
    place = f"At {evidence.step_noun} {last.step:,}{when}"
    reached = " and ".join(figures).rstrip(",")
    return f"{place} it reached {reached}.{_describe_best(findings, last)}"


def _quality_figures(findings: Findings, last: EvaluationRecord) -> list[str]:
    name = findings.evidence.facts.dev_set
    of = f" on {name}, the first of its dev sets," if name else ""
    figures = [] if last.loss is None else [f"a dev loss of {last.loss:.4f}{_other_unit(findings)}{of}"]
    if (shown := _shown_score(findings, last)) is not None:
        figures.append(f"{shown[0]} {shown[1]} on the dev set")
    elif last.teacher_forced_bleu is not None:
        figures.append(
            f"a teacher-forced BLEU of {last.teacher_forced_bleu:.4f}, which says nothing about its translations"
        )
    return figures


def _shown_score(findings: Findings, last: EvaluationRecord) -> tuple[str, str] | None:
    """Returns name and value of the score of an evaluation: the one that chooses the checkpoint, else any."""
    score = findings.score
    if score is not None and score.key != "teacher_forced_bleu" and (value := score_of(last, score.key)) is not None:
        return score.name, score.format(value)
    keys = [key for key in judging_keys([last]) if not is_always_zero(findings.evaluations, key)]
    known = ((key, score_of(last, key)) for key in keys)
    shown = ((key, value, 100.0 if key in TASK_SCORES else value) for key, value in known if value is not None)
    return next(((name_of_score(key), format_score(value, largest)) for key, value, largest in shown), None)


def _other_unit(findings: Findings) -> str:
    """Names the unit of the loss where it is not the usual one."""
    unit = findings.loss_unit.removeprefix("loss in ")
    return "" if unit == "nats per token" or "unknown" in unit else f" ({unit})"


def _describe_best(findings: Findings, last: EvaluationRecord) -> str:
    best = findings.best_checkpoint
    return "" if best is None or best.step == last.step else f" Its best checkpoint is that of {best.describe()}."


def _describe_time(findings: Findings) -> str:
    if findings.wall_seconds is None or not findings.evidence.last_step:
        return ""
    cost = f" and cost {findings.cost:,.2f}" if findings.cost is not None else ""
    per_step = "per step with a full batch" if findings.evidence.is_batch_growing else "per step"
    step = f" ({format_step(findings.step_times.median)} {per_step})" if findings.step_times else ""
    what = "What this log shows" if findings.evidence.unseen_steps else "This"
    if (first := findings.timed_from_step) is not None:
        what = f"From {findings.evidence.step_noun} {first:,} on, it"
    standstill = findings.time_use.seconds["standstill"] if findings.time_use else 0.0
    still = f", {describe_hours(standstill)} of it standstill," if standstill else ""
    about = "about " if findings.steps_of_mean_time else ""
    return (
        f"{what} took {about}{describe_hours(findings.wall_seconds)}{step}{still if cost else still.rstrip(',')}{cost}."
    )


def tiles(findings: Findings) -> dict[str, str]:
    """Returns the figures at the top of the page."""
    evidence, times = findings.evidence, findings.step_times
    last = findings.evaluations[-1] if findings.evaluations else None
    score = None if last is None else _shown_score(findings, last)
    planned = findings.progress.steps_planned
    of_planned = f" of {planned:,}" if planned and findings.progress.is_unfinished else ""
    shown: dict[str, str | None] = {
        **({score[0]: score[1]} if score else {}),
        "Dev loss": f"{last.loss:.4f}" if last and last.loss is not None else None,
        f"{evidence.step_noun.capitalize()}s": f"{evidence.last_step:,}{of_planned}"
        if evidence.last_step is not None
        else None,
        "Time": format_briefly(findings.wall_seconds) if findings.wall_seconds else None,
        "Time per step": format_step(times.median) if times else None,
        "Cost": f"{findings.cost:,.2f}" if findings.cost is not None else None,
        "Limited by": CAUSE_NAMES.get(findings.verdict.bottleneck) if findings.verdict.is_known else None,
        "Parameters": f"{evidence.parameters:,}" if evidence.parameters else None,
    }
    if score is None and last and last.teacher_forced_bleu is not None:
        shown["Teacher-forced BLEU"] = f"{last.teacher_forced_bleu:.4f}"
    return {name: text for name, text in shown.items() if text}


def next_step(findings: Findings) -> str:
    """Recommends what to do now."""
    evidence, best = findings.evidence, findings.best_checkpoint
    if not evidence.last_step and evidence.facts.has_unread_steps:
        return "put the steps and losses of the log into a CSV table, which dragoman reads."
    if not evidence.last_step:
        return "look for the rest of the log." if evidence.is_excerpt else "fix the cause and start again."
    if evidence.facts.is_cut:
        return "read the whole log: this one is cut off, so it does not show how the run went on."
    if findings.nan_loss is not None:
        use = f" Until then, the best checkpoint is that of {best.describe()}." if best else ""
        return f"discard what was trained since the loss became NaN, fix the cause, and start again.{use}"
    if findings.divergence is not None:
        again = "start again with a lower learning rate, a longer warm-up or gradient clipping"
        return f"discard what was trained since it diverged, and {again}{_from_best(findings)}."
    if findings.progress.is_untrained:
        return f"find out why it made only {counted(evidence.last_step, evidence.step_noun)}, and start again."
    return " ".join(filter(None, (_quality_advice(findings), _speed_advice(findings))))


def _from_best(findings: Findings) -> str:
    best = findings.best_checkpoint
    return f", from the checkpoint of {best.describe()}" if best is not None else ""


def _quality_advice(findings: Findings) -> str:
    found, best = findings.overfitting, findings.best_checkpoint
    loss, bleu, progress = findings.loss_forecast, findings.bleu_forecast, findings.progress
    going_on = "fix what ended the run, then continue training" if _has_died(findings) else "continue training"
    if found is not None and found.is_overfitting and best is not None:
        if does_score_disagree(findings):
            return f"use the checkpoint of {best.describe()}, although its dev loss is not the lowest."
        return f"use the checkpoint of {best.describe()}; more data, more dropout or a smaller model would help."
    if loss is None and bleu is None:
        if progress.is_unfinished:
            is_early = progress.is_warming_up or (progress.share or 0.0) < _EARLY
            doubt = ": only" if is_early else " if the model is not good enough:"
            return f"{going_on}{doubt} {progress.percent} of the plan is done."
        if progress.is_warming_up and not progress.is_over:
            return f"{going_on}: the learning rate was still warming up."
        if _has_died(findings):
            return f"{going_on}, and evaluate at least {FEWEST_EVALUATIONS} times."
        if findings.evidence.facts.has_unread_evaluations:
            return "look for the results of its evaluations: their lines may be in another file."
        if findings.evidence.is_excerpt:
            return "read the whole log, so that the report can judge the curves."
        needed = f"evaluate at least {FEWEST_EVALUATIONS} times"
        return f"{needed}, so that the report can forecast what more steps would bring."
    is_last = best is None or best.step >= max(each.step for each in findings.evaluations)
    checkpoint = "" if is_last or best is None else f"use the checkpoint of {best.describe()}"
    if is_schedule_over(findings):
        may_be_overfitting = found is not None and found.may_be_overfitting
        again = "" if may_be_overfitting else ", or train again for longer"
        return f"{checkpoint or 'use the model'}{again}. {what_more_would_bring(findings)}"
    if (loss is None or loss.is_flat) and (bleu is None or has_levelled_off(findings, bleu)):
        use = f" and {checkpoint}" if checkpoint else ""
        return f"stop here{use}; more steps would bring almost nothing."
    if bleu is not None and has_levelled_off(findings, bleu):
        more = what_more_would_bring(findings)
        return f"{going_on} only if the model is not good enough: the loss still falls, but BLEU does not rise. {more}"
    return f"{going_on}. {what_more_would_bring(findings)}"


def _has_died(findings: Findings) -> bool:
    cause = cause_of_death(findings)
    return bool(cause) and not is_stop(cause)


def _speed_advice(findings: Findings) -> str:
    bottleneck = findings.verdict.bottleneck
    for record in reversed(findings.evidence.predictions):
        if record.advice and bottleneck not in ("compute", "other_programs"):
            return _to_reduce_waiting(record.advice[0])
    if findings.verdict.advice:
        return _to_reduce_waiting(findings.verdict.advice[0])
    match bottleneck:
        case "network":
            return (
                "For further runs improve the network, which sets the pace: use a faster link or make batches larger."
            )
        case "straggler":
            return "For further runs find out why the slowest rank is slow."
        case "other_programs":
            return "For further runs end the other programs, or train on a machine of your own."
        case "input":
            return "For further runs speed up reading the data."
    return ""


def _to_reduce_waiting(advice: str) -> str:
    """Continues a sentence with a piece of advice; names such as NCCL keep their capitals."""
    is_name = not (advice[1:2].islower() or advice[1:2] == " ")
    return f"To reduce waiting: {advice if is_name else advice[:1].lower() + advice[1:]}"
