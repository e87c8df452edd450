"""What follows the answers: failures, samples over time, scores, attribution, predictions, settings, environment."""

import json
import shlex
from typing import Any

from dragoman.diagnosis.wording import format_step
from dragoman.report.answers.steps import attribution_chart
from dragoman.report.evidence import Evidence, curve, table
from dragoman.report.findings import Findings
from dragoman.report.parts import Chart, Section, Series, Table, TranslationSample, printed
from dragoman.run.status import number_or_none

MAX_SAMPLES = 24
MAX_SCORES = 60
MAX_TEXT_CHARACTERS = 200_000
SCORES = {
    "loss": ("loss", ".4f"),
    "negative_log_likelihood": ("without smoothing", ".4f"),
    "bleu": ("BLEU", ".2f"),
    "chrf": ("chrF", ".2f"),
    "teacher_forced_bleu": ("teacher-forced BLEU", ".4f"),
    "perplexity": ("perplexity", ".2f"),
    "accuracy": ("accuracy", ".4f"),
    "train_sample_loss": ("loss of training text", ".4f"),
    "seconds": ("seconds", ".1f"),
}
"""Figures of an evaluation: what they are called, and how they are written."""
TEST_SCORES = {"bleu": ".2f", "chrf": ".2f", "sentences": ",.0f"}


def appendix(findings: Findings) -> list[Section]:
    """Those that have something to show."""
    evidence = findings.evidence
    sections = [
        _failures(evidence),
        _samples(evidence),
        _scores(evidence),
        _attribution(findings),
        _predictions(findings),
        _not_told(evidence),
        _configuration(evidence),
        _environment(evidence),
        _reproduction(evidence),
    ]
    return [section for section in sections if section is not None]


def _failures(evidence: Evidence) -> Section | None:
    failures = evidence.imported.get("failures")
    found = [table(each) for each in failures] if isinstance(failures, list) else []
    if not found:
        return None
    rows = [(str(each.get("what", "")), str(each.get("cause", "")), str(each.get("evidence", ""))) for each in found]
    return Section("What went wrong", tables=[Table("Found in the log", ("what", "cause and remedy", "line"), rows)])


def _samples(evidence: Evidence) -> Section | None:
    """A few sentences as the model said them over time."""
    is_forced = evidence.facts.get("bleu_kind") == "teacher_forced"
    found = []
    for record in evidence.evaluations:
        samples = record.get("samples")
        for sample in map(table, samples[:1] if isinstance(samples, list) else []):
            texts = [str(sample.get(name) or "") for name in ("source", "reference", "translation")]
            found.append(TranslationSample(record["step"], texts[0], texts[1], texts[2], is_forced))
    for record in evidence.train if not found else []:
        if sample := table(record.get("sample")):
            texts = [str(sample.get(name) or "") for name in ("source", "target", "prediction")]
            found.append(TranslationSample(record["step"], texts[0], texts[1], texts[2], True))
    if not found:
        return None
    stride = -(-len(found) // MAX_SAMPLES)
    said = ["The model was fed the reference word by word for these: they are not translations."] if is_forced else []
    return Section("Translations over time", said, samples=[*found[:-1:stride], found[-1]])


def _scores(evidence: Evidence) -> Section | None:
    tables = [*_test_scores(evidence), *_dev_scores(evidence)]
    records = [*evidence.scores, *evidence.evaluations]
    signatures = sorted({text for each in records if isinstance(text := each.get("signature"), str)})
    said = [f"Signature of BLEU: {signature}" for signature in signatures[:3]]
    return Section("Scores", said, tables=tables) if tables else None


def _test_scores(evidence: Evidence) -> list[Table]:
    rows = [
        [
            str(each.get("judged_on", "")),
            str(each.get("step", "")),
            *(_number(each.get(name), pattern) for name, pattern in TEST_SCORES.items()),
            str(each.get("signature", "")),
        ]
        for each in evidence.scores[-MAX_SCORES:]
    ]
    columns = ("text", "step", "BLEU", "chrF", "sentences", "signature of BLEU")
    return [Table("On test sets, by beam search", columns, rows, (1, 2, 3, 4))] if rows else []


def _dev_scores(evidence: Evidence) -> list[Table]:
    evaluations = evidence.evaluations
    names = [name for name in SCORES if any(number_or_none(each.get(name)) is not None for each in evaluations)]
    if not names:
        return []
    stride = -(-len(evaluations) // MAX_SCORES)
    shown = [*evaluations[:-1:stride], evaluations[-1]]
    rows = [[f"{each['step']:,}", *(_number(each.get(name), SCORES[name][1]) for name in names)] for each in shown]
    columns = ["step", *(SCORES[name][0] for name in names)]
    return [Table("On the dev set", columns, rows, tuple(range(len(columns))))]


def _number(value: Any, pattern: str) -> str:
    number = number_or_none(value)
    return "" if number is None else format(number, pattern)


def _attribution(findings: Findings) -> Section | None:
    chart = attribution_chart(findings)
    return None if chart is None else Section("Where the time went, over the run", charts=[chart])


def _predictions(findings: Findings) -> Section | None:
    evidence = findings.evidence
    rows, said = [], []
    for record in evidence.predictions:
        figures = table(record.get("seconds_per_step"))
        numbers = [number_or_none(figures.get(name)) for name in ("predicted", "low", "high")]
        if None not in numbers:
            rows.append((f"{record['step']:,}", str(record.get("basis", "")), *(format_step(n or 0) for n in numbers)))
    if not rows:
        return None
    steps, errors = curve(evidence.train, "prediction_error")
    charts = []
    if len(steps):
        said.append(f"Steps took {float(errors.mean()):+.1%} of what was predicted, in the mean.")
        charts.append(
            Chart(
                "prediction-error",
                "Measured against predicted",
                "step",
                "measured / predicted − 1, %",
                [Series("error", steps.tolist(), (100 * errors).tolist())],
            )
        )
    columns = ("at step", "basis", "predicted", "low", "high")
    return Section("Predicted and measured", said, charts, [Table("Predictions", columns, rows, (0, 2, 3, 4))])


def _not_told(evidence: Evidence) -> Section | None:
    notes = evidence.imported.get("notes")
    sentences = [str(note) for note in notes] if isinstance(notes, list) else []
    return Section("What this log cannot tell", sentences) if sentences else None


def _configuration(evidence: Evidence) -> Section | None:
    printed = evidence.imported.get("printed_config")
    if isinstance(printed, dict) and printed:
        text = json.dumps(printed, indent=2, ensure_ascii=False)
        return Section(f"Configuration, as {evidence.trainer} printed it", text=text[:MAX_TEXT_CHARACTERS])
    try:
        text = evidence.run.config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return Section("Configuration", text=text[:MAX_TEXT_CHARACTERS])


def _environment(evidence: Evidence) -> Section | None:
    provenance = table(evidence.config.get("provenance"))
    rows = [(name, printed(value)) for name, value in provenance.items() if name != "command"]
    rows += [(name.replace("_", " "), printed(value)) for name, value in evidence.facts.items()]
    rows += [
        ("machine", path.name.removeprefix("system.").removesuffix(".jsonl")) for path in evidence.run.system_files()
    ]
    return Section("Environment", tables=[Table("What is known of it", ("", ""), rows)]) if rows else None


def _reproduction(evidence: Evidence) -> Section | None:
    if evidence.is_foreign:
        sources = evidence.imported.get("sources")
        names = " ".join(shlex.quote(str(name)) for name in sources) if isinstance(sources, list) else ""
        return Section("Reproduce this report", text=f"dragoman report {names}".strip())
    provenance = table(evidence.config.get("provenance"))
    command = provenance.get("command")
    lines = []
    if isinstance(command, list):
        lines.append("# as the run was started")
        lines.append(" ".join(shlex.quote(str(part)) for part in command))
    if commit := provenance.get("git_commit"):
        lines.append(f"# by the code of commit {commit}")
    data = table(evidence.config.get("data")).get("prepared")
    run = shlex.quote(str(evidence.run.path))
    lines += [
        f"# the same settings on the same data ({data}) give the same run, on any number of workers",
        f"dragoman train {run}/config.toml --run-dir runs/again",
        f"dragoman report {run}",
    ]
    return Section("Everything needed to reproduce", text="\n".join(lines))
