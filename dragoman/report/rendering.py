"""Renders a report as one self-contained HTML page and as Markdown.

report.html opens offline and prints well. Text of a run is escaped everywhere, so it cannot become markup or code.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dragoman.diagnosis.verdict import Verdict
from dragoman.diagnosis.wording import CAUSE_NAMES
from dragoman.report.charts import MOST_POINTS, draw_chart, thin_chart
from dragoman.report.content import (
    Answer,
    Chart,
    Comparison,
    Report,
    ReportSection,
    Series,
    Table,
    TranslationSample,
    plain_text,
)

_MOST_HOVER_POINTS = 50_000
"""Points of all charts together: each takes about 16 bytes, and hovering must cost less than 1 MB."""
_NUM_DOTS = 5
_NUM_WARNINGS_SHOWN = 3
_NUM_LINES_SHOWN = 12
"""Longer text is folded."""
NOT_KNOWN = "Not enough data to say what limited this run."
_COLOUR = re.compile(r"(--[\w-]+): light-dark\((#\w+), (#\w+)\);")
_MARKUP = re.compile(r"[\\`*_{}\[\]#|~!$]")
_START_OF_BLOCK = re.compile(r"^([-+=]|\d+(?=[.)](?:\s|$)))")
_START_OF_LINK = re.compile(r"(?=://|@)|(?<=www)(?=\.)", re.IGNORECASE)
_CONFIDENCE_WORDS = ((0.9, "certain"), (0.7, "quite sure"), (0.5, "likely"), (0.0, "a guess"))


@dataclass(frozen=True)
class SentenceOverTime:
    """Translations of one sentence at several steps."""

    source: str
    reference: str
    samples: Sequence[TranslationSample]


@dataclass(frozen=True)
class _Drawing:
    """A chart and its SVG."""

    chart: Chart
    svg: Markup


def render_page(report: Report | Comparison) -> str:
    """Renders report.html."""
    answers, sections = _with_unique_keys(report)
    blocks: list[Answer | ReportSection] = [*answers, *sections]
    all_charts = [chart for block in blocks for chart in block.charts]
    drawings = {chart.key: _Drawing(chart, Markup(draw_chart(chart))) for chart in all_charts}  # noqa: S704 ours, escaped
    script = _own_file("page.js")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            figures=report.figures if isinstance(report, Report) else {},
            answers=answers,
            sections=sections,
            drawings={key: drawing for key, drawing in drawings.items() if drawing.svg},
            hover=hover_data(all_charts),
            verdict=report.verdict if isinstance(report, Report) else None,
            style=Markup(_style()),  # noqa: S704 a file of this package
            script=Markup(script),  # noqa: S704 a file of this package
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            num_warnings_shown=_NUM_WARNINGS_SHOWN,
            num_lines_shown=_NUM_LINES_SHOWN,
        )
    )


def describe_confidence(confidence: float) -> str:
    """Describes a confidence in words."""
    if not confidence > 0:
        return "not known"
    return next(word for least, word in _CONFIDENCE_WORDS if confidence >= least)


def describe_bottleneck(verdict: Verdict) -> str:
    """Names the bottleneck, with its share of the time and how certain it is."""
    if not verdict.is_known:
        return NOT_KNOWN
    confidence = describe_confidence(verdict.confidence)
    name = CAUSE_NAMES.get(verdict.bottleneck, verdict.bottleneck)
    return f"{name.capitalize()}, {verdict.share:.0%} of the time ({confidence})"


def sentences_over_time(samples: Sequence[TranslationSample]) -> list[SentenceOverTime]:
    """Groups samples by sentence, in the order of steps."""
    by_sentence: dict[tuple[str, str], list[TranslationSample]] = {}
    for sample in samples:
        by_sentence.setdefault((sample.source, sample.reference), []).append(sample)
    return [
        SentenceOverTime(source, reference, sorted(group, key=lambda sample: sample.step))
        for (source, reference), group in by_sentence.items()
    ]


def hover_data(charts: Sequence[Chart]) -> dict[str, Any]:
    """Returns the values of all charts by key, thinned and rounded to keep the page small."""
    num_series = sum(len(chart.series) for chart in charts)
    most_points = max(2, min(MOST_POINTS, _MOST_HOVER_POINTS // max(1, num_series)))
    return {chart.key: _chart_values(thin_chart(chart, most_points)) for chart in charts}


def _chart_values(chart: Chart) -> dict[str, Any]:
    return {
        "x_label": plain_text(chart.x_label),
        "series": [_series_values(series) for series in chart.series],
        "marks": [{"x": mark.x, "label": plain_text(mark.label)} for mark in chart.marks],
    }


def _series_values(series: Series) -> dict[str, Any]:
    values = {
        "name": plain_text(series.name),
        "look": series.look,
        "x": [_round(x, 7) for x in series.x],
        "y": [_round(y, 5) for y in series.y],
    }
    return values | ({"low": [_round(low, 5) for low in series.low]} if series.low else {})


def _round(value: float | None, num_digits: int) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{num_digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _with_unique_keys(report: Report | Comparison) -> tuple[list[Answer], list[ReportSection]]:
    """Renames charts that are shown twice: an id may occur only once on a page."""
    num_seen: dict[str, int] = {}

    def renamed(charts: Sequence[Chart]) -> Iterator[Chart]:
        for chart in charts:
            num_seen[chart.key] = num_seen.get(chart.key, 0) + 1
            number = num_seen[chart.key]
            yield chart if number == 1 else replace(chart, key=f"{chart.key}--{number}")

    answers = report.answers if isinstance(report, Report) else ()
    return (
        [replace(answer, charts=list(renamed(answer.charts))) for answer in answers],
        [replace(section, charts=list(renamed(section.charts))) for section in report.sections],
    )


def _dots(confidence: float) -> str:
    """Draws a confidence as a meter of characters, which prints and needs no colour."""
    least = 1 if confidence > 0 else 0
    num_full = max(least, math.floor(_NUM_DOTS * min(1.0, max(0.0, confidence)) + 0.5))
    return "●" * num_full + "○" * (_NUM_DOTS - num_full)


def _finalize(value: object) -> object:
    """Spells out control characters in all text of the page, before it is escaped."""
    return plain_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _script_json(value: object) -> Markup:
    """Returns compact JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 nothing of it can end the element


def _style() -> str:
    """Returns page.css with light-dark() replaced: browsers from before 2024 do not know it."""
    style = _own_file("page.css")
    dark = "".join(f"{name}:{colour};" for name, _, colour in _COLOUR.findall(style))
    # Paper is white, so dark colours are for screens only.
    return (
        _COLOUR.sub(r"\1: \2;", style)
        + f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{{dark}}} }}\n'
        + f'@media screen {{ :root[data-theme="dark"] {{{dark}}} }}\n'
    )


def _own_file(name: str) -> str:
    return files("dragoman.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dragoman.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "dots": _dots,
        "describe_bottleneck": describe_bottleneck,
        "describe_confidence": describe_confidence,
        "script_json": _script_json,
        "sentences_over_time": sentences_over_time,
    }
    return environment


def render_markdown(report: Report | Comparison) -> str:
    """Renders report.md: the content of the page without its charts."""
    blocks = [f"# {escape_text(report.title)}", escape_text(report.summary), *_overview(report)]
    if isinstance(report, Report):
        for number, answer in enumerate(report.answers, 1):
            blocks += _answer_blocks(number, answer)
    for section in report.sections:
        blocks += _section_blocks(section)
    blocks.append("The charts are in report.html.")
    return "\n\n".join(filter(None, blocks)) + "\n"


def escape_text(text: str) -> str:
    """Escapes text into one line that reads the same after Markdown has been rendered."""
    line = " ".join(plain_text(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(r"\\\g<0>", line)
    # Addresses become links even where their punctuation is escaped; an empty comment keeps them apart.
    line = _START_OF_LINK.sub("<!-- -->", line)
    return _START_OF_BLOCK.sub(lambda match: match[1] + "\\" if match[1].isdigit() else "\\" + match[1], line)


def _overview(report: Report | Comparison) -> Iterator[str]:
    if isinstance(report, Report) and report.figures:
        yield _grid(["figure", "value"], report.figures.items(), numeric_columns=(1,))
    if isinstance(report, Report) and report.verdict is not None:
        yield f"**What limited it:** {escape_text(describe_bottleneck(report.verdict))}"
        yield escape_text(report.verdict.why)
    if report.warnings:
        yield "**Warnings**"
        yield _list(report.warnings)


def _answer_blocks(number: int, answer: Answer) -> Iterator[str]:
    yield f"## {number}. {escape_text(answer.question)}"
    yield f"**Answer:** {escape_text(answer.answer)} ({describe_confidence(answer.confidence)})"
    yield _list(answer.evidence)
    yield from _table_blocks(answer.tables)
    if answer.missing:
        yield "What this run’s files do not show:"
        yield _list(answer.missing)


def _section_blocks(section: ReportSection) -> Iterator[str]:
    yield f"## {escape_text(section.title)}"
    yield from map(escape_text, section.messages)
    yield from _table_blocks(section.tables)
    yield from _sample_blocks(section.samples)
    yield _code(section.text)


def _table_blocks(tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        if table.title:
            yield f"**{escape_text(table.title)}**"
        yield _grid(table.columns, table.rows, table.numeric_columns)


def _sample_blocks(samples: Sequence[TranslationSample]) -> Iterator[str]:
    rows = [
        [f"{sample.step:,}{' (teacher-forced)' if sample.is_teacher_forced else ''}", *texts]
        for sentence in sentences_over_time(samples)
        for sample in sentence.samples
        for texts in [(sentence.source, sentence.reference, sample.translation)]
    ]
    if rows:
        yield _grid(["step", "source", "reference", "translation"], rows, numeric_columns=(0,))


def _grid(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric_columns: Sequence[int] = ()) -> str:
    rules = ["---:" if number in numeric_columns else "---" for number in range(len(columns))]
    lines = [_row(columns), f"| {' | '.join(rules)} |", *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape_text, cells))} |"


def _list(messages: Sequence[str]) -> str:
    return "\n".join(f"- {escape_text(message)}" for message in messages)


def _code(text: str) -> str:
    """Fences text with more backticks than it contains, so that it cannot close the fence."""
    if not text.strip():
        return ""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain_text(text).rstrip()}\n{fence}"
