"""Reads TMX, the exchange format of translation memories: units in XML, read as a stream, not as a tree.

Malformed XML ends the reading, because what follows cannot be trusted; a unit that lacks a language is a bad line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, Block, Reading, Unreadable, check_sentence
from dragoman.corpus.formats.compression import read_content
from dragoman.corpus.formats.tsv_and_jsonl import (
    Languages,
    ask_for_languages,
    assumed_languages,
    find_language,
    primary_subtag,
)
from dragoman.run.errors import UserError

# These elements hold code of the format the text came from; <sub> is text inside such code.
_NATIVE_CODE = frozenset({"bpt", "ept", "ph", "it", "ut", "sub"})
_ALL_LANGUAGES = "*all*"
# Expat keeps a tag or comment in memory until its end, and all open elements; real TMX is far below these limits.
_MAX_MARKUP_BYTES = 8 * 2**20
_MAX_DEPTH = 100


class _Segment:
    """The text of a <seg>, kept only up to the length where it is known to be too long."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._num_characters = 0

    def append(self, text: str) -> None:
        if self._num_characters <= MAX_LINE_BYTES:
            self._parts.append(text[: MAX_LINE_BYTES + 1])
            self._num_characters += len(text)

    @property
    def text(self) -> str:
        if self._num_characters > MAX_LINE_BYTES:
            raise Unreadable(f"has a segment of more than {MAX_LINE_BYTES:,} bytes, the limit for a sentence")
        return check_sentence("".join(self._parts))


@dataclass
class _Unit:
    """A <tu> that is being read."""

    number: int
    line: int
    segments: dict[str, _Segment] = field(default_factory=dict)
    """Segments by language, as the file spells it."""
    skipped_entity: str | None = None


class TmxReader:
    """Reads the units of a TMX file."""

    what = "unit"

    def __init__(self, path: Path, languages: Languages | None, reading: Reading) -> None:
        self._path, self._languages, self._reading = path, languages, reading
        self._notices: list[str] = []
        self._header_language: str | None = None
        self._num_units = 0
        """Units that were read completely."""
        self._unit: _Unit | None = None
        self._language: str | None = None
        self._segment: _Segment | None = None
        self._depth = 0
        self._native_depth: int | None = None
        self._finished = [Block(1, [], [])]
        self._parser = self._build_parser()

    def runs(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad unit between them."""
        num_fed_bytes = 0
        for content in read_content(self._path, self._reading.max_expansion, self._reading.note_bytes):
            self._feed(content)
            num_fed_bytes += len(content)
            if num_fed_bytes - self._parser.CurrentByteIndex > _MAX_MARKUP_BYTES:
                raise self._refuse(f"has a tag or comment of more than {_MAX_MARKUP_BYTES // 2**20} MiB")
            yield from self._take_finished()
        self._feed(b"", is_end=True)
        yield from self._take_finished()
        if self._num_units == 0:
            raise UserError(f"{self._path} is empty: it has no translation unit (<tu>).")

    def notices(self) -> list[str]:
        """Returns messages about the file for the user."""
        return self._notices

    def _build_parser(self) -> expat.XMLParserType:
        """Returns a parser that loads no other files: without a handler, expat skips external entities."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start_element
        parser.EndElementHandler = self._end_element
        parser.CharacterDataHandler = self._add_text
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._note_skipped_entity
        return parser

    def _feed(self, content: bytes, is_end: bool = False) -> None:
        try:
            self._parser.Parse(content, is_end)
        except expat.ExpatError as problem:
            message = expat.ErrorString(problem.code)
            raise UserError(
                f"{self._path}, line {problem.lineno:,}, column {problem.offset + 1:,} is not well-formed XML "
                f"({message}); correct the file or create it again."
            ) from None

    def _take_finished(self) -> Iterator[Block]:
        yield from self._finished
        self._finished = [Block(self._num_units + 1, [], [])]

    def _refuse(self, reason: str) -> UserError:
        return UserError(f"{self._path}, line {self._parser.CurrentLineNumber:,} {reason}; the file is refused.")

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise self._refuse(f'declares the entity "{name}", which can be used to fill the memory')

    def _note_skipped_entity(self, name: str, _is_parameter: bool) -> None:
        if self._unit is not None:
            self._unit.skipped_entity = name

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._refuse(f"opens more than {_MAX_DEPTH} elements inside each other")
        if self._segment is not None:
            if self._native_depth is None and name in _NATIVE_CODE:
                self._native_depth = self._depth
        elif name == "seg":
            self._start_segment()
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang")
        elif name == "tu":
            self._unit = _Unit(self._num_units + 1, self._parser.CurrentLineNumber)
        elif name == "header":
            self._header_language = attributes.get("srclang")

    def _start_segment(self) -> None:
        self._segment = _Segment()
        if self._unit is None or self._language is None or not self._is_wanted(self._language):
            return
        self._unit.segments.setdefault(self._language, self._segment)
        if self._languages is None and len(self._unit.segments) > 2:
            raise ask_for_languages(self._path, list(self._unit.segments))

    def _is_wanted(self, name: str) -> bool:
        return self._languages is None or primary_subtag(name) in map(primary_subtag, self._languages)

    def _add_text(self, text: str) -> None:
        if self._segment is not None and self._native_depth is None:
            self._segment.append(text)

    def _end_element(self, name: str) -> None:
        if self._depth == self._native_depth:
            self._native_depth = None
        self._depth -= 1
        match name:
            case "seg":
                self._segment = None
            case "tuv":
                self._language = None
            case "tu" if self._unit is not None:
                self._num_units += 1
                self._finish_unit(self._unit)
                self._unit = None

    def _finish_unit(self, unit: _Unit) -> None:
        try:
            source, target = self._pair(unit)
        except Unreadable as fault:
            reason = f"{fault.reason} (line {unit.line:,})"
            self._reading.add_bad_line(self._path, unit.number, Unreadable(reason, fault.advice))
            self._finished.append(Block(unit.number + 1, [], []))
        else:
            self._finished[-1].sources.append(source)
            self._finished[-1].targets.append(target)

    def _pair(self, unit: _Unit) -> tuple[str, str]:
        if unit.skipped_entity is not None:
            raise Unreadable(f'uses the entity "{unit.skipped_entity}", which the file does not declare')
        if self._languages is None:
            self._languages = self._languages_of(unit)
            self._notices.append(assumed_languages(self._path, self._languages))
        source, target = (self._segment_in(unit, language) for language in self._languages)
        return source.text, target.text

    def _segment_in(self, unit: _Unit, language: str) -> _Segment:
        name = find_language(language, unit.segments)
        if name is None:
            raise Unreadable(f"has no {language}")
        return unit.segments[name]

    def _languages_of(self, unit: _Unit) -> Languages:
        """Returns the source language of the header, or else the first one, and the other language of the unit."""
        names = list(unit.segments)
        if self._header_language in (None, _ALL_LANGUAGES):
            source = names[0] if names else None
        else:
            source = find_language(self._header_language, names)
        others = [name for name in names if name != source]
        if source is None:
            raise Unreadable(f"has no {self._header_language or 'text in any language'}")
        if not others:
            raise Unreadable(f"has no other language than {source}")
        return source, others[0]
