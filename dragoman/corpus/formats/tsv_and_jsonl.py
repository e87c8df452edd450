"""Reads formats with one pair per line: TSV and JSON lines."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from dragoman.corpus.formats.blocks import (
    MAX_LINE_BYTES,
    SAFE_CHARACTERS,
    AddBadLine,
    Block,
    Reading,
    Unreadable,
    check_sentence,
)
from dragoman.corpus.formats.lines import LineReader, Lines
from dragoman.run.errors import UserError

Languages = tuple[str, str]
"""Source and target language."""


@lru_cache
def primary_subtag(name: str) -> str:
    """Returns the language without country or script: "en" for "en-US"."""
    return re.split("[-_]", name, maxsplit=1)[0].lower()


def find_language(language: str, names: Collection[str]) -> str | None:
    """Finds the name of a language: the same spelling, else another case, else the same primary subtag."""
    if language in names:
        return language
    same_letters = (name for name in names if name.lower() == language.lower())
    same_language = (name for name in names if primary_subtag(name) == primary_subtag(language))
    return next(same_letters, None) or next(same_language, None)


def ask_for_languages(path: Path, names: Sequence[str]) -> UserError:
    """Returns the error for a file that does not say which two of its languages to use."""
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "none"
    return UserError(
        f"{path} does not say which of its languages ({listed}) is the source and which the target; "
        'set languages, for instance languages = "en-de".'
    )


def assumed_languages(path: Path, languages: Languages) -> str:
    """Returns the message about languages that the user did not give."""
    return f"{path}: languages are not set, so {languages[0]} is used as the source and {languages[1]} as the target."


MAX_RECORD_BYTES = 16 * MAX_LINE_BYTES
"""Enough for two sentences written with escapes (six bytes per letter), and for other columns or keys."""

Parse = Callable[[str], tuple[str, str] | None]
"""Returns the pair of a line, or None to skip the line; raises Unreadable."""
ParseAll = Callable[[list[str]], tuple[list[str], list[str]] | None]
"""Returns the sources and targets of all lines, or None if they must be parsed one by one; the fast path."""


def _open_records(path: Path, reading: Reading) -> LineReader:
    """Returns a reader for a file of records."""
    return LineReader(path, reading.max_expansion, MAX_RECORD_BYTES, reading.note_bytes)


def read_records(
    reader: LineReader, parse: Parse, add_bad_line: AddBadLine, parse_all: ParseAll = lambda _: None
) -> Iterator[Block]:
    """Yields runs of pairs without a bad or skipped line between them."""
    first_number = 1
    for lines in reader.chunks():
        if not lines.faults and (sides := parse_all(lines.texts)):
            yield Block(first_number, *sides)
        else:
            yield from _read_one_by_one(lines, first_number, parse, partial(add_bad_line, reader.path))
        first_number += len(lines.texts)


def _read_one_by_one(
    lines: Lines, first_number: int, parse: Parse, add_bad_line: Callable[[int, Unreadable], None]
) -> Iterator[Block]:
    run = Block(first_number, [], [])
    for number, text in enumerate(lines.texts, first_number):
        try:
            if lines.faults and number in lines.faults:
                raise lines.faults[number]
            pair = parse(text)
        except Unreadable as fault:
            add_bad_line(number, fault)
            pair = None
        if pair is None:
            yield run
            run = Block(number + 1, [], [])
        else:
            run.sources.append(pair[0])
            run.targets.append(pair[1])
    yield run


class TsvReader:
    """Reads two columns of a TSV file."""

    what = "line"

    def __init__(self, path: Path, columns: tuple[int, int], reading: Reading) -> None:
        self._lines = _open_records(path, reading)
        self._columns = columns
        self._source_index, self._target_index = columns[0] - 1, columns[1] - 1
        # Columns after the last one that is needed are not split.
        self._max_splits = max(columns)
        self._add_bad_line = reading.add_bad_line

    def runs(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad line between them."""
        return read_records(self._lines, self._parse, self._add_bad_line, self._parse_all)

    def notices(self) -> list[str]:
        """Returns messages about the file for the user."""
        return self._lines.notices()

    def _parse_all(self, lines: list[str]) -> tuple[list[str], list[str]] | None:
        if max(map(len, lines), default=0) > SAFE_CHARACTERS:
            return None
        source_index, target_index, max_splits = self._source_index, self._target_index, self._max_splits
        sources, targets = [], []
        try:
            for line in lines:
                fields = line.split("\t", max_splits)
                sources.append(fields[source_index])
                targets.append(fields[target_index])
        except IndexError:
            return None
        return sources, targets

    def _parse(self, line: str) -> tuple[str, str]:
        fields = line.split("\t", self._max_splits)
        try:
            source, target = fields[self._source_index], fields[self._target_index]
        except IndexError:
            raise self._too_few(len(fields)) from None
        if len(line) > SAFE_CHARACTERS:
            check_sentence(source)
            check_sentence(target)
        return source, target

    def _too_few(self, num_columns: int) -> Unreadable:
        noun = "column" if num_columns == 1 else "columns"
        return Unreadable(
            f"has {num_columns} {noun}, but columns {self._columns[0]} and {self._columns[1]} are needed",
            "correct or delete it, or say which columns hold the text",
        )


SIDE_KEYS = (("source", "target"), ("src", "tgt"))
TRANSLATION_KEY = "translation"


class JsonlReader:
    """Reads the pairs of a file of JSON lines."""

    what = "line"

    def __init__(self, path: Path, languages: Languages | None, reading: Reading) -> None:
        self._lines = _open_records(path, reading)
        self._languages = languages
        self._add_bad_line = reading.add_bad_line
        self._notices: list[str] = []

    def runs(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad or blank line between them."""
        return read_records(self._lines, self._parse, self._add_bad_line)

    def notices(self) -> list[str]:
        """Returns messages about the file for the user."""
        return self._lines.notices() + self._notices

    def _parse(self, line: str) -> tuple[str, str] | None:
        if not line or line.isspace():
            return None
        source, target = self._sides(load_object(line))
        # Without escapes the text has been checked with its line.
        if "\\" in line or len(line) > SAFE_CHARACTERS:
            return check_sentence(source), check_sentence(target)
        return source, target

    def _sides(self, record: dict[str, Any]) -> tuple[str, str]:
        for source_key, target_key in SIDE_KEYS:
            if source_key in record and target_key in record:
                return _text(record, source_key), _text(record, target_key)
        translation = record.get(TRANSLATION_KEY)
        if not isinstance(translation, dict):
            raise Unreadable('has neither "source" and "target", nor "src" and "tgt", nor "translation" with two texts')
        if self._languages is None:
            self._languages = self._languages_of(translation)
        source, target = self._languages
        return _text_in(translation, source), _text_in(translation, target)

    def _languages_of(self, translation: dict[str, Any]) -> Languages:
        """Returns the languages of the first record, if there are exactly two."""
        match list(translation):
            case [source, target]:
                self._notices.append(assumed_languages(self._lines.path, (source, target)))
                return source, target
            case names:
                raise ask_for_languages(self._lines.path, names)


def load_object(line: str) -> dict[str, Any]:
    """Reads a JSON object; says what is wrong with the line otherwise."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as problem:
        raise Unreadable(f"is not valid JSON: {problem.msg} at character {problem.colno}") from None
    except ValueError as problem:  # a number too long to convert
        raise Unreadable(f"is not valid JSON: {problem}") from None
    except RecursionError:
        raise Unreadable("is JSON that is nested too deeply") from None
    if not isinstance(record, dict):
        raise Unreadable("is JSON, but not an object in braces")
    return record


def _text(record: dict[str, Any], key: str) -> str:
    text = record[key]
    if not isinstance(text, str):
        raise Unreadable(f'has no text in "{key}"')
    return text


def _text_in(translation: dict[str, Any], language: str) -> str:
    key = language if language in translation else find_language(language, translation)
    if key is None:
        raise Unreadable(f'has no "{language}" in its "{TRANSLATION_KEY}"')
    return _text(translation, key)
