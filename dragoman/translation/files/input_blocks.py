"""Reads a file, a pipe or what somebody types as blocks of lines to translate."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO

from dragoman.corpus.formats.blocks import BadLines, Unreadable
from dragoman.corpus.formats.compression import DEFAULT_MAX_EXPANSION, ContentReader, note_nothing, read_open_file
from dragoman.corpus.formats.lines import LineReader
from dragoman.run.errors import UserError
from dragoman.run.input_files import open_input
from dragoman.translation.files.order import LineBlock
from dragoman.translation.files.records import RecordFormat
from dragoman.translation.notices import FirstNotices, Say

LINES_PER_BLOCK = 2_000
"""Enough for batches of similar length, few enough to see output soon."""
BLOCK_CHARACTERS = 4 * 2**20
"""A block of very long lines ends earlier, which bounds the memory."""
_PATIENCE_SECONDS = 0.1
"""Lines that have arrived are translated if a pipe brings nothing more for this long."""
_MAX_COUNTED_BYTES = 10**9
"""Lines of larger files are not counted before they are translated."""
STANDARD_INPUT = Path("-")
_STANDARD_INPUT_NAME = Path("standard input")
_INVITATION = "Type a sentence and press Enter; Ctrl-D ends."

_ReadLine = tuple[str, Unreadable | None]
"""The text of a line, and why it cannot be read, if so; its text is then empty."""


@dataclass(frozen=True)
class LineInput:
    """Where lines come from."""

    reader: LineReader
    has_more: Callable[[], bool]
    """Whether more has arrived, as it always has in a file."""
    is_typed: bool = False


def is_terminal_input(path: Path) -> bool:
    """Whether somebody types the lines."""
    return path == STANDARD_INPUT and sys.stdin is not None and sys.stdin.isatty()


class BlockReader:
    """Reads the lines of one input in blocks, and checks each: up to `max_bad_lines` bad ones become empty lines."""

    def __init__(self, source: LineInput, lines: RecordFormat, say: Say, max_bad_lines: int) -> None:
        self._source, self._lines, self._say = source, lines, say
        self._bad_lines = BadLines(sys.maxsize if source.is_typed else max_bad_lines)
        self._skipped = FirstNotices(say)
        self.num_lines = 0
        """Lines read so far."""

    def blocks(self, is_awaited: bool) -> Iterator[LineBlock]:
        """Yields all lines in order; a bad line that may not be skipped is an error after all lines before it.

        Where somebody waits for the translations, lines that have arrived do not wait for a full block. Otherwise the
        blocks depend on the lines alone.
        """
        for block in self._full_blocks(is_awaited):
            lines, error = self._before_error(block)
            if lines:
                yield LineBlock(self.num_lines + 1, tuple(lines))
            self.num_lines += len(lines)
            if error is not None:
                raise error

    def finish_notices(self) -> None:
        """Says what was noticed about the input."""
        if self._skipped.num_lines and not self._source.is_typed:
            self._say(f"Skipped lines: {self._skipped.num_lines:,}; each is an empty line of the output.")
        for notice in self._source.reader.notices():
            self._say(notice)

    def _full_blocks(self, is_awaited: bool) -> Iterator[list[_ReadLine]]:
        reader, held, num_characters = self._source.reader, list[_ReadLine](), 0
        error: UserError | None = None
        try:
            for chunk in reader.chunks():
                first_number = reader.num_lines - len(chunk.texts) + 1
                for number, text in enumerate(chunk.texts, first_number):
                    held.append((text, chunk.faults.get(number)))
                    num_characters += len(text)
                    if len(held) >= LINES_PER_BLOCK or num_characters >= BLOCK_CHARACTERS:
                        yield held
                        held, num_characters = [], 0
                if held and is_awaited and not self._source.has_more():
                    yield held
                    held, num_characters = [], 0
        except UserError as problem:  # the lines before it are translated first
            error = problem
        if held:
            yield held
        if error is not None:
            raise error

    def _before_error(self, block: list[_ReadLine]) -> tuple[list[str], UserError | None]:
        """Returns the lines before the first bad line that may not be skipped, and the error about that one."""
        texts: list[str] = []
        for text, fault in block:
            fault = fault or self._find_fault(text)
            if fault is not None:
                number = self.num_lines + len(texts) + 1
                try:
                    self._bad_lines.add(self._source.reader.path, number, fault.reason, fault.advice)
                except UserError as error:
                    return texts, error
                self._skipped.add(f"Skipped: {self._bad_lines.records[-1].message}")
            texts.append("" if fault else text)
        return texts, None

    def _find_fault(self, text: str) -> Unreadable | None:
        try:
            self._lines.parse(text)
        except Unreadable as fault:
            return fault
        return None


def count_lines(path: Path) -> int | None:
    """Counts the lines of a file, for the time left; None where that would take long, or where it is damaged."""
    if path == STANDARD_INPUT or not path.is_file() or path.stat().st_size > _MAX_COUNTED_BYTES:
        return None
    with suppress(UserError), open_input(path) as file:
        content = ContentReader(path, file, DEFAULT_MAX_EXPANSION, note_nothing)
        if not content.is_compressed:
            reader = LineReader(path, DEFAULT_MAX_EXPANSION, content=iter(content))
            return sum(len(lines.texts) for lines in reader.chunks())
    return None


# Where lines come from


def open_lines(path: Path, max_line_bytes: int) -> LineInput:
    """Opens a file, a pipe or standard input (`-`)."""
    is_standard = path == STANDARD_INPUT
    file = _open_standard_input() if is_standard else open_input(path)
    arrivals = select.poll()
    arrivals.register(file, select.POLLIN)
    name = _STANDARD_INPUT_NAME if is_standard else path
    content = read_open_file(name, file, DEFAULT_MAX_EXPANSION)
    reader = LineReader(name, DEFAULT_MAX_EXPANSION, max_line_bytes, content=content)
    return LineInput(reader, has_more=lambda: bool(arrivals.poll(1000 * _PATIENCE_SECONDS)))


def _open_standard_input() -> BufferedReader:
    if sys.stdin is None:
        raise UserError("Standard input is closed; name a file to translate.")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def open_terminal(output: IO[str] | None, max_line_bytes: int, say: Say) -> LineInput:
    """Invites a person to type; edits lines and remembers them where input and output are one terminal."""
    say(_INVITATION)
    if output is None or not output.isatty():
        plain = open_lines(STANDARD_INPUT, max_line_bytes)
        return LineInput(plain.reader, plain.has_more, is_typed=True)
    reader = LineReader(_STANDARD_INPUT_NAME, DEFAULT_MAX_EXPANSION, max_line_bytes, content=_typed_lines())
    return LineInput(reader, has_more=lambda: False, is_typed=True)


def _typed_lines() -> Iterator[bytes]:
    with suppress(ImportError):
        import readline  # noqa: F401 - input() then edits lines and remembers them
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # the reader says which bytes are wrong
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        yield line.encode("utf-8", "surrogateescape") + b"\n"
