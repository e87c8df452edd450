"""Sections after the answers: failures, samples, scores, step parts, predictions, settings, environment."""

import json
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from dragoman.diagnosis.wording import format_step
from dragoman.report.answers.speed import attribution_chart
from dragoman.report.content import Chart, ReportSection, Series, Table, TranslationSample, format_value
from dragoman.report.evidence import Evidence, curve
from dragoman.report.findings import Findings
from dragoman.run.commands import shell_path
from dragoman.run.records import EvaluationRecord, ImportedLaunch

_MAX_SAMPLES = 24
MAX_SCORES = 60
_MAX_SIGNATURES = 3
_MAX_OTHER_SCORES = 6
_MAX_SOURCES = 20
MAX_TEXT_CHARACTERS = 200_000
_FIRST_DATE, _LAST_DATE = 10**9, 10**11
"""Times that are dates, in seconds since 1970; logs without dates count from 0."""
_ENDS = {"finished": "finished", "failed": "failed", "stopped": "stopped", "unknown": "not known"}
_SCORES = {
    "loss": ("loss", ".4f"),
    "negative_log_likelihood": ("without smoothing", ".4f"),
    "bleu": ("BLEU", ".2f"),
    "chrf": ("chrF", ".2f"),
    "ter": ("TER", ".2f"),
    "teacher_forced_bleu": ("teacher-forced BLEU", ".4f"),
    "perplexity": ("perplexity", ".2f"),
    "accuracy": ("accuracy", ".4f"),
    "train_sample_loss": ("loss of training sentences", ".4f"),
    "seconds": ("seconds", ".1f"),
}
"""Figures of an evaluation: heading and number format."""

Item = TypeVar("Item")


def build_appendix(findings: Findings) -> list[ReportSection]:
    """Returns the sections that have something to show."""
    evidence = findings.evidence
    sections = [
        _failures(evidence),
        _launches(evidence),
        _samples(evidence),
        _scores(findings),
        _attribution(findings),
        _predictions(evidence),
        _what_was_read(evidence),
        _not_in_log(evidence),
        _configuration(evidence),
        _environment(evidence),
        _reproduction(evidence),
    ]
    return [section for section in sections if section is not None]


def _failures(evidence: Evidence) -> ReportSection | None:
    if evidence.imported is None or not evidence.imported.failures:
        return None
    has_launches = len(evidence.launches) > 1
    columns = [*(["launch"] if has_launches else []), "what", "cause and remedy", "line"]
    rows = [
        [*([_number(each.launch, "d")] if has_launches else []), each.what, each.cause, each.evidence]
        for each in evidence.imported.failures
    ]
    return ReportSection("What went wrong", tables=[Table("Found in the log", columns, rows)])


def _launches(evidence: Evidence) -> ReportSection | None:
    """All starts of the trainer, and how each ended; a log with one start needs no list."""
    launches = evidence.launches
    if len(launches) < 2:
        return None
    rows = [
        (
            f"{launch.number}",
            _describe_steps(launch),
            _ENDS[launch.end],
            launch.reason or ("" if launch.end == "finished" else "the log does not say"),
            _describe_place(launch),
        )
        for launch in launches
    ]
    trained = evidence.trained_launch
    which = f"This report is about launch {trained.number}." if trained and trained.last_step is not None else ""
    message = f"The log holds {len(launches)} launches. {which}".strip()
    columns = ("launch", "steps", "end", "why", "begins at")
    return ReportSection("Launches", [message], tables=[Table("Launches", columns, rows, (0,))])


def _describe_steps(launch: ImportedLaunch) -> str:
    if launch.last_step is None:
        return "none"
    return f"{launch.first_step or 0:,} to {launch.last_step:,}"


def _describe_place(launch: ImportedLaunch) -> str:
    line = f"line {launch.line:,}" if launch.line is not None else ""
    time = launch.time or 0.0
    is_date = _FIRST_DATE <= time <= _LAST_DATE
    when = f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC" if is_date else ""
    return ", ".join(filter(None, (Path(launch.source).name, line, when)))


def _samples(evidence: Evidence) -> ReportSection | None:
    """Translations of the same few sentences over time."""
    is_forced = evidence.facts.bleu_kind == "teacher_forced"
    found = [
        TranslationSample(record.step, sample.source, sample.reference, sample.translation, is_forced)
        for record in evidence.evaluations
        for sample in (record.samples or [])[:1]
    ] or [
        TranslationSample(record.step, sample.source, sample.target, sample.prediction, True)
        for record in evidence.train
        if (sample := record.sample) is not None
    ]
    if not found:
        return None
    note = "The decoder was fed the reference word by word: these are not translations."
    return ReportSection("Translations over time", [note] if is_forced else [], samples=_thin(found, _MAX_SAMPLES))


def _thin(items: Sequence[Item], most: int) -> list[Item]:
    """Returns items at even distances, the last included."""
    stride = -(-len(items) // most)
    return [*items[:-1:stride], items[-1]]


def _scores(findings: Findings) -> ReportSection | None:
    evidence = findings.evidence
    tables = [*_test_scores(evidence), *_dev_scores(findings)]
    signatures = {each.signature for each in evidence.scores} | {each.signature for each in evidence.evaluations}
    messages = [f"BLEU signature: {signature}" for signature in sorted(filter(None, signatures))[:_MAX_SIGNATURES]]
    return ReportSection("Scores", messages, tables=tables) if tables else None


def _test_scores(evidence: Evidence) -> list[Table]:
    rows = [
        [
            each.judged_on,
            "" if each.step is None else f"{each.step:,}",
            _number(each.bleu, ".2f"),
            _number(each.chrf, ".2f"),
            _number(each.sentences, ",.0f"),
            each.signature or "",
        ]
        for each in evidence.scores[-MAX_SCORES:]
    ]
    columns = ("text", "step", "BLEU", "chrF", "sentences", "BLEU signature")
    return [Table("On test sets, with beam search", columns, rows, (1, 2, 3, 4))] if rows else []


def _dev_scores(findings: Findings) -> list[Table]:
    """All figures of the evaluations; a score whose scoring failed is marked."""
    evaluations = findings.evidence.evaluations
    names = [name for name in _SCORES if any(each.number(name) is not None for each in evaluations)]
    others = list(dict.fromkeys(name for each in evaluations for name in each.other_scores or {}))[:_MAX_OTHER_SCORES]
    if not names and not others:
        return []
    failed = {(each.step, each.key) for each in findings.failed_scores}

    def cell(record: EvaluationRecord, name: str) -> str:
        return _number(record.number(name), _SCORES[name][1]) + (" (failed)" if (record.step, name) in failed else "")

    rows = [
        [
            f"{each.step:,}",
            *(cell(each, name) for name in names),
            *(_number((each.other_scores or {}).get(name), ".4g") for name in others),
        ]
        for each in _thin(evaluations, MAX_SCORES)
    ]
    columns = ["step", *(_SCORES[name][0] for name in names), *others]
    return [Table("On the dev set", columns, rows, tuple(range(len(columns))))]


def _number(value: float | None, number_format: str) -> str:
    return "" if value is None else format(value, number_format)


def _attribution(findings: Findings) -> ReportSection | None:
    chart = attribution_chart(findings)
    return None if chart is None else ReportSection("Parts of the step time over the run", charts=[chart])


def _predictions(evidence: Evidence) -> ReportSection | None:
    rows = []
    for record in evidence.predictions:
        figures = record.seconds_per_step
        times = [format_step(value) for value in (figures.predicted, figures.low, figures.high) if value is not None]
        if len(times) == 3:
            rows.append((f"{record.step:,}", record.basis or "", *times))
    if not rows:
        return None
    steps, errors = curve(evidence.train, "prediction_error")
    messages, charts = [], []
    if len(steps):
        error = float(errors.mean())
        messages.append(f"Steps took {abs(error):.1%} {'longer' if error >= 0 else 'less'} than predicted, on average.")
        series = [Series("error", steps.tolist(), (100 * errors).tolist())]
        label = "measured / predicted − 1, %"
        charts.append(Chart("prediction-error", "Measured against predicted", "step", label, series))
    table = Table("Predictions", ("at step", "basis", "predicted", "low", "high"), rows, (0, 2, 3, 4))
    return ReportSection("Predicted and measured", messages, charts, [table])


def _what_was_read(evidence: Evidence) -> ReportSection | None:
    if evidence.imported is None:
        return None
    read = [f"Read: {name}" for name in evidence.imported.sources[:_MAX_SOURCES]]
    num_more = len(evidence.imported.sources) - len(read)
    more = [f"Read: {num_more:,} more files."] if num_more > 0 else []
    messages = [*read, *more, *evidence.imported.left_out]
    return ReportSection("What was read and what was left out", messages) if messages else None


def _not_in_log(evidence: Evidence) -> ReportSection | None:
    notes = evidence.imported.notes if evidence.imported else []
    return ReportSection("What this log does not show", notes) if notes else None


def _configuration(evidence: Evidence) -> ReportSection | None:
    if evidence.imported and evidence.imported.printed_config:
        text = json.dumps(evidence.imported.printed_config, indent=2, ensure_ascii=False)
        return ReportSection(f"Configuration, as {evidence.trainer} printed it", text=text[:MAX_TEXT_CHARACTERS])
    try:
        text = evidence.run.config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return ReportSection("Configuration", text=text[:MAX_TEXT_CHARACTERS])


def _environment(evidence: Evidence) -> ReportSection | None:
    provenance, facts = evidence.config.get("provenance"), evidence.facts
    rows = []
    if isinstance(provenance, dict):
        rows += [(name, format_value(value)) for name, value in provenance.items() if name != "command"]
    rows += [(name.replace("_", " "), format_value(value)) for name, value in facts if name in facts.model_fields_set]
    nodes = [path.name.removeprefix("system.").removesuffix(".jsonl") for path in evidence.run.system_files()]
    rows += [("machine", node) for node in nodes]
    return ReportSection("Environment", tables=[Table("Environment", ("", ""), rows)]) if rows else None


def _reproduction(evidence: Evidence) -> ReportSection:
    if evidence.imported is not None:
        names = " ".join(shlex.quote(name) for name in evidence.imported.sources)
        return ReportSection("Reproduce this report", text=f"dragoman report {names}".strip())
    provenance = evidence.settings.provenance
    lines = []
    if provenance.command is not None:
        lines += ["# how the run was started", " ".join(map(shlex.quote, provenance.command))]
    if provenance.git_commit:
        lines.append(f"# with the code of commit {provenance.git_commit}")
    run = shell_path(evidence.run.path)
    prepared = os.path.normpath(evidence.run.path / (evidence.settings.data.prepared or ""))
    lines += [
        f"# the same settings and data ({prepared}) give the same run, on any number of workers",
        f"dragoman train {run}/config.toml --run-dir runs/again",
        f"dragoman report {run}",
    ]
    return ReportSection("Reproduce this run", text="\n".join(lines))
