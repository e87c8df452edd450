"""The report as one self-contained page: report.html opens offline, prints well and cannot be commanded by its text."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dragoman.report.charts import MOST_POINTS, draw_chart, thin_chart
from dragoman.report.parts import Answer, Chart, Comparison, Report, Section, Series, TranslationSample, plain_text

MOST_HOVER_POINTS = 50_000
"""Of all charts together: a point takes about 16 bytes, and hovering must cost less than 1 MB."""
NUM_DOTS = 5
NUM_WARNINGS_SHOWN = 3
NUM_LINES_SHOWN = 12
"""Longer text is folded."""
_COLOUR = re.compile(r"(--[\w-]+): light-dark\((#\w+), (#\w+)\);")
SURENESS = ((0.9, "certain"), (0.7, "quite sure"), (0.5, "likely"), (0.0, "a guess"))


@dataclass(frozen=True)
class Verdict:
    """What held the run back, in words."""

    bottleneck: str
    share: str
    sureness: str
    why: str


@dataclass(frozen=True)
class SentenceOverTime:
    """How the translation of one sentence changed."""

    source: str
    reference: str
    samples: Sequence[TranslationSample]


@dataclass(frozen=True)
class _Drawing:
    """A chart with its picture."""

    chart: Chart
    svg: Markup


def render_page(report: Report | Comparison) -> str:
    """The whole page as text."""
    answers, sections = _with_unique_keys(report)
    parts: list[Answer | Section] = [*answers, *sections]
    all_charts = [chart for part in parts for chart in part.charts]
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
            verdict=read_verdict(report.facts),
            style=Markup(_style()),  # noqa: S704 a file of this package
            script=Markup(script),  # noqa: S704 a file of this package
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            num_warnings_shown=NUM_WARNINGS_SHOWN,
            num_lines_shown=NUM_LINES_SHOWN,
        )
    )


def how_sure(confidence: float) -> str:
    """A confidence in words."""
    if not confidence > 0:
        return "not known"
    return next(word for least, word in SURENESS if confidence >= least)


def read_verdict(facts: Mapping[str, Any]) -> Verdict | None:
    """The verdict of a report's facts, where there is one."""
    verdict = facts.get("verdict")
    if not isinstance(verdict, Mapping) or not verdict.get("bottleneck"):
        return None
    share, confidence = verdict.get("share"), verdict.get("confidence")
    return Verdict(
        str(verdict["bottleneck"])[:1].upper() + str(verdict["bottleneck"])[1:],
        f"{share:.0%} of the time" if isinstance(share, int | float) and math.isfinite(share) else "",
        how_sure(confidence) if isinstance(confidence, int | float) else "",
        str(verdict.get("why") or ""),
    )


def sentences_over_time(samples: Sequence[TranslationSample]) -> list[SentenceOverTime]:
    """Samples of one sentence together, in the order of steps."""
    by_sentence: dict[tuple[str, str], list[TranslationSample]] = {}
    for sample in samples:
        by_sentence.setdefault((sample.source, sample.reference), []).append(sample)
    return [
        SentenceOverTime(source, reference, sorted(group, key=lambda sample: sample.step))
        for (source, reference), group in by_sentence.items()
    ]


def hover_data(charts: Sequence[Chart]) -> dict[str, Any]:
    """The values of all charts by key, few enough and short enough to be carried along."""
    num_series = sum(len(chart.series) for chart in charts)
    most_points = max(2, min(MOST_POINTS, MOST_HOVER_POINTS // max(1, num_series)))
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


def _with_unique_keys(report: Report | Comparison) -> tuple[list[Answer], list[Section]]:
    """The same chart may be shown twice, but an id stands once on a page."""
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
    """A meter of letters: it prints, and needs no colour."""
    least = 1 if confidence > 0 else 0
    num_full = max(least, math.floor(NUM_DOTS * min(1.0, max(0.0, confidence)) + 0.5))
    return "●" * num_full + "○" * (NUM_DOTS - num_full)


def _finalize(value: object) -> object:
    """Whatever text is put on the page loses its control characters; escaping comes after."""
    return plain_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _script_json(value: object) -> Markup:
    """JSON that may stand inside a script element, compact."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 nothing of it can end the element


def _style() -> str:
    """page.css with its colours for light and dark spelled out: browsers of before 2024 do not know light-dark()."""
    style = _own_file("page.css")
    dark = "".join(f"{name}:{colour};" for name, _, colour in _COLOUR.findall(style))
    # Paper is white: on it the dark colours hold for nobody.
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
        "how_sure": how_sure,
        "script_json": _script_json,
        "sentences_over_time": sentences_over_time,
    }
    return environment
