"""Content of a report before it is rendered: answers with evidence, charts as data, tables."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.diagnosis.verdict import Verdict

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
MAX_DEPTH = 20
"""Deepest nesting in report.json; deeper values are left out."""

Look = Literal["line", "points", "dashed", "band", "stack"]
"""Style of a series; a band reaches from `low` up to `y`, and stacks are drawn on top of each other."""


@dataclass(frozen=True)
class Series:
    """Values along an axis."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    look: Look = "line"
    low: Sequence[float] = ()


@dataclass(frozen=True)
class Mark:
    """An event at a place on the x axis."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """One chart, as data."""

    key: str
    """Name for files and links: letters, digits and dashes."""
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    is_x_log: bool = False
    is_y_log: bool = False
    y_from_zero: bool = False
    note: str = ""
    """Explanation for the reader, in one message."""


@dataclass(frozen=True)
class Table:
    """Rows under headings; all cells are text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric_columns: Sequence[int] = ()


@dataclass(frozen=True)
class Answer:
    """A question about the run and its answer."""

    question: str
    answer: str
    """The answer in one or two messages."""
    evidence: Sequence[str] = ()
    confidence: float = 0.0
    """0 where nothing is known, 1 where the answer is certain."""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    missing: Sequence[str] = ()
    """Information that the files lack, and what to measure next time."""
    short: str = ""
    """The answer in a few words, for the first screen: "57.4 hours", "No", "Probably", "Not known"."""

    def to_json(self) -> dict[str, Any]:
        """Returns everything except charts and tables."""
        return {
            "question": self.question,
            "answer": self.answer,
            "short": self.short or self.answer,
            "evidence": list(self.evidence),
            "confidence": round(self.confidence, 2),
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class TranslationSample:
    """Translation of one sentence at one step."""

    step: int
    source: str
    reference: str
    translation: str
    is_teacher_forced: bool = False


@dataclass(frozen=True)
class ReportSection:
    """Charts, tables, samples or plain text under a heading, after the answers."""

    title: str
    messages: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    samples: Sequence[TranslationSample] = ()
    text: str = ""
    """Shown unchanged, e.g. a configuration file."""


Mood = Literal["good", "neutral", "bad"]


@dataclass(frozen=True)
class RunState:
    """How a run ended, in a few words: "Finished", "Stopped at 15%", "NaN since step 1,200", "Out of GPU memory"."""

    text: str
    mood: Mood = "neutral"
    detail: str = ""
    """Message that explains it: steps done of steps planned, what to do."""


@dataclass(frozen=True)
class ReportWarning:
    """Something the reader must know."""

    message: str
    """One line."""
    detail: str = ""
    """Cause and what to do."""
    log_line: str = ""
    """The line of the log that shows it."""

    def __str__(self) -> str:
        line = f'Log line: "{self.log_line}"' if self.log_line else ""
        return " ".join(filter(None, (self.message, self.detail, line)))


@dataclass(frozen=True)
class Report:
    """Everything a report says about one run."""

    title: str
    summary: str
    """One paragraph in plain words."""
    state: RunState
    figures: dict[str, str]
    """The most important figures, by name, for the top of the page."""
    answers: Sequence[Answer]
    sections: Sequence[ReportSection]
    warnings: Sequence[ReportWarning]
    verdict: Verdict | None = None
    overview: Sequence[Chart] = ()
    """The learning curve, for the first screen."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further keys of report.json: parameters, steps, seconds_per_step, last_evaluation, verdict and more."""

    def to_json(self) -> dict[str, Any]:
        """Returns the content of report.json."""
        found = {
            "title": self.title,
            "summary": self.summary,
            **self.facts,
            "answers": [answer.to_json() for answer in self.answers],
            "warnings": [str(warning) for warning in self.warnings],
        }
        return _strict_table(found)


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    title: str
    summary: str
    sections: Sequence[ReportSection]
    warnings: Sequence[ReportWarning]
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of report.json."""
        found = {"title": self.title, "summary": self.summary, **self.facts}
        found["warnings"] = [str(warning) for warning in self.warnings]
        return _strict_table(found)


def plain_text(text: str) -> str:
    """Spells out control characters and changes of writing direction, so that a page does not obey them."""
    text = text.replace("\r\n", "\n")
    return _CONTROL_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def format_value(value: Any) -> str:
    """Formats a value of a configuration."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _strict_table(values: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    return {_encodable(str(key)): _strict_value(value, depth + 1) for key, value in values.items()}


def _strict_value(value: Any, depth: int) -> Any:
    """Returns what strict JSON can hold: no NaN, no lone surrogates, no endless nesting."""
    match value:
        case str():
            return _encodable(value)
        case float():
            return value if math.isfinite(value) else None
        case dict() if depth < MAX_DEPTH:
            return _strict_table(value, depth)
        case list() | tuple() if depth < MAX_DEPTH:
            return [_strict_value(item, depth + 1) for item in value]
        case bool() | int() | None:
            return value
    return None


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
