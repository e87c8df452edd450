"""Lines of input files (plain text, TSV, JSON lines): what to translate in them, and how the result is written.

An empty line stays an empty line in every format.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, SAFE_CHARACTERS, Unreadable, check_sentence
from dragoman.corpus.formats.reading import format_of
from dragoman.corpus.formats.tsv_and_jsonl import MAX_RECORD_BYTES, load_object
from dragoman.run.errors import UsageError, UserError
from dragoman.translation.lines.word_alignment import format_alignment
from dragoman.translation.translator import SourceLine, Translation

LineFormat = Literal["text", "tsv", "jsonl"]
LINE_FORMATS: tuple[LineFormat, ...] = ("text", "tsv", "jsonl")
TRANSLATION_KEY, SCORE_KEY, ALIGNMENT_KEY, N_BEST_KEY = "translation", "score", "alignment", "n_best"
PREFIX_KEY, REQUIRE_KEY, FORBID_KEY = "prefix", "require", "forbid"


@dataclass(frozen=True)
class Columns:
    """What is written besides the translation."""

    with_scores: bool = False
    with_alignment: bool = False
    is_n_best: bool = False
    """Whether several translations of a line are written."""

    def of(self, translation: Translation) -> list[str]:
        """Returns the translation and what belongs to it, without tabs."""
        columns = [translation.text.replace("\t", " ")]
        columns += [f"{translation.score:.4f}"] * self.with_scores
        return columns + [format_alignment(translation.alignment or ())] * self.with_alignment


class RecordFormat(Protocol):
    """Reads and writes the lines of one format."""

    @property
    def max_line_bytes(self) -> int:
        """The most bytes of a line."""

    def parse(self, line: str) -> SourceLine:
        """Returns what to translate; an Unreadable says why there is nothing."""

    def render(self, line: str, number: int, translations: Sequence[Translation]) -> str:
        """Returns the lines of the output for a line of the input, without the last line end."""


@dataclass(frozen=True)
class PlainLines:
    """One sentence per line."""

    demands: SourceLine
    columns: Columns
    max_line_bytes: int = MAX_LINE_BYTES

    def parse(self, line: str) -> SourceLine:
        """Takes the whole line."""
        return _with_text(self.demands, line)

    def render(self, line: str, number: int, translations: Sequence[Translation]) -> str:
        """Writes one line, or for several translations each with the number of its line before it."""
        rows = [self.columns.of(translation) for translation in translations]
        if self.columns.is_n_best:
            return "\n".join("\t".join([str(number), *row]) for row in rows)
        return "\t".join(rows[0]) if line.strip() else ""


@dataclass(frozen=True)
class TsvLines:
    """One column of a TSV file; the others are kept."""

    demands: SourceLine
    columns: Columns
    column: int
    """Counted from 1."""
    max_line_bytes: int = MAX_RECORD_BYTES

    def parse(self, line: str) -> SourceLine:
        """Takes the text of the column."""
        fields = line.split("\t", self.column)
        if not line:
            return SourceLine("")
        if len(fields) < self.column:
            noun = "column" if len(fields) == 1 else "columns"
            raise Unreadable(
                f"has {len(fields)} {noun}, but column {self.column} is needed",
                "correct or delete it, or say with --column which one holds the text",
            )
        text = fields[self.column - 1]
        return _with_text(self.demands, check_sentence(text) if len(line) > SAFE_CHARACTERS else text)

    def render(self, line: str, _number: int, translations: Sequence[Translation]) -> str:
        """Adds the translation as new columns at the end; a line with several translations is repeated."""
        if not line:
            return ""
        return "\n".join("\t".join([line, *self.columns.of(translation)]) for translation in translations)


@dataclass(frozen=True)
class JsonLines:
    """One text of a JSON object per line."""

    demands: SourceLine
    columns: Columns
    field: str
    max_line_bytes: int = MAX_RECORD_BYTES

    def parse(self, line: str) -> SourceLine:
        """Takes the text of the field, and what the object itself demands of its translation."""
        if not line or line.isspace():
            return SourceLine("")
        record = load_object(line)
        if self.field not in record:
            raise Unreadable(f'has no "{self.field}"', "correct or delete it, or name the key of the text with --field")
        if taken := next((key for key in self._added_keys if key in record), None):
            raise Unreadable(f'already has a "{taken}", which would be lost', "rename that key")
        prefix = _text(record, PREFIX_KEY) if PREFIX_KEY in record else self.demands.prefix
        return SourceLine(
            normalise(_text(record, self.field)),
            normalise(prefix),
            self.demands.required + _words(record, REQUIRE_KEY),
            self.demands.forbidden + _words(record, FORBID_KEY),
        )

    def render(self, line: str, _number: int, translations: Sequence[Translation]) -> str:
        """Adds the translation at the end of the object, whose own text stays: reading could change its numbers."""
        if not line or line.isspace():
            return ""
        added: dict[str, Any] = self._of(translations[0])
        if self.columns.is_n_best:
            added[N_BEST_KEY] = [self._of(translation) for translation in translations]
        own = line.rstrip().removesuffix("}").rstrip()
        return f"{own}, {json.dumps(added, ensure_ascii=False)[1:]}"

    @property
    def _added_keys(self) -> list[str]:
        """The keys that the output has and the input must not have."""
        columns = self.columns
        keys = [TRANSLATION_KEY] + [SCORE_KEY] * columns.with_scores + [ALIGNMENT_KEY] * columns.with_alignment
        return keys + [N_BEST_KEY] * columns.is_n_best

    def _of(self, translation: Translation) -> dict[str, Any]:
        values: dict[str, Any] = {TRANSLATION_KEY: translation.text}
        if self.columns.with_scores:
            values[SCORE_KEY] = round(translation.score, 4)
        if self.columns.with_alignment:
            values[ALIGNMENT_KEY] = format_alignment(translation.alignment or ())
        return values


def _with_text(demands: SourceLine, text: str) -> SourceLine:
    return SourceLine(normalise(text), demands.prefix, demands.required, demands.forbidden)


def _text(record: dict[str, Any], key: str) -> str:
    text = record[key]
    if not isinstance(text, str):
        raise Unreadable(f'has no text in "{key}"')
    return check_sentence(text)


def _words(record: dict[str, Any], key: str) -> tuple[str, ...]:
    """Reads a word or a list of words."""
    value = record.get(key, [])
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
        raise Unreadable(f'has no words in "{key}"; it must be a word or a list of words')
    return tuple(normalise(check_sentence(word)) for word in words)


def choose_format(path: Path, given: str | None, column: int | None, field: str | None) -> LineFormat:
    """Chooses the format of a file: the one given, the one an option belongs to, or the one its name shows."""
    if given is not None and given not in LINE_FORMATS:
        raise UsageError(f"--format must be {', '.join(LINE_FORMATS[:-1])} or {LINE_FORMATS[-1]}, not {given!r}.")
    if column is not None and field is not None:
        raise UsageError("--column belongs to TSV and --field to JSON lines; give one of them.")
    implied: LineFormat | None = "tsv" if column is not None else "jsonl" if field is not None else None
    if given is not None and implied not in (None, given):
        flag = "--column" if implied == "tsv" else "--field"
        raise UsageError(f"{flag} belongs to --format {implied}, not to {given}.")
    if given is not None:
        return next(each for each in LINE_FORMATS if each == given)
    return implied or _format_by_name(path)


def _format_by_name(path: Path) -> LineFormat:
    try:
        found = format_of(path)
    except UserError:  # an ending that says nothing
        return "text"
    if found not in ("tsv", "jsonl"):
        raise UsageError(
            f"{path} looks like {found}, which `translate` does not read; give plain text, TSV or JSON lines."
        )
    return "tsv" if found == "tsv" else "jsonl"
