"""Several runs side by side: their curves by step, time and cost, how they were set, and which is better."""

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from dragoman.diagnosis.wording import BOTTLENECK_WORDS, format_step
from dragoman.report.answers.duration import describe_hours
from dragoman.report.compose import facts_of
from dragoman.report.evidence import Evidence, Floats
from dragoman.report.findings import Findings
from dragoman.report.parts import Chart, Comparison, Section, Series, Table, printed
from dragoman.report.significance import compare_bleu, read_judged
from dragoman.run.status import number_or_none

NOT_SETTINGS = ("provenance",)
NO_VALUE = "–"


def compare_runs(all_findings: Sequence[Findings]) -> Comparison:
    """The whole comparison."""
    named = dict(zip(_names([each.evidence for each in all_findings]), all_findings, strict=True))
    judgements, warnings = _judge(named)
    best = judgements[0] if judgements else "Which run is better cannot be said: not two of them were judged."
    sections = [
        Section("Which is better", judgements, tables=[_figures(named)]),
        Section("Curves", charts=[chart for chart in _charts(named) if chart.series]),
        Section("Differences in configuration", tables=[_differences(named)]),
    ]
    facts = {
        "runs": [{"name": name} | facts_of(each) for name, each in named.items()],
        "judgements": judgements,
        "differences": _differing_settings(named),
    }
    return Comparison(" against ".join(named), best, sections, warnings, facts)


def _names(evidences: Sequence[Evidence]) -> list[str]:
    """The names of the folders, with a number behind those that occur twice."""
    names: list[str] = []
    for evidence in evidences:
        own = evidence.run.path.resolve().name
        names.append(
            next(name for number in count(1) if (name := own if number == 1 else f"{own} ({number})") not in names)
        )
    return names


def _figures(named: dict[str, Findings]) -> Table:
    def row(name: str, values: list[str]) -> list[str]:
        return [name, *(value or NO_VALUE for value in values)]

    runs = list(named.values())
    rows = [
        row("trainer", [each.evidence.trainer for each in runs]),
        row("parameters", [_text("{:,.0f}", each.evidence.parameters) for each in runs]),
        row("steps", [_text("{:,.0f}", each.evidence.last_step) for each in runs]),
        row("last dev loss", [_text("{:.4f}", _last(each.dev_loss)) for each in runs]),
        row("best dev loss", [_text("{:.4f}", _lowest(each.dev_loss)) for each in runs]),
        row("last BLEU", [_text("{:.2f}", _last(each.bleu)) + _kind(each) for each in runs]),
        row("a step (median)", [format_step(each.step_times.median) if each.step_times else "" for each in runs]),
        row("time", [describe_hours(each.wall_seconds) if each.wall_seconds else "" for each in runs]),
        row("cost", [_text("{:,.2f}", each.cost) for each in runs]),
        row("held back by", [BOTTLENECK_WORDS.get(each.verdict.bottleneck, "") for each in runs]),
    ]
    return Table("In figures", ["", *named], rows, tuple(range(1, len(named) + 1)))


def _text(pattern: str, value: float | None) -> str:
    return "" if value is None else pattern.format(value)


def _kind(findings: Findings) -> str:
    return " (teacher-forced)" if findings.bleu_name == "teacher_forced_bleu" and len(findings.bleu[0]) else ""


def _last(points: tuple[Floats, Floats]) -> float | None:
    return float(points[1][-1]) if len(points[1]) else None


def _lowest(points: tuple[Floats, Floats]) -> float | None:
    return float(points[1].min()) if len(points[1]) else None


def _charts(named: dict[str, Findings]) -> list[Chart]:
    figures = {
        "loss": ("Dev loss", "loss in nats per token", {name: each.dev_loss for name, each in named.items()}),
        "bleu": ("BLEU", "BLEU", {name: each.bleu for name, each in named.items()}),
    }
    axes = {
        "step": ("by step", "step"),
        "time": ("by time", "hours of training"),
        "cost": ("by cost", "cost"),
    }
    charts = []
    for figure, (title, unit, curves) in figures.items():
        for axis, (how, label) in axes.items():
            series = []
            for name, (steps, values) in curves.items():
                x = _along(named[name], steps, axis)
                is_shown = steps > 0
                if x is not None and np.any(is_shown):
                    series.append(Series(name, x[is_shown].tolist(), values[is_shown].tolist()))
            charts.append(Chart(f"{figure}-by-{axis}", f"{title} {how}", label, unit, series))
    return charts


def _along(findings: Findings, steps: Floats, axis: str) -> Floats | None:
    """The steps themselves, the hours of training until then, or what those cost."""
    if axis == "step":
        return steps
    price = findings.evidence.price_per_hour
    if findings.step_times is None or (axis == "cost" and price is None):
        return None
    ends = np.cumsum(findings.evidence.step_seconds * findings.interval_steps) / 3600
    at = np.cumsum(findings.interval_steps)
    hours = np.interp(steps, at, ends)
    return np.asarray(hours * (price or 1.0) if axis == "cost" else hours, dtype=np.float64)


def _differing_settings(named: dict[str, Findings]) -> dict[str, dict[str, Any]]:
    """Settings that are not the same in all runs, by name."""
    flat = {name: dict(_flatten(each.evidence.config)) for name, each in named.items()}
    keys = sorted({key for settings in flat.values() for key in settings})
    values = {key: {name: settings.get(key) for name, settings in flat.items()} for key in keys}
    return {key: found for key, found in values.items() if len({printed(value) for value in found.values()}) > 1}


def _flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if not prefix and key in NOT_SETTINGS:
            continue
        found += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _differences(named: dict[str, Findings]) -> Table:
    rows = [
        [key, *(NO_VALUE if value is None else printed(value) for value in values.values())]
        for key, values in _differing_settings(named).items()
    ]
    return Table("Settings that differ" if rows else "All settings are the same", ["setting", *named], rows)


def _judge(named: dict[str, Findings]) -> tuple[list[str], list[str]]:
    """Sentences on which run is better, the clearest first, and what makes them doubtful."""
    judged = {name: found for name, each in named.items() if (found := read_judged(each.evidence.run)) is not None}
    sentences: list[str] = []
    if len(judged) >= 2:
        sentences += _judge_translations(named, judged)
    losses = {name: each for name, each in named.items() if _last(each.dev_loss) is not None}
    doubts = _doubts_about_losses(named)
    if len(losses) >= 2 and doubts:
        sentences.append("Their losses are not on one scale: translate one test set with each, and compare the BLEU.")
    elif len(losses) >= 2:
        sentences.append(_judge_losses(losses))
    return sentences, doubts + _doubts(named)


def _judge_translations(named: dict[str, Findings], judged: dict[str, Any]) -> list[str]:
    scores = {name: _last(named[name].bleu) or 0.0 for name in judged}
    best = max(scores, key=scores.__getitem__)
    sentences = []
    for name in sorted(judged, key=scores.__getitem__, reverse=True):
        if name == best:
            continue
        difference = compare_bleu(judged[name], judged[best])
        if difference is None:
            sentences.append(f"{best} and {name} translated different dev sets: their BLEU cannot be compared.")
            continue
        interval = f"{difference.low:+.1f} to {difference.high:+.1f}"
        if difference.is_significant:
            sentences.append(
                f"{best} translates better than {name}: BLEU {difference.points:+.1f} ({interval}), significant "
                f"(p = {difference.p:.2g}, paired bootstrap over {len(judged[name].counts):,} sentences)."
            )
        else:
            sentences.append(
                f"{best} and {name} do not differ significantly: BLEU {difference.points:+.1f} ({interval}), "
                f"p = {difference.p:.2g} by paired bootstrap."
            )
    return sentences


def _judge_losses(named: dict[str, Findings]) -> str:
    """By the fitted curves at the last step that all have reached, against the noise of their evaluations."""
    last = min(float(each.dev_loss[0][-1]) for each in named.values())
    if last < max(float(each.dev_loss[0][each.dev_loss[0] > 0][:1].sum()) for each in named.values()):
        return "One of them ended before another was judged for the first time: their losses have no step in common."
    fits = {name: each.loss_forecast.fit for name, each in named.items() if each.loss_forecast is not None}
    if len(fits) < len(named):
        ends = {name: _last(each.dev_loss) or 0.0 for name, each in named.items()}
        best = min(ends, key=ends.__getitem__)
        return f"{best} ends with the lowest dev loss, {ends[best]:.4f}; too few evaluations tell whether by chance."
    values = {name: float(fit.curve([last]).value[0]) for name, fit in fits.items()}
    best, second = sorted(values, key=values.__getitem__)[:2]
    noise = math.hypot(fits[best].noise, fits[second].noise)
    gap = values[second] - values[best]
    how = "beyond the noise of single evaluations" if gap > 2 * noise else "within the noise of single evaluations"
    return (
        f"At step {int(last):,}, which all have reached, {best} has the lowest dev loss: {values[best]:.4f}, "
        f"{gap:.4f} below {second}, {how} ({noise:.4f})."
    )


def _doubts_about_losses(named: dict[str, Findings]) -> list[str]:
    doubts = []
    smoothing = {number_or_none(each.evidence.training.get("label_smoothing")) for each in named.values()} - {None}
    if len(smoothing) > 1:
        doubts.append("Label smoothing differs: losses of these runs are not on one scale.")
    corpora = {
        str(each.evidence.manifest.get("key") or each.evidence.facts.get("dev_files")) for each in named.values()
    }
    if len(corpora) > 1:
        doubts.append("These runs learned from different corpora or vocabularies: losses per piece are not comparable.")
    return doubts


def _doubts(named: dict[str, Findings]) -> list[str]:
    doubts = []
    kinds = {each.bleu_name for each in named.values() if len(each.bleu[0])}
    if len(kinds) > 1:
        doubts.append("BLEU of translations and teacher-forced BLEU stand side by side: they are not comparable.")
    if len({each.evidence.price_per_hour for each in named.values()}) > 1:
        doubts.append("Not all runs have the same price per hour.")
    return doubts
