"""Builds the report of one run and writes report.html, report.md and report.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.diagnosis.wording import CAUSE_NAMES, format_step
from dragoman.report.answers.files import answer_checkpoint_files, answer_checkpoint_size, answer_training_set
from dragoman.report.answers.learning import (
    answer_learning_rate,
    answer_overfitting,
    answer_trained,
    first_horizon,
    is_schedule_over,
    what_more_would_bring,
)
from dragoman.report.answers.network import answer_network, answer_traffic
from dragoman.report.answers.speed import (
    answer_devices,
    answer_duration,
    answer_steps,
    describe_hours,
    format_briefly,
)
from dragoman.report.appendix import build_appendix
from dragoman.report.content import Answer, Comparison, Report
from dragoman.report.evidence import Evidence, StatedFacts, read_evidence
from dragoman.report.findings import Findings
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder
from dragoman.run.records import ImportedFailure
from dragoman.run.summary import with_full_stop

QUESTIONS: tuple[Callable[[Findings], Answer], ...] = (
    answer_duration,
    answer_trained,
    answer_overfitting,
    answer_devices,
    answer_network,
    answer_learning_rate,
    answer_training_set,
    answer_checkpoint_files,
    answer_checkpoint_size,
    answer_steps,
    answer_traffic,
)
"""All questions, in the order of the report."""
_FIRST_DATE = 10**9
"""Smallest time that is a date, in seconds since 1970; logs without dates count from 0."""
_CURVES_ONLY = ("TensorBoard", "CSV")
"""Sources that do not name the program that trained."""
_MAX_FAILURES = 5
TEACHER_FORCED = (
    "The BLEU in this log is teacher-forced: the decoder was fed the reference and scored on subwords. It is not the "
    "BLEU of translations and cannot be compared with published scores (an untrained model reached 0.95 in such a "
    "log); translate a test set and score that with sacreBLEU."
)


def report_run(run: RunFolder) -> Path:
    """Writes the report of a run into its folder; returns the path of the page."""
    return write_report(build_report(run), run.path)["html"]


def write_report(report: Report | Comparison, folder: Path) -> dict[str, Path]:
    """Writes the three files, each atomically; returns their paths by suffix."""
    from dragoman.report.rendering import render_markdown, render_page

    target = RunFolder(folder)
    texts = {
        "html": render_page(report),
        "md": render_markdown(report),
        "json": json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            write_text(target.report(suffix), text, is_durable=False)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {folder}: {describe_os_error(error)}. Choose another folder with "
            "--output."
        ) from None
    return {suffix: target.report(suffix) for suffix in texts}


def build_report(run: RunFolder, known: StatedFacts | None = None) -> Report:
    """Builds the report of a run from its files alone."""
    return report_findings(Findings(read_evidence(run, known)))


def report_findings(findings: Findings) -> Report:
    """Builds the report from findings."""
    return Report(
        title=findings.evidence.run.path.resolve().name,
        summary=_summarise(findings),
        figures=_tiles(findings),
        answers=[answer(findings) for answer in QUESTIONS],
        sections=build_appendix(findings),
        warnings=_find_warnings(findings),
        verdict=findings.verdict,
        facts=collect_facts(findings),
    )


def collect_facts(findings: Findings) -> dict[str, Any]:
    """Returns the keys of report.json besides answers and warnings."""
    evidence, verdict, times = findings.evidence, findings.verdict, findings.step_times
    return {
        "run": str(evidence.run.path),
        "trainer": evidence.trainer,
        "state": evidence.state,
        "parameters": evidence.parameters,
        "ranks": evidence.num_ranks,
        "nodes": evidence.num_nodes,
        "machines": evidence.machines.names,
        "hosts": evidence.facts.hosts or [],
        "steps": {"first": evidence.first_step, "last": evidence.last_step},
        "num_steps": evidence.num_steps,
        "seconds": findings.wall_seconds,
        "cost": findings.cost,
        "seconds_per_step": times.to_json() if times else {"mean": None, "median": None, "p95": None, "drift": None},
        "last_evaluation": _last_evaluation(evidence),
        "verdict": {
            "bottleneck": verdict.bottleneck,
            "share": verdict.share,
            "confidence": verdict.confidence,
            "why": verdict.why,
            "evidence": verdict.evidence,
        },
        "forecast": _forecast(findings),
        "overfitting": None if findings.overfitting is None else dict(vars(findings.overfitting)),
        "failures": [failure.values() for failure in _failures(evidence)],
        "next": _next_step(findings),
    }


def _last_evaluation(evidence: Evidence) -> dict[str, Any] | None:
    """Returns the figures of the last evaluation, without its samples."""
    if not evidence.evaluations:
        return None
    last = evidence.evaluations[-1]
    hidden = {"kind", "samples"} if (last.time or 0.0) >= _FIRST_DATE else {"kind", "samples", "time"}
    return {name: value for name, value in last.values().items() if name not in hidden}


def _forecast(findings: Findings) -> dict[str, Any] | None:
    more = first_horizon(findings)
    if more is None:
        return None
    found = {"loss": (findings.loss_forecast, 1.0), findings.bleu_name: (findings.bleu_forecast, findings.bleu_unit)}
    return {
        figure: each.after(more).scaled(unit).to_json() | {"flat_from": each.flat_from}
        for figure, (each, unit) in found.items()
        if each is not None
    }


def _failures(evidence: Evidence) -> list[ImportedFailure]:
    return evidence.imported.failures if evidence.imported else []


def _tiles(findings: Findings) -> dict[str, str]:
    """Returns the figures at the top of the page."""
    evidence, times = findings.evidence, findings.step_times
    last = evidence.evaluations[-1] if evidence.evaluations else None
    shown: dict[str, str | None] = {
        "BLEU": f"{last.bleu:.1f}" if last and last.bleu is not None else None,
        "Dev loss": f"{last.loss:.4f}" if last and last.loss is not None else None,
        "Steps": f"{evidence.last_step:,}" if evidence.last_step is not None else None,
        "Time": format_briefly(findings.wall_seconds) if findings.wall_seconds else None,
        "Time per step": format_step(times.median) if times else None,
        "Cost": f"{findings.cost:,.2f}" if findings.cost is not None else None,
        "Limited by": CAUSE_NAMES.get(findings.verdict.bottleneck),
        "Parameters": f"{evidence.parameters:,}" if evidence.parameters else None,
    }
    if last and last.bleu is None and last.teacher_forced_bleu is not None:
        shown["Teacher-forced BLEU"] = f"{last.teacher_forced_bleu:.4f}"
    return {name: text for name, text in shown.items() if text}


# The summary


def _summarise(findings: Findings) -> str:
    messages = [
        _describe_model(findings.evidence),
        _describe_quality(findings.evidence),
        _describe_time(findings),
        findings.verdict.why if findings.evidence.last_step is not None else "",
        f"Next: {_next_step(findings)}",
    ]
    return " ".join(filter(None, messages))


def _describe_model(evidence: Evidence) -> str:
    if evidence.last_step is None:
        first = next(iter(_failures(evidence)), ImportedFailure())
        return f"No step was trained. {first.what} {first.cause}".strip()
    size = f" with {evidence.parameters:,} parameters" if evidence.parameters else ""
    by = f" by {evidence.trainer}" if evidence.is_imported and evidence.trainer not in _CURVES_ONLY else ""
    steps = f"{evidence.last_step:,} steps"
    if evidence.unseen_steps:
        steps += f", of which this log shows the last {evidence.num_steps:,}"
    planned = evidence.settings.training.max_steps
    if planned is not None and planned > evidence.last_step:
        steps += f" of {planned:,} planned"
    workers = f" with {_counted(evidence.num_ranks, 'worker')}" if evidence.num_ranks else ""
    if workers and evidence.num_nodes:
        used = evidence.machines
        workers += f" on {used.describe() if used.num_last else _counted(evidence.num_nodes, 'machine')}"
    return f"A model{size} was trained{by}{workers} for {steps}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


def _describe_quality(evidence: Evidence) -> str:
    if not evidence.evaluations:
        return "It was never evaluated, so its quality is not known." if evidence.last_step is not None else ""
    last = evidence.evaluations[-1]
    figures = [] if last.loss is None else [f"a dev loss of {last.loss:.4f}"]
    if last.bleu is not None:
        figures.append(f"BLEU {last.bleu:.1f} on the dev set")
    elif last.teacher_forced_bleu is not None:
        figures.append(
            f"a teacher-forced BLEU of {last.teacher_forced_bleu:.4f}, which says nothing about its translations"
        )
    return f"At step {last.step:,} it reached {' and '.join(figures)}." if figures else ""


def _describe_time(findings: Findings) -> str:
    if findings.wall_seconds is None:
        return ""
    cost = f" and cost {findings.cost:,.2f}" if findings.cost is not None else ""
    step = f" ({format_step(findings.step_times.median)} per step)" if findings.step_times else ""
    return f"This took {describe_hours(findings.wall_seconds).split(' (')[0]}{step}{cost}."


def _next_step(findings: Findings) -> str:
    """Recommends what to do now."""
    evidence = findings.evidence
    if evidence.last_step is None:
        return "fix the cause and start again."
    if evidence.facts.first_nan_step is not None:
        return "discard what was trained since the loss became NaN, fix the cause, and start again."
    return " ".join(filter(None, (_quality_advice(findings), _speed_advice(findings))))


def _quality_advice(findings: Findings) -> str:
    found, loss, bleu = findings.overfitting, findings.loss_forecast, findings.bleu_forecast
    if found is not None and found.is_overfitting:
        return f"use the checkpoint of step {found.best_step:,}; more data, more dropout or a smaller model would help."
    if loss is None:
        return "evaluate at least five times, so that the report can forecast what more steps would bring."
    if is_schedule_over(findings):
        return f"use the model, or train again for longer. {what_more_would_bring(findings)}"
    if loss.is_flat and (bleu is None or bleu.is_flat):
        return "stop here; more steps would bring almost nothing."
    return f"continue training. {what_more_would_bring(findings)}"


def _speed_advice(findings: Findings) -> str:
    bottleneck = findings.verdict.bottleneck
    for record in reversed(findings.evidence.predictions):
        if record.advice and bottleneck not in ("compute", "other_programs"):
            return f"To reduce waiting: {record.advice[0]}"
    match bottleneck:
        case "network":
            return (
                "For further runs improve the network, which sets the pace: use a faster link, send fewer bytes or "
                "make batches larger."
            )
        case "straggler":
            return "For further runs find out why the slowest rank is slow."
        case "other_programs":
            return "For further runs end the other programs, or train on a machine of your own."
        case "input":
            return "For further runs speed up reading the data."
    return ""


# Warnings


def _find_warnings(findings: Findings) -> list[str]:
    """Returns warnings, the most important first."""
    evidence = findings.evidence
    return [
        *(_describe_failure(failure) for failure in _failures(evidence)[:_MAX_FAILURES]),
        *_score_warnings(findings),
        *_loss_warnings(evidence),
        *(findings.network.warnings if findings.network and evidence.is_imported else []),
        *_contradictions(evidence),
        *_checkpoint_warnings(evidence),
        *_state_warnings(evidence),
        *_refused_lines(evidence),
    ]


def _describe_failure(failure: ImportedFailure) -> str:
    line = f' Log line: "{failure.evidence}"' if failure.evidence else ""
    return f"{with_full_stop(failure.what)} {failure.cause}{line}".strip()


def _score_warnings(findings: Findings) -> list[str]:
    evidence = findings.evidence
    if not evidence.evaluations:
        return ["The model was never evaluated on a dev set."] if evidence.last_step is not None else []
    if findings.is_bleu_forced and len(findings.bleu[0]):
        return [TEACHER_FORCED]
    if evidence.facts.bleu_kind == "tokenised":
        return ["BLEU in this log was computed on tokenised text: it depends on the tokenizer and is not sacreBLEU."]
    if evidence.is_imported and len(findings.bleu[0]) and evidence.facts.bleu_kind == "unknown":
        return ["The log does not say how its BLEU was computed: score the translations again with sacreBLEU."]
    return []


def _loss_warnings(evidence: Evidence) -> list[str]:
    found = []
    if evidence.facts.is_train_loss_of_one_rank:
        found.append("The training loss in this log covers only the first rank's batches, not the whole batch.")
    skipped = evidence.train[-1].skipped_steps if evidence.train else None
    if skipped:
        found.append(f"{skipped:,} updates were skipped because gradients were not finite (dynamic loss scaling).")
    return found


def _contradictions(evidence: Evidence) -> list[str]:
    """Returns options of the user that the files contradict."""
    stated, found = evidence.known, []
    if stated.nodes and evidence.num_nodes and stated.nodes != evidence.num_nodes:
        found.append(f"--nodes {stated.nodes}, but the files of the run show {_counted(evidence.num_nodes, 'machine')}")
    if stated.gpus_per_node and evidence.num_ranks and evidence.num_nodes:
        each = evidence.num_ranks / evidence.num_nodes
        if each != stated.gpus_per_node:
            found.append(
                f"--gpus-per-node {stated.gpus_per_node}, but the files of the run show {each:g} workers per machine"
            )
    return [f"You passed {option}: the report uses the files." for option in found]


def _checkpoint_warnings(evidence: Evidence) -> list[str]:
    if not evidence.is_imported:
        return []  # Our own runs save a checkpoint at the end, too.
    every, last = evidence.settings.checkpoints.save_every, evidence.last_step
    if not every or last is None or not 0 < last < every:
        return []
    planned = evidence.settings.training.max_steps
    plan = f" of {planned:,}" if planned else ""
    return [
        f"Checkpoints were to be saved only every {every:,.0f} steps, and the run ended at step {last:,}{plan}: only "
        "the first step and the best checkpoint, if any, were saved."
    ]


def _state_warnings(evidence: Evidence) -> list[str]:
    if evidence.state == "failed":
        return ["The run failed; `dragoman status` says why."]
    if evidence.state == "lost":
        return ["The run was lost: its processes ended without reporting why."]
    if evidence.state in ("running", "starting", "restarting", "waiting"):
        return ["The run has not ended: this report shows its current state."]
    return []


def _refused_lines(evidence: Evidence) -> list[str]:
    found = [f"{evidence.run.metrics.name} {line}." for line in evidence.refused.first]
    num_more = evidence.refused.number - len(found)
    return [*found, f"{num_more:,} more lines of {evidence.run.metrics.name} were skipped."] if num_more else found
