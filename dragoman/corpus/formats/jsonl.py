"""JSON lines: an object a line, as {"source", "target"}, {"src", "tgt"} or {"translation": {language: text}}."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.corpus.formats.bad_lines import AddBadLine, Unreadable
from dragoman.corpus.formats.blocks import Block
from dragoman.corpus.formats.compression import NoteBytes
from dragoman.corpus.formats.languages import Languages, ask_for_languages, find_language, tell_languages
from dragoman.corpus.formats.records import open_records, read_records
from dragoman.corpus.formats.sentences import SAFE_CHARACTERS, check_sentence

SIDE_KEYS = (("source", "target"), ("src", "tgt"))
TRANSLATION_KEY = "translation"


class JsonlReader:
    """Reads the pairs of a file of JSON lines."""

    what = "line"

    def __init__(
        self,
        path: Path,
        languages: Languages | None,
        max_expansion: int,
        add_bad_line: AddBadLine,
        note_bytes: NoteBytes,
    ) -> None:
        self._lines = open_records(path, max_expansion, note_bytes)
        self._languages = languages
        self._add_bad_line = add_bad_line
        self._notices: list[str] = []

    def pieces(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad or blank line between them."""
        return read_records(self._lines, self._parse, self._add_bad_line)

    def notices(self) -> list[str]:
        """What the user should know about the file, one sentence each."""
        return self._lines.notices() + self._notices

    def _parse(self, line: str) -> tuple[str, str] | None:
        if not line or line.isspace():
            return None
        source, target = self._sides(_load_object(line))
        # Without escapes the text is as sound as its line.
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
        """The languages of the first record, if there are but two."""
        match list(translation):
            case [source, target]:
                self._notices.append(tell_languages(self._lines.path, (source, target)))
                return source, target
            case names:
                raise ask_for_languages(self._lines.path, names)


def _load_object(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as problem:
        raise Unreadable(f"is not valid JSON: {problem.msg} at character {problem.colno}") from None
    except ValueError as problem:  # a number too long to convert
        raise Unreadable(f"is not valid JSON: {problem}") from None
    except RecursionError:
        raise Unreadable("is JSON nested too deep to be read") from None
    if not isinstance(record, dict):
        raise Unreadable("is JSON, but no object in braces")
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
