"""Formats with one record a line: TSV and JSON lines share how lines become pairs, and differ in one function."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dragoman.corpus.formats.bad_lines import AddBadLine, Unreadable
from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, Block
from dragoman.corpus.formats.compression import NoteBytes
from dragoman.corpus.formats.lines import LineReader, Lines

MAX_RECORD_BYTES = 16 * MAX_LINE_BYTES
"""Room for two sentences written with escapes (six bytes for a letter), and for other columns or keys."""

Parse = Callable[[str], tuple[str, str] | None]
"""The pair of a line, or None if the line is to be passed over; raises Unreadable."""
ParseAll = Callable[[list[str]], tuple[list[str], list[str]] | None]
"""The fast way: the sources and targets of all lines, or None if they must be looked at one by one."""


def open_records(path: Path, max_expansion: int, note_bytes: NoteBytes) -> LineReader:
    """A reader for a file of records."""
    return LineReader(path, max_expansion, MAX_RECORD_BYTES, note_bytes)


def read_records(
    reader: LineReader, parse: Parse, add_bad_line: AddBadLine, parse_all: ParseAll = lambda _: None
) -> Iterator[Block]:
    """Yields runs of pairs without a bad or passed-over line between them."""
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
    piece = Block(first_number, [], [])
    for number, text in enumerate(lines.texts, first_number):
        try:
            if lines.faults and number in lines.faults:
                raise lines.faults[number]
            pair = parse(text)
        except Unreadable as fault:
            add_bad_line(number, fault)
            pair = None
        if pair is None:
            yield piece
            piece = Block(number + 1, [], [])
        else:
            piece.sources.append(pair[0])
            piece.targets.append(pair[1])
    yield piece
