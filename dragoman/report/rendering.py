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
from dragoman.report.charts import MOST_POINTS, NORMAL_SIZE, SMALL_SIZE, ChartSize, draw_chart, thin_chart
from dragoman.report.content import (
    Answer,
    Chart,
    Comparison,
    Report,
    ReportSection,
    ReportWarning,
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
NOT_KNOWN = "Not known."
_COLOUR = re.compile(r"(--[\w-]+): light-dark\((#\w+), (#\w+)\);")
_MARKUP = re.compile(r"[\\`*_{}\[\]#|~!$]")
_START_OF_BLOCK = re.compile(r"^([-+=]|\d+(?=[.)](?:\s|$)))")
_START_OF_LINK = re.compile(r"(?=://|@)|(?<=www)(?=\.)", re.IGNORECASE)
_END_OF_SENTENCE = re.compile(r"""(?<=[^.\s][^.\s][.!?])\s+(?=[^a-z\s])""")
"""A full stop after at least two characters, then something that does not begin with a small letter."""
_STATE_SIGNS = {"good": "✓", "neutral": "◐", "bad": "✗"}
_MOST_TILES_IN_A_ROW, _MEDIUM_COLUMNS = 5, 4
_STATE_COLUMNS = 2
"""Least width of the tile of the state, in columns of a wide page."""
_SMALLEST_SHARE = 0.005
_CONFIDENCE_WORDS = ((0.9, "certain"), (0.7, "quite sure"), (0.5, "likely"), (0.0, "a guess"))


@dataclass(frozen=True)
class SentenceOverTime:
    """Translations of one sentence at several steps."""

    source: str
    reference: str
    samples: Sequence[TranslationSample]


@dataclass(frozen=True)
class LivePart:
    """What keeps a page in a browser up to date."""

    strip: Markup
    """Element above the page: the state of the run now."""
    script: str


@dataclass(frozen=True)
class _Drawing:
    """A chart and its SVG."""

    chart: Chart
    svg: Markup


def render_page(report: Report | Comparison, live: LivePart | None = None) -> str:
    """Renders report.html, or a page that a server keeps up to date."""
    overview, answers, sections = _with_unique_keys(report)
    state = report.state if isinstance(report, Report) else None
    figures = report.figures if isinstance(report, Report) else {}
    size = SMALL_SIZE if len(overview.charts) > 1 else NORMAL_SIZE
    drawings = {chart.key: _draw(chart, size) for chart in overview.charts}
    blocks: list[Answer | ReportSection] = [*answers, *sections]
    drawings |= {chart.key: _draw(chart) for block in blocks for chart in block.charts}
    body = make_environment("dragoman.report").get_template("page.html.j2")
    markup = body.render(
        report=report,
        state=state,
        state_sign=_STATE_SIGNS[state.mood] if state else "",
        is_bad=state is not None and state.mood == "bad",
        figures=figures,
        tile_layout=_tile_layout(len(figures)),
        overview=overview,
        answers=answers,
        sections=sections,
        drawings={key: drawing for key, drawing in drawings.items() if drawing.svg},
        verdict=report.verdict if isinstance(report, Report) and _says_something(report) else None,
        warnings=[_folded(warning) for warning in report.warnings],
        num_warnings_shown=_NUM_WARNINGS_SHOWN,
        num_lines_shown=_NUM_LINES_SHOWN,
    )
    charts = [drawing.chart for drawing in drawings.values()]
    return render_frame(report.title, Markup(markup), charts, live)  # noqa: S704 the template escapes


def _says_something(report: Report) -> bool:
    """Whether to show what limited a run: one that made no step was limited by nothing."""
    return report.verdict is not None and (report.verdict.is_known or bool(report.overview))


def render_frame(
    title: str,
    body: Markup,
    charts: Sequence[Chart] = (),
    live: LivePart | None = None,
    own_scripts: Sequence[str] = (),
) -> str:
    """Renders a complete page around its content, with the style and the scripts that its policy allows."""
    # The live script comes first: it compares the page with newer ones before page.js has changed it.
    scripts = [*([live.script] if live else []), *own_scripts, _own_file("page.js")]
    frame = make_environment("dragoman.report").get_template("frame.html.j2")
    return frame.render(
        title=title,
        policy=Markup(content_policy(scripts, is_live=live is not None)),  # noqa: S704 ours
        style=Markup(_style()),  # noqa: S704 a file of this package
        body=body,
        hover=hover_data(charts),
        live=live,
        scripts=[Markup(script) for script in scripts],  # noqa: S704 files of this package
    )


def content_policy(scripts: Sequence[str], is_live: bool) -> str:
    """Returns the Content-Security-Policy of a page: it runs only these scripts and loads nothing."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rules = [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src {allowed}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    # A page on its own asks for nothing; a live one asks its server for newer figures.
    return "; ".join([*rules, "connect-src 'self'"] if is_live else rules)


def _draw(chart: Chart, size: ChartSize = NORMAL_SIZE) -> _Drawing:
    return _Drawing(chart, Markup(draw_chart(chart, size)))  # noqa: S704 ours, escaped


def _tile_layout(num_figures: int) -> str:
    """Returns the columns of the tiles, and how many the state takes, so that every row is full at every width."""
    num_rows = 1 if num_figures <= _MOST_TILES_IN_A_ROW else 2
    columns = -(-(num_figures + _STATE_COLUMNS) // num_rows)
    wide_span = num_rows * columns - num_figures
    medium_span = _MEDIUM_COLUMNS - num_figures % _MEDIUM_COLUMNS
    last_span = 1 + num_figures % 2
    return f"--columns: {columns}; --span: {wide_span}; --medium-span: {medium_span}; --last-span: {last_span}"


def first_sentence(text: str) -> str:
    """Returns the first sentence of a text."""
    return _split_sentence(text)[0]


def _split_sentence(text: str) -> tuple[str, str]:
    """Splits text after its first sentence; "e.g. this" and "1.5" end none."""
    match = _END_OF_SENTENCE.search(text)
    return (text[: match.start()], text[match.end() :]) if match else (text, "")


def _short_answer(answer: Answer) -> str:
    return answer.short or first_sentence(answer.answer)


def _folded(warning: ReportWarning) -> ReportWarning:
    """Moves what follows the first sentence of a message to its detail, which is folded."""
    message, rest = _split_sentence(warning.message)
    return replace(warning, message=message, detail=" ".join(filter(None, (rest, warning.detail))))


def describe_confidence(confidence: float) -> str:
    """Describes a confidence in words."""
    if not confidence > 0:
        return "not known"
    return next(word for least, word in _CONFIDENCE_WORDS if confidence >= least)


def describe_bottleneck(verdict: Verdict) -> str:
    """Names the bottleneck, with its share of the time and how certain it is."""
    if not verdict.is_known:
        return NOT_KNOWN
    name = CAUSE_NAMES.get(verdict.bottleneck, verdict.bottleneck)
    share = f", {verdict.share:.0%} of the time" if verdict.share >= _SMALLEST_SHARE else ""
    return f"{name.capitalize()}{share} ({describe_confidence(verdict.confidence)})"


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


def _with_unique_keys(report: Report | Comparison) -> tuple[ReportSection, list[Answer], list[ReportSection]]:
    """Renames charts that are shown twice: an id may occur only once on a page."""
    num_seen: dict[str, int] = {}

    def renamed(charts: Sequence[Chart]) -> Iterator[Chart]:
        for chart in charts:
            num_seen[chart.key] = num_seen.get(chart.key, 0) + 1
            number = num_seen[chart.key]
            yield chart if number == 1 else replace(chart, key=f"{chart.key}--{number}")

    answers, overview = (report.answers, report.overview) if isinstance(report, Report) else ((), ())
    return (
        ReportSection("", charts=list(renamed(overview))),
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
def make_environment(package: str) -> Environment:
    """Returns what renders the templates of a package; all values are escaped."""
    environment = Environment(
        loader=PackageLoader(package, ""),
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
        "first_sentence": first_sentence,
        "short_answer": _short_answer,
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
    if isinstance(report, Report):
        yield " ".join(
            filter(None, (f"**State:** {escape_text(report.state.text)}.", escape_text(report.state.detail)))
        )
    if isinstance(report, Report) and report.figures:
        yield _grid(["figure", "value"], report.figures.items(), numeric_columns=(1,))
    if isinstance(report, Report) and report.verdict is not None:
        yield f"**What limited it:** {escape_text(describe_bottleneck(report.verdict))}"
        yield escape_text(report.verdict.why)
    if report.warnings:
        yield "**Warnings**"
        yield _list([str(warning) for warning in report.warnings])


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
