"""Compares several runs: curves by step, time and cost, settings that differ, and which run is better.

BLEU is compared by paired bootstrap over the sentences that both runs translated.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from dragoman.diagnosis.wording import CAUSE_NAMES, format_step
from dragoman.report.compose import collect_facts
from dragoman.report.content import Chart, Comparison, ReportSection, Series, Table, format_value
from dragoman.report.durations import describe_hours
from dragoman.report.evidence import Curve, Evidence, Floats, curve, timed_records
from dragoman.report.findings import Findings
from dragoman.report.state import describe_state
from dragoman.report.warnings import one_line
from dragoman.run.folder import RunFolder
from dragoman.run.units import format_figure

_NOT_SETTINGS = ("provenance",)
_NO_VALUE = "–"
NUM_RESAMPLES = 2_000
NUM_COUNTS = 10
"""Counts of a sentence: both lengths, matching and possible n-grams of 1 to 4 words."""
_MAX_SENTENCES = 100_000
_MOST_WORDS = 1e9
"""Largest count of a sentence: sums of larger ones might overflow."""
SIGNIFICANT = 0.05
_SAME_BATCH = 1.05
"""Batches whose sizes differ by less than this factor count as equal."""


@dataclass(frozen=True)
class DevTranslations:
    """The dev set as a run translated it last."""

    step: int
    sources: list[str]
    references: list[str]
    counts: Floats
    tokenizer: str | None = None
    """What cut the text into the words that were counted; None where it is not known."""


@dataclass(frozen=True)
class BleuDifference:
    """Advantage of the second run over the first, in points of BLEU."""

    points: float
    low: float
    high: float
    """Ends of the 95% interval."""
    p: float
    """Two-sided probability of at least this difference by the choice of sentences alone."""

    @property
    def is_significant(self) -> bool:
        """Whether chance is an unlikely explanation."""
        return self.p < SIGNIFICANT


def compare_runs(all_findings: Sequence[Findings]) -> Comparison:
    """Builds the comparison."""
    named = dict(zip(_names([each.evidence for each in all_findings]), all_findings, strict=True))
    judgements, warnings = _judge(named)
    best = " ".join(judgements[:2]) if judgements else "Cannot compare: fewer than two runs were evaluated."
    sections = [
        ReportSection("Which is better", judgements, tables=[_figures(named)]),
        ReportSection("Curves", charts=[chart for chart in _charts(named) if chart.series]),
        _differences(named),
    ]
    facts = {
        "runs": [{"name": name} | collect_facts(each) for name, each in named.items()],
        "judgements": judgements,
        "differences": _differing_settings(named),
    }
    return Comparison(" against ".join(named), best, sections, list(map(one_line, warnings)), facts)


def _names(evidences: Sequence[Evidence]) -> list[str]:
    """Returns the names of the folders, with a number after names that occur twice."""
    names: list[str] = []
    for evidence in evidences:
        own = evidence.run.path.resolve().name
        names.append(
            next(name for number in count(1) if (name := own if number == 1 else f"{own} ({number})") not in names)
        )
    return names


def _figures(named: dict[str, Findings]) -> Table:
    def row(name: str, values: list[str]) -> list[str]:
        return [name, *(value or _NO_VALUE for value in values)]

    runs = list(named.values())
    rows = [
        row("trainer", [each.evidence.trainer for each in runs]),
        row("parameters", [format_figure("{:,.0f}", each.evidence.parameters) for each in runs]),
        row("steps", [_describe_steps(each.evidence) for each in runs]),
        row("state", [describe_state(each).text for each in runs]),
        row("last dev loss", [format_figure("{:.4f}", _last(each.dev_loss)) for each in runs]),
        row("best dev loss", [format_figure("{:.4f}", _lowest(each.dev_loss)) for each in runs]),
        *_at_common_step(runs, "dev loss", [each.dev_loss for each in runs], "{:.4f}"),
        row("last BLEU", [_show_bleu(each, _last(each.bleu)) for each in runs]),
        *_at_common_step(runs, *_common_score(runs), "{:.2f}"),
        row("best checkpoint", [each.best_checkpoint.describe() if each.best_checkpoint else "" for each in runs]),
        row("median time per step", [format_step(each.step_times.median) if each.step_times else "" for each in runs]),
        row("time", [describe_hours(each.wall_seconds) if each.wall_seconds else "" for each in runs]),
        row("cost", [format_figure("{:,.2f}", each.cost) for each in runs]),
        row("limited by", [CAUSE_NAMES.get(each.verdict.bottleneck, "") for each in runs]),
    ]
    return Table("Figures", ["", *named], rows, tuple(range(1, len(named) + 1)))


def _describe_steps(evidence: Evidence) -> str:
    seen = f" (the last {evidence.num_steps:,} in this log)" if evidence.unseen_steps else ""
    return format_figure("{:,.0f}", evidence.last_step) + seen


def _show_bleu(findings: Findings, value: float | None) -> str:
    """Formats BLEU: of translations from 0 to 100, teacher-forced from 0 to 1."""
    if value is None:
        return ""
    return f"{0.01 * value:.4f} (teacher-forced)" if findings.is_bleu_forced else f"{value:.2f}"


def _at_common_step(runs: Sequence[Findings], name: str, curves: Sequence[Curve], pattern: str) -> list[list[str]]:
    """Returns the row of a figure at the last step that all runs have reached; none where there is no such step."""
    step = _last_common_step(curves)
    if step is None or len(curves) < len(runs):
        return []
    return [[f"{name} at step {int(step):,}", *(pattern.format(np.interp(step, *each)) for each in curves)]]


def _last_common_step(curves: Sequence[Curve]) -> float | None:
    """The last step that all curves have reached; None where one ends before another begins."""
    trained = [(steps[steps > 0]) for steps, _ in curves]
    if len(trained) < 2 or not all(len(steps) for steps in trained):
        return None
    last = min(float(steps[-1]) for steps in trained)
    return last if last >= max(float(steps[0]) for steps in trained) else None


def _common_score(runs: Sequence[Findings]) -> tuple[str, list[Curve]]:
    """The score of translations that all runs have, BLEU before chrF; failed scores are left out."""
    for key, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        curves = [curve(each.evaluations, key) for each in runs]
        if all(np.any(steps > 0) for steps, _ in curves):
            return name, curves
    return "", []


def _last(points: Curve) -> float | None:
    return float(points[1][-1]) if len(points[1]) else None


def _lowest(points: Curve) -> float | None:
    return float(points[1].min()) if len(points[1]) else None


def _charts(named: dict[str, Findings]) -> list[Chart]:
    units = {each.loss_unit for each in named.values()}
    unit = units.pop() if len(units) == 1 else "loss, in different units"
    bleu_label, bleu_curves = _bleu_curves(named)
    figures = {
        "loss": ("Dev loss", unit, {name: each.dev_loss for name, each in named.items()}),
        "bleu": (bleu_label.split(",")[0], bleu_label, bleu_curves),
    }
    axes = {
        "step": ("by step", "step"),
        "tokens": ("by target tokens", "target tokens"),
        "time": ("by time", "hours of training"),
        "cost": ("by cost", "cost"),
    }
    if not _have_different_batches(named):
        del axes["tokens"]
    charts = []
    for figure, (title, unit, curves) in figures.items():
        for axis, (how, label) in axes.items():
            series = []
            for name, (steps, values) in curves.items():
                x = _along(named[name], steps, axis)
                is_shown = steps > 0
                if x is not None and np.any(is_shown):
                    series.append(Series(name, x[is_shown].tolist(), values[is_shown].tolist()))
            note = "" if axis == "step" else _describe_late_beginnings(named)
            charts.append(Chart(f"{figure}-by-{axis}", f"{title} {how}", label, unit, series, note=note))
    return charts


def _bleu_curves(named: dict[str, Findings]) -> tuple[str, dict[str, Curve]]:
    """The curves of one kind of score: BLEU of translations, else chrF, else teacher-forced BLEU; never mixed."""
    of_translations = {name: each.bleu for name, each in named.items() if not each.is_bleu_forced}
    if of_translations:
        return "BLEU, 0 to 100", of_translations
    by_chrf = {name: curve(each.evaluations, "chrf") for name, each in named.items()}
    if any(len(steps) for steps, _ in by_chrf.values()):
        return "chrF", by_chrf
    return "Teacher-forced BLEU, 0 to 1", {name: (each.bleu[0], 0.01 * each.bleu[1]) for name, each in named.items()}


def _have_different_batches(named: dict[str, Findings]) -> bool:
    """Whether the same step means different amounts of text; False where that is not known."""
    sizes = [float(np.median(tokens)) for each in named.values() if len(tokens := _tokens_per_step(each))]
    return len(sizes) == len(named) and max(sizes) > _SAME_BATCH * min(sizes) > 0


def _tokens_per_step(findings: Findings) -> Floats:
    """Target tokens per step of each timed interval; empty unless all have them."""
    timed = timed_records(findings.evidence)
    _, rates = curve(timed, "target_tokens_per_second")
    return rates * findings.evidence.step_seconds if len(rates) == len(timed) else np.empty(0)


def _describe_late_beginnings(named: dict[str, Findings]) -> str:
    late = {name: each.evidence.unseen_steps for name, each in named.items() if each.evidence.unseen_steps}
    logs = [f"the log of {name} begins after step {step:,}" for name, step in late.items()]
    return f"Counted from the beginning of each log; {', '.join(logs)}." if logs else ""


def _along(findings: Findings, steps: Floats, axis: str) -> Floats | None:
    """Returns the steps, or the tokens, hours or cost until each step, since the log begins; None where not known."""
    if axis == "step":
        return steps
    price = findings.evidence.price_per_hour
    per_step = _tokens_per_step(findings) if axis == "tokens" else findings.evidence.step_seconds / 3600
    if not len(per_step) or (axis == "cost" and price is None):
        return None
    ends, _ = curve(findings.evidence.train, "seconds_per_step")
    begin = float(ends[0] - findings.interval_steps[0])
    spent = np.interp(steps, [begin, *ends], [0.0, *np.cumsum(per_step * np.diff(ends, prepend=begin))])
    return np.asarray(spent * (price or 1.0) if axis == "cost" else spent, dtype=np.float64)


def _differing_settings(named: dict[str, Findings]) -> dict[str, dict[str, Any]]:
    """Returns the settings that are not the same in all runs, by name."""
    flat = {name: dict(settings) for name, settings in _settings_of(named).items()}
    keys = sorted({key for settings in flat.values() for key in settings})
    values = {key: {name: settings.get(key) for name, settings in flat.items()} for key in keys}
    return {key: found for key, found in values.items() if len({format_value(value) for value in found.values()}) > 1}


def _settings_of(named: dict[str, Findings]) -> dict[str, list[tuple[str, Any]]]:
    """Returns all settings of each run: as their trainer printed them where it is the same and printed them for all."""
    evidences = {name: each.evidence for name, each in named.items()}
    printed = {name: each.imported.printed_config if each.imported else {} for name, each in evidences.items()}
    if all(printed.values()) and len({each.trainer for each in evidences.values()}) == 1:
        return {name: _flatten(config) for name, config in printed.items()}
    return {name: _flatten(each.config) for name, each in evidences.items()}


def _flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if not prefix and key in _NOT_SETTINGS:
            continue
        found += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _differences(named: dict[str, Findings]) -> ReportSection:
    title = "Settings that differ"
    if unknown := [name for name, settings in _settings_of(named).items() if not settings]:
        return ReportSection(title, [f"Not known: the files of {' and '.join(unknown)} hold no settings."])
    rows = [
        [key, *(_NO_VALUE if value is None else format_value(value) for value in values.values())]
        for key, values in _differing_settings(named).items()
    ]
    if not rows:
        return ReportSection(title, ["None: all recorded settings are the same."])
    return ReportSection(title, tables=[Table(title, ["setting", *named], rows)])


def _judge(named: dict[str, Findings]) -> tuple[list[str], list[str]]:
    """Returns messages about which run is better, the clearest first, and warnings about them."""
    translated = {
        name: found for name, each in named.items() if (found := read_translations(each.evidence.run)) is not None
    }
    messages = _judge_translations(named, translated) if len(translated) >= 2 else _judge_scores(named)
    losses = {name: each for name, each in named.items() if _last(each.dev_loss) is not None}
    doubts = _doubts_about_losses(named)
    if len(losses) >= 2 and doubts:
        messages.append("The losses are not comparable: translate one test set with each run, and compare the BLEU.")
    elif len(losses) >= 2:
        messages.append(_judge_losses(losses))
    return messages, doubts + _doubts(named)


def _judge_translations(named: dict[str, Findings], translated: dict[str, DevTranslations]) -> list[str]:
    scores = {name: _last(named[name].bleu) or 0.0 for name in translated}
    ranking = sorted(translated, key=scores.__getitem__, reverse=True)
    best = max(scores, key=scores.__getitem__)
    return [_compare_pair(best, name, translated) for name in ranking if name != best]


def _judge_scores(named: dict[str, Findings]) -> list[str]:
    """Compares BLEU or chrF at the last step that all have reached, for runs without translations to resample."""
    name, curves = _common_score(list(named.values()))
    step = _last_common_step(curves)
    if step is None:
        return []
    values = {run: float(np.interp(step, *points)) for run, points in zip(named, curves, strict=True)}
    best, second = sorted(values, key=values.__getitem__, reverse=True)[:2]
    if values[best] == values[second] or _are_scores_different_things(named):
        return []
    return [
        f"At step {int(step):,}, which all have reached, {best} has the highest {name}: {values[best]:.2f}, "
        f"{values[best] - values[second]:.2f} above {second}. Without the translations of both, nobody can say "
        "whether that is more than chance."
    ]


def _are_scores_different_things(named: dict[str, Findings]) -> bool:
    """Whether the scores are of different dev sets, or were computed with different tokenizers."""
    evidences = [each.evidence for each in named.values()]
    dev_sets = {str(evidence.facts.dev_files) for evidence in evidences if evidence.facts.dev_files}
    last = [evidence.evaluations[-1].signature for evidence in evidences if evidence.evaluations]
    return len(dev_sets) > 1 or len({_tokenizer_of(signature) for signature in last} - {None}) > 1


def _compare_pair(best: str, other: str, translated: dict[str, DevTranslations]) -> str:
    tokenizers = [translated[name].tokenizer for name in (best, other)]
    if None not in tokenizers and tokenizers[0] != tokenizers[1]:
        return (
            f"BLEU of {best} and {other} cannot be compared: it was computed with different tokenizers "
            f"({tokenizers[0]} and {tokenizers[1]})."
        )
    difference = compare_bleu(translated[other], translated[best])
    if difference is None:
        return f"{best} and {other} translated different dev sets: their BLEU cannot be compared."
    bleu = f"BLEU {difference.points:+.1f} ({difference.low:+.1f} to {difference.high:+.1f})"
    if difference.is_significant:
        return (
            f"{best} translates better than {other}: {bleu}, significant (p = {difference.p:.2g}, paired bootstrap "
            f"over {len(translated[other].counts):,} sentences)."
        )
    return f"{best} and {other} do not differ significantly: {bleu}, p = {difference.p:.2g} by paired bootstrap."


def _judge_losses(named: dict[str, Findings]) -> str:
    """Compares the runs at the last step that all have reached, relative to the noise of evaluations."""
    last = _last_common_step([each.dev_loss for each in named.values()])
    if last is None:
        return "One run ended before another was first evaluated: their losses have no step in common."
    # Between two evaluations, the loss is taken from the line that joins them, as in the table.
    values = {name: float(np.interp(last, *each.dev_loss)) for name, each in named.items()}
    best, second = sorted(values, key=values.__getitem__)[:2]
    fits = {name: each.loss_forecast.fit for name, each in named.items() if each.loss_forecast is not None}
    if len(fits) < len(named):
        return (
            f"At step {int(last):,}, which all have reached, {best} has the lowest dev loss, {values[best]:.4f}; that "
            "may be chance, with so few evaluations."
        )
    noise = math.hypot(fits[best].noise, fits[second].noise)
    gap = values[second] - values[best]
    how = "beyond the noise of single evaluations" if gap > 2 * noise else "within the noise of single evaluations"
    return (
        f"At step {int(last):,}, which all have reached, {best} has the lowest dev loss: {values[best]:.4f}, "
        f"{gap:.4f} below {second}, {how} ({noise:.4f})."
    )


def _doubts_about_losses(named: dict[str, Findings]) -> list[str]:
    evidences = [each.evidence for each in named.values()]
    doubts = []
    units = {each.loss_unit for each in named.values()}
    if len(units) > 1:
        doubts.append(f"The losses are not comparable: they are in different units ({', '.join(sorted(units))}).")
    if len({evidence.settings.training.label_smoothing for evidence in evidences} - {None}) > 1:
        doubts.append("Label smoothing differs: the losses of these runs are not comparable.")
    vocabularies = {evidence.facts.vocab_size for evidence in evidences} - {None}
    if (
        len({evidence.corpus.key or str(evidence.facts.dev_files) for evidence in evidences}) > 1
        or len(vocabularies) > 1
    ):
        doubts.append("These runs used different corpora or vocabularies: losses per subword are not comparable.")
    return doubts


def _doubts(named: dict[str, Findings]) -> list[str]:
    doubts = []
    kinds = {each.bleu_name for each in named.values() if len(each.bleu[0])}
    if len(kinds) > 1:
        doubts.append("Some runs have BLEU of translations, others teacher-forced BLEU: these are not comparable.")
    if len({each.evidence.price_per_hour for each in named.values()}) > 1:
        doubts.append("The runs have different prices per hour.")
    return doubts


def read_translations(run: RunFolder) -> DevTranslations | None:
    """Reads translations.jsonl; None where it is missing or damaged."""
    try:
        with run.translations.open(encoding="utf-8") as file:
            head = json.loads(file.readline())
            rows = [json.loads(line) for _, line in zip(range(_MAX_SENTENCES), file, strict=False)]
        counts = np.array([row["bleu_counts"] for row in rows], dtype=np.float64).reshape(len(rows), NUM_COUNTS)
        texts = [[str(row[name]) for row in rows] for name in ("source", "reference")]
        if not rows or not _are_counts(counts):
            return None
        return DevTranslations(int(head["step"]), texts[0], texts[1], counts, _tokenizer_of(head.get("signature")))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _tokenizer_of(signature: object) -> str | None:
    """Returns the tokenizer that a signature of sacreBLEU names."""
    named = [field.removeprefix("tok:") for field in str(signature).split("|") if field.startswith("tok:")]
    return named[0] if named else None


def _are_counts(counts: Floats) -> bool:
    """Whether BLEU can be computed: matches never exceed totals, and there are no more long n-grams than short ones."""
    matches, totals = counts[:, 2:6], counts[:, 6:]
    is_bounded = np.all((counts >= 0) & (counts <= _MOST_WORDS))
    return bool(is_bounded and np.all(matches <= totals) and np.all(np.diff(totals, axis=1) <= 0))


def compare_bleu(first: DevTranslations, second: DevTranslations) -> BleuDifference | None:
    """Compares two runs by paired bootstrap; None unless both translated the same sentences."""
    if first.sources != second.sources or first.references != second.references:
        return None
    num_sentences = len(first.counts)
    random = np.random.default_rng(0)
    differences = np.empty(NUM_RESAMPLES)
    for index in range(NUM_RESAMPLES):
        times = np.bincount(random.integers(0, num_sentences, num_sentences), minlength=num_sentences)
        differences[index] = bleu_of(times @ second.counts) - bleu_of(times @ first.counts)
    points = bleu_of(second.counts.sum(axis=0)) - bleu_of(first.counts.sum(axis=0))
    low, high = np.quantile(differences, [0.025, 0.975])
    wrong_way = float(np.mean(differences <= 0 if points > 0 else differences >= 0))
    return BleuDifference(points, float(low), float(high), min(1.0, 2 * max(wrong_way, 1 / NUM_RESAMPLES)))


def bleu_of(counts: Sequence[float] | Floats) -> float:
    """Computes corpus BLEU, 0 to 100, from summed counts, smoothed as sacreBLEU does by default."""
    length, reference_length, *rest = (float(count) for count in counts)
    matches, totals = rest[:4], rest[4:]
    if not length or not totals[3] or not matches[0]:
        return 0.0
    log_precision, smoothing = 0.0, 1.0
    for match, total in zip(matches, totals, strict=True):
        if match == 0:
            smoothing *= 2
            log_precision += math.log(1 / (smoothing * total))
        else:
            log_precision += math.log(match / total)
    brevity = min(0.0, 1 - reference_length / length)
    return 100 * math.exp(log_precision / 4 + brevity)
