"""Builds the report of one run and writes report.html, report.md and report.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.report.answers.files import answer_checkpoint_files, answer_checkpoint_size, answer_training_set
from dragoman.report.answers.learning import answer_trained, first_horizon
from dragoman.report.answers.learning_rate import answer_learning_rate
from dragoman.report.answers.network import answer_network, answer_traffic
from dragoman.report.answers.overfitting import answer_overfitting
from dragoman.report.answers.speed import answer_devices, answer_duration, answer_steps
from dragoman.report.appendix import build_appendix
from dragoman.report.content import Answer, Comparison, Report
from dragoman.report.evidence import StatedFacts, read_evidence
from dragoman.report.findings import Findings
from dragoman.report.learning_charts import overview_charts
from dragoman.report.state import describe_state
from dragoman.report.summary import next_step, summarise, tiles
from dragoman.report.warnings import find_warnings
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder

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
        summary=summarise(findings),
        state=describe_state(findings),
        figures=tiles(findings),
        answers=[answer(findings) for answer in QUESTIONS],
        sections=build_appendix(findings),
        warnings=find_warnings(findings),
        verdict=findings.verdict,
        overview=overview_charts(findings),
        facts=collect_facts(findings),
    )


def collect_facts(findings: Findings) -> dict[str, Any]:
    """Returns the keys of report.json besides answers and warnings."""
    evidence, verdict, times = findings.evidence, findings.verdict, findings.step_times
    best, use = findings.best_checkpoint, findings.time_use
    return {
        "run": str(evidence.run.path),
        "trainer": evidence.trainer,
        "state": evidence.state,
        "state_text": describe_state(findings).text,
        "steps_planned": evidence.steps_planned,
        "progress": findings.progress.share,
        "parameters": evidence.parameters,
        "ranks": evidence.num_ranks,
        "nodes": evidence.num_nodes,
        "machines": evidence.machines.names,
        "hosts": evidence.facts.hosts or [],
        "launches": [launch.values() for launch in evidence.launches],
        "left_out": evidence.imported.left_out if evidence.imported else [],
        "steps": {"first": evidence.first_step, "last": evidence.last_step},
        "num_steps": evidence.num_steps,
        "step_unit": f"{evidence.step_noun}s",
        "first_nan_step": evidence.first_nan_step,
        "diverged_after_step": findings.divergence.last_good_step if findings.divergence else None,
        "seconds": findings.wall_seconds,
        "timed_steps": findings.steps_of_mean_time,
        "seconds_by_phase": None if use is None else use.seconds,
        "cost": findings.cost,
        "seconds_per_step": times.to_json() if times else {"mean": None, "median": None, "p95": None, "drift": None},
        "last_evaluation": _last_evaluation(findings),
        "best_checkpoint": None if best is None else best.to_json(),
        "failed_scores": sorted({each.step for each in findings.failed_scores}),
        "verdict": {
            "bottleneck": verdict.bottleneck,
            "share": verdict.share,
            "confidence": verdict.confidence,
            "why": verdict.why,
            "evidence": verdict.evidence,
        },
        "forecast": _forecast(findings),
        "overfitting": None if findings.overfitting is None else dict(vars(findings.overfitting)),
        "failures": [failure.values() for failure in evidence.imported.failures] if evidence.imported else [],
        "next": next_step(findings),
    }


def _last_evaluation(findings: Findings) -> dict[str, Any] | None:
    """Returns the figures of the last evaluation, without its samples and without a score whose scoring failed."""
    if not findings.evaluations:
        return None
    last = findings.evaluations[-1]
    hidden = {"kind", "samples"} if (last.time or 0.0) >= _FIRST_DATE else {"kind", "samples", "time"}
    hidden |= {each.key for each in findings.failed_scores if each.step == last.step}
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
