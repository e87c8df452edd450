"""The whole report of one run: answers, warnings and appendix, in order."""

from collections.abc import Callable
from typing import Any

from dragoman.diagnosis.wording import BOTTLENECK_WORDS, format_step
from dragoman.report.answers.devices import answer_devices
from dragoman.report.answers.duration import answer_duration, describe_hours
from dragoman.report.answers.files import (
    answer_checkpoint_files,
    answer_checkpoint_size,
    answer_training_set,
)
from dragoman.report.answers.learning_rate import answer_learning_rate
from dragoman.report.answers.network import answer_network, answer_traffic
from dragoman.report.answers.overfitting import answer_overfitting
from dragoman.report.answers.steps import answer_steps
from dragoman.report.answers.trained import answer_trained, first_horizon
from dragoman.report.appendix import appendix
from dragoman.report.evidence import Evidence, Known, read_evidence
from dragoman.report.findings import Findings
from dragoman.report.parts import Answer, Report
from dragoman.report.summary import find_warnings, next_step, summarise
from dragoman.run.folder import RunFolder
from dragoman.run.status import number_or_none

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
"""In the order of the seeds."""


FIRST_DATE = 10**9
"""In seconds since 1970: no run was trained before 2001."""


def build_report(run: RunFolder, known: Known | None = None) -> Report:
    """Everything there is to say about a run, from its files alone."""
    return report_of(Findings(read_evidence(run, known)))


def report_of(findings: Findings) -> Report:
    """The same, from findings that are there already."""
    evidence = findings.evidence
    return Report(
        title=f"{evidence.run.path.resolve().name}",
        summary=summarise(findings),
        figures=_figures(findings),
        answers=[answer(findings) for answer in QUESTIONS],
        sections=appendix(findings),
        warnings=find_warnings(findings),
        facts=facts_of(findings),
    )


def facts_of(findings: Findings) -> dict[str, Any]:
    """What report.json has besides answers and warnings."""
    evidence, verdict, times = findings.evidence, findings.verdict, findings.step_times
    return {
        "run": str(evidence.run.path),
        "trainer": evidence.trainer,
        "state": evidence.state,
        "parameters": evidence.parameters,
        "ranks": evidence.num_ranks,
        "nodes": evidence.num_nodes,
        "hosts": evidence.facts.get("hosts") or [],
        "steps": {"first": evidence.first_step, "last": evidence.last_step},
        "seconds": findings.wall_seconds,
        "cost": findings.cost,
        "seconds_per_step": times.to_json() if times else {"mean": None, "median": None, "p95": None, "drift": None},
        "last_evaluation": last_evaluation(evidence),
        "verdict": {
            "bottleneck": verdict.bottleneck,
            "share": verdict.share,
            "confidence": verdict.confidence,
            "why": verdict.why,
            "evidence": verdict.evidence,
        },
        "forecast": _forecast(findings),
        "overfitting": None if findings.overfitting is None else dict(vars(findings.overfitting)),
        "failures": evidence.imported.get("failures") or [],
        "next": next_step(findings),
    }


def last_evaluation(evidence: Evidence) -> dict[str, Any] | None:
    """The figures of the last evaluation, without its samples."""
    if not evidence.evaluations:
        return None
    last = evidence.evaluations[-1]
    # A log without dates counts its seconds from 0.
    is_dated = (number_or_none(last.get("time")) or 0.0) >= FIRST_DATE
    hidden = ("kind", "samples", "line", *(() if is_dated else ("time",)))
    return {name: value for name, value in last.items() if name not in hidden}


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


def _figures(findings: Findings) -> dict[str, str]:
    """The tiles at the top."""
    evidence, times = findings.evidence, findings.step_times
    last = last_evaluation(evidence) or {}
    bleu, forced = number_or_none(last.get("bleu")), number_or_none(last.get("teacher_forced_bleu"))
    loss = number_or_none(last.get("loss"))
    shown: dict[str, str | None] = {
        "BLEU": f"{bleu:.1f}" if bleu is not None else None,
        "Dev loss": f"{loss:.4f}" if loss is not None else None,
        "Steps": f"{evidence.last_step:,}" if evidence.last_step is not None else None,
        "Time": describe_hours(findings.wall_seconds).split(" (")[0] if findings.wall_seconds else None,
        "A step": format_step(times.median) if times else None,
        "Cost": f"{findings.cost:,.2f}" if findings.cost is not None else None,
        "Held back by": BOTTLENECK_WORDS.get(findings.verdict.bottleneck, "").removesuffix("-bound") or None,
        "Parameters": f"{evidence.parameters:,}" if evidence.parameters else None,
    }
    if bleu is None and forced is not None:
        shown["Teacher-forced BLEU"] = f"{forced:.4f}"
    return {name: text for name, text in shown.items() if text}
