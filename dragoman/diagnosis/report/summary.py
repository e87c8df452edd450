"""The paragraph at the top of a report: what was trained, how good, how long, what held it back, what to do next."""

from dragoman.diagnosis.report.answers.duration import describe_hours
from dragoman.diagnosis.report.answers.trained import is_schedule_over, what_more_would_bring
from dragoman.diagnosis.report.evidence import Evidence, table
from dragoman.diagnosis.report.findings import Findings
from dragoman.diagnosis.wording import format_step
from dragoman.run.status import number_or_none

CURVES_ONLY = ("TensorBoard", "CSV")
"""Sources that do not tell which program trained."""


def summarise(findings: Findings) -> str:
    """A few sentences in plain words."""
    sentences = [
        _what(findings.evidence),
        _how_good(findings),
        _how_long(findings),
        findings.verdict.why if findings.evidence.last_step is not None else "",
        f"Next: {next_step(findings)}",
    ]
    return " ".join(filter(None, sentences))


def _what(evidence: Evidence) -> str:
    if evidence.last_step is None:
        failures = evidence.imported.get("failures")
        first = table(failures[0]) if isinstance(failures, list) and failures else {}
        return f"No step was trained. {first.get('what', '')} {first.get('cause', '')}".strip()
    size = f"A model of {evidence.parameters:,} parameters" if evidence.parameters else "A model"
    by = f" by {evidence.trainer}" if evidence.is_foreign and evidence.trainer not in CURVES_ONLY else ""
    where = ""
    if evidence.num_ranks:
        nodes = evidence.num_nodes
        where = f" on {evidence.num_ranks} worker{'s' if evidence.num_ranks > 1 else ''}"
        where += f" of {nodes} machine{'s' if nodes > 1 else ''}" if nodes else ""
    planned = number_or_none(evidence.training.get("max_steps"))
    is_cut_short = planned is not None and planned > evidence.last_step
    steps = f"{evidence.last_step:,} steps" + (f" of {planned:,.0f} planned" if is_cut_short else "")
    return f"{size} was trained{by} for {steps}{where}."


def _how_good(findings: Findings) -> str:
    evaluations = findings.evidence.evaluations
    if not evaluations:
        return "It was never judged, so how good it is is not known." if findings.evidence.last_step is not None else ""
    last = evaluations[-1]
    loss, bleu = number_or_none(last.get("loss")), number_or_none(last.get("bleu"))
    forced = number_or_none(last.get("teacher_forced_bleu"))
    figures = [] if loss is None else [f"a dev loss of {loss:.4f}"]
    if bleu is not None:
        figures.append(f"BLEU {bleu:.1f} on the dev set")
    elif forced is not None:
        figures.append(f"a teacher-forced BLEU of {forced:.4f}, which says nothing about its translations")
    return f"At step {last['step']:,} it reached {' and '.join(figures)}." if figures else ""


def _how_long(findings: Findings) -> str:
    if findings.wall_seconds is None:
        return ""
    cost = f" and cost {findings.cost:,.2f}" if findings.cost is not None else ""
    step = f", {format_step(findings.step_times.median)} a step" if findings.step_times else ""
    return f"That took {describe_hours(findings.wall_seconds).split(' (')[0]}{step}{cost}."


def next_step(findings: Findings) -> str:
    """What the owner of the run should do now, in one or two sentences."""
    evidence = findings.evidence
    if evidence.last_step is None:
        return "mend the cause and start again."
    if _is_nan(evidence):
        return "throw away what was trained since the loss became NaN, and start again with the cause mended."
    advice = _speed_advice(findings)
    return f"{_quality_advice(findings)}{f' {advice}' if advice else ''}"


def _is_nan(evidence: Evidence) -> bool:
    return number_or_none(evidence.facts.get("first_nan_step")) is not None


def _quality_advice(findings: Findings) -> str:
    found, loss, bleu = findings.overfitting, findings.loss_forecast, findings.bleu_forecast
    if found is not None and found.is_overfitting:
        return f"use the checkpoint of step {found.best_step:,}; more text, more dropout or a smaller model would help."
    if loss is None:
        return "evaluate at least five times, so that one can tell what more steps would bring."
    if is_schedule_over(findings):
        return f"use it, or train longer anew. {what_more_would_bring(findings)}"
    if loss.is_flat and (bleu is None or bleu.is_flat):
        return "stop here: more of the same steps would bring next to nothing."
    return f"it can go on. {what_more_would_bring(findings)}"


def _speed_advice(findings: Findings) -> str:
    verdict = findings.verdict
    for record in reversed(findings.evidence.predictions):
        advice = record.get("advice")
        if isinstance(advice, list) and advice and isinstance(advice[0], str) and verdict.bottleneck != "compute":
            return f"Against waiting: {advice[0]}"
    match verdict.bottleneck:
        case "network":
            return (
                "For any further run mend the network: a faster link, fewer bytes or larger batches; it sets the pace."
            )
        case "straggler":
            return "For any further run find out what slows the slowest rank."
        case "input":
            return "For any further run speed up reading the data."
    return ""
