"""What a report consists of, before it is drawn or written: answers with evidence, charts as data, tables."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def plain_text(text: str) -> str:
    """Text in which control characters and changes of direction are spelled out instead of obeyed."""
    text = text.replace("\r\n", "\n")
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


MAX_DEPTH = 20
"""Of tables and lists in report.json; what lies deeper is left out."""
Look = Literal["line", "points", "dashed", "band", "stack", "bars"]
"""How a series is drawn; a band has `low` beside `y`, which is its upper edge, and stacks are put on each other."""


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
    """A place on the x axis that something happened at."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """One picture, as data."""

    key: str
    """For files and links: letters, digits and dashes."""
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    is_x_log: bool = False
    is_y_log: bool = False
    y_from_zero: bool = False
    note: str = ""
    """How to read it, one sentence."""


@dataclass(frozen=True)
class Table:
    """Rows under headings; all cells are text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric_columns: Sequence[int] = ()


@dataclass(frozen=True)
class Answer:
    """One of the questions a run's owner asks."""

    question: str
    answer: str
    """One sentence."""
    evidence: Sequence[str] = ()
    confidence: float = 0.0
    """0 where nothing is known, 1 where it is certain."""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    missing: Sequence[str] = ()
    """What the files cannot tell, and what to measure next time."""

    def to_json(self) -> dict[str, Any]:
        """Without its pictures."""
        return {
            "question": self.question,
            "answer": self.answer,
            "evidence": list(self.evidence),
            "confidence": round(self.confidence, 2),
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class TranslationSample:
    """What the model said of a sentence at one step."""

    step: int
    source: str
    reference: str
    translation: str
    is_teacher_forced: bool = False


@dataclass(frozen=True)
class Section:
    """What follows the questions: charts, tables, samples or plain text under a heading."""

    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    samples: Sequence[TranslationSample] = ()
    text: str = ""
    """Shown as it is, e.g. a configuration file."""


@dataclass(frozen=True)
class Report:
    """All there is to say about one run."""

    title: str
    summary: str
    """One paragraph in plain words."""
    figures: dict[str, str]
    """The few that everybody asks for, by name, for the top of the page."""
    answers: Sequence[Answer]
    sections: Sequence[Section]
    warnings: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    """What report.json has besides: parameters, steps, seconds_per_step, last_evaluation, verdict and more."""

    def to_json(self) -> dict[str, Any]:
        """Everything that is not a picture."""
        found = {
            "title": self.title,
            "summary": self.summary,
            **self.facts,
            "answers": [answer.to_json() for answer in self.answers],
            "warnings": list(self.warnings),
        }
        return _plain_table(found)


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    title: str
    summary: str
    sections: Sequence[Section]
    warnings: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Everything that is not a picture."""
        found = {"title": self.title, "summary": self.summary, **self.facts, "warnings": list(self.warnings)}
        return _plain_table(found)


def _plain_table(values: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    return {_plain_text(str(key)): _plain(value, depth + 1) for key, value in values.items()}


def _plain(value: Any, depth: int) -> Any:
    """What strict JSON can hold: records of a run may have numbers that are none, half letters and endless nesting."""
    match value:
        case str():
            return _plain_text(value)
        case float():
            return value if math.isfinite(value) else None
        case dict() if depth < MAX_DEPTH:
            return _plain_table(value, depth)
        case list() | tuple() if depth < MAX_DEPTH:
            return [_plain(item, depth + 1) for item in value]
        case bool() | int() | None:
            return value
    return None


def _plain_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def printed(value: Any) -> str:
    """A value of a configuration, for people."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
