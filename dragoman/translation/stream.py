"""Translates a file, a pipe or what somebody types: line N of the output belongs to line N of the input."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TextIO

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.blocks import BadLines, Unreadable
from dragoman.corpus.formats.compression import DEFAULT_MAX_EXPANSION, ContentReader, note_nothing, read_open_file
from dragoman.corpus.formats.lines import LineReader
from dragoman.run.errors import UserError
from dragoman.run.input_files import open_input
from dragoman.run.progress import progress_bars
from dragoman.translation.notices import FirstNotices, Say
from dragoman.translation.translator import Translator

_LINES_PER_BLOCK = 2_000
"""Enough for batches of similar length, few enough to see output soon."""
_PATIENCE_SECONDS = 0.1
"""Lines that have arrived are translated if a pipe brings nothing more for this long."""
_MAX_COUNTED_BYTES = 10**9
"""Lines of larger files are not counted before they are translated."""
_STANDARD_INPUT = Path("-")
_STANDARD_INPUT_NAME = Path("standard input")
_INVITATION = "Type a sentence and press Enter; Ctrl-D ends."


_SourceLine = tuple[str, Unreadable | None]
"""The text of a line, and why it cannot be read, if so; its text is then empty."""


@dataclass(frozen=True)
class _Input:
    """Where lines come from."""

    reader: LineReader
    has_more: Callable[[], bool]
    """Whether more has arrived, as it always has in a file."""
    is_typed: bool = False


def translate_stream(translator: Translator, path: Path, output: TextIO, say: Say, max_bad_lines: int = 0) -> None:
    """Writes one line for each line of the file (`-` is standard input), in order, as soon as it can.

    Up to `max_bad_lines` lines that cannot be read become empty lines; the next one is an error, after everything
    before it was written. At a terminal, a bad line never ends the session.
    """
    is_typed = path == _STANDARD_INPUT and sys.stdin is not None and sys.stdin.isatty()
    source = _open_terminal(output, say) if is_typed else _open(path)
    bad_lines = BadLines(sys.maxsize if source.is_typed else max_bad_lines)
    with nullcontext(_show_nothing) if output.isatty() or source.is_typed else _progress_of(path) as show:
        _Stream(translator, source, output, say, bad_lines, show).run()
    for notice in source.reader.notices():
        say(notice)


_Show = Callable[[int], None]
"""Shows how many lines have been translated."""


def _show_nothing(_num_done: int) -> None:
    """Shows no progress, where the output itself is seen."""


@contextmanager
def _progress_of(path: Path) -> Iterator[_Show]:
    num_lines = _count_lines(path)
    with progress_bars("lines") as show:
        yield lambda num_done: show("translating", num_done, num_lines)


def _count_lines(path: Path) -> int | None:
    """Counts the lines of a file, for the time left; None where that would take long, or where it is damaged."""
    if path == _STANDARD_INPUT or not path.is_file() or path.stat().st_size > _MAX_COUNTED_BYTES:
        return None
    with suppress(UserError), open_input(path) as file:
        content = ContentReader(path, file, DEFAULT_MAX_EXPANSION, note_nothing)
        if not content.is_compressed:
            reader = LineReader(path, DEFAULT_MAX_EXPANSION, content=iter(content))
            return sum(len(lines.texts) for lines in reader.chunks())
    return None


class _Stream:
    """Translates one input, block by block."""

    def __init__(
        self, translator: Translator, source: _Input, output: TextIO, say: Say, bad_lines: BadLines, show: _Show
    ) -> None:
        self._translator, self._source, self._output, self._say = translator, source, output, say
        self._bad_lines, self._show = bad_lines, show
        self._skipped = FirstNotices(say)
        self._num_read = 0
        self._num_done = 0

    def run(self) -> None:
        """Translates all lines; what was noticed is said even if a bad line ends it."""
        try:
            for block in _arrived_blocks(self._source):
                self._translate(block)
                if self._source.is_typed:
                    self._translator.finish_notices()
        finally:
            self._translator.finish_notices()
            if self._skipped.num_lines and not self._source.is_typed:
                self._say(f"Skipped lines: {self._skipped.num_lines:,}; each is an empty line of the output.")

    def _translate(self, block: list[_SourceLine]) -> None:
        texts, error = self._before_error(block)
        first_number = self._num_read + 1
        self._num_read += len(texts)
        for translation in self._translator.translate(list(map(normalise, texts)), self._count, first_number):
            self._output.write(translation + "\n")
        self._output.flush()
        if error is not None:
            raise error

    def _before_error(self, block: list[_SourceLine]) -> tuple[list[str], UserError | None]:
        """Returns the lines before the first bad line that may not be skipped, and the error about that one."""
        texts: list[str] = []
        for text, fault in block:
            number = self._num_read + len(texts) + 1
            if fault is not None:
                try:
                    self._bad_lines.add(self._source.reader.path, number, fault.reason, fault.advice)
                except UserError as error:
                    return texts, error
                self._skipped.add(f"Skipped: {self._bad_lines.records[-1].message}")
            texts.append(text)
        return texts, None

    def _count(self, num_more: int) -> None:
        self._num_done += num_more
        self._show(self._num_done)


def _arrived_blocks(source: _Input) -> Iterator[list[_SourceLine]]:
    """Joins lines to blocks, and does not wait for more lines while there are some to translate."""
    held: list[_SourceLine] = []
    error: UserError | None = None
    try:
        for chunk in source.reader.chunks():
            first_number = source.reader.num_lines - len(chunk.texts) + 1
            held += [(text, chunk.faults.get(number)) for number, text in enumerate(chunk.texts, first_number)]
            while len(held) >= _LINES_PER_BLOCK or (held and not source.has_more()):
                block, held = held[:_LINES_PER_BLOCK], held[_LINES_PER_BLOCK:]
                yield block
    except UserError as problem:  # the lines before it are translated first
        error = problem
    if held:
        yield held
    if error is not None:
        raise error


# Where lines come from


def _open(path: Path) -> _Input:
    is_standard = path == _STANDARD_INPUT
    file = _open_standard_input() if is_standard else open_input(path)
    arrivals = select.poll()
    arrivals.register(file, select.POLLIN)
    name = _STANDARD_INPUT_NAME if is_standard else path
    content = read_open_file(name, file, DEFAULT_MAX_EXPANSION)
    reader = LineReader(name, DEFAULT_MAX_EXPANSION, content=content)
    return _Input(reader, has_more=lambda: bool(arrivals.poll(1000 * _PATIENCE_SECONDS)))


def _open_standard_input() -> BufferedReader:
    if sys.stdin is None:
        raise UserError("Standard input is closed; name a file to translate.")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _open_terminal(output: TextIO, say: Say) -> _Input:
    """Invites a person to type; edits lines and remembers them where input and output are one terminal."""
    say(_INVITATION)
    if not output.isatty():
        plain = _open(_STANDARD_INPUT)
        return _Input(plain.reader, plain.has_more, is_typed=True)
    reader = LineReader(_STANDARD_INPUT_NAME, DEFAULT_MAX_EXPANSION, content=_typed_lines())
    return _Input(reader, has_more=lambda: False, is_typed=True)


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
