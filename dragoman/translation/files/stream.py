"""Translates lines as they arrive: line N of the output belongs to line N of the input, and is written at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from dragoman.run.progress import progress_bars
from dragoman.translation.files.input_blocks import (
    BlockReader,
    count_lines,
    is_terminal_input,
    open_lines,
    open_terminal,
)
from dragoman.translation.files.order import TranslationOrder, translate_block
from dragoman.translation.notices import Say
from dragoman.translation.search import SearchSettings
from dragoman.translation.translator import LineTranslator

ShowLines = Callable[[int], None]
"""Shows how many lines have been translated."""


def translate_stream(
    translator: LineTranslator,
    path: Path,
    output: IO[str],
    say: Say,
    max_bad_lines: int = 0,
    order: TranslationOrder | None = None,
    settings: SearchSettings | None = None,
) -> None:
    """Writes the translation of each line of the file (`-` is standard input), in order, as soon as it can.

    Up to `max_bad_lines` lines that cannot be read become empty lines; the next one is an error, after everything
    before it was written. At a terminal, a bad line never ends the session.
    """
    order, settings = order or TranslationOrder(), settings or translator.settings
    is_typed, lines = is_terminal_input(path), order.lines()
    max_bytes = lines.max_line_bytes
    source = open_terminal(output, max_bytes, say) if is_typed else open_lines(path, max_bytes)
    reader = BlockReader(source, lines, say, max_bad_lines)
    num_done = 0
    with nullcontext(_show_nothing) if output.isatty() or is_typed else show_progress(path) as show:
        try:
            for block in reader.blocks(is_awaited=True):
                output.write(translate_block(translator, order, settings, block, LineCounter(num_done, show)))
                output.flush()
                num_done += len(block.lines)
                if is_typed:
                    translator.finish_notices()
        finally:
            translator.finish_notices()
            reader.finish_notices()


class LineCounter:
    """Adds up lines that are done, and shows their number."""

    def __init__(self, num_done: int, show: ShowLines) -> None:
        self._num_done, self._show = num_done, show

    def __call__(self, num_more: int) -> None:
        """Adds lines."""
        self._num_done += num_more
        self._show(self._num_done)


def _show_nothing(_num_done: int) -> None:
    """Shows no progress, where the output itself is seen."""


@contextmanager
def show_progress(path: Path) -> Iterator[ShowLines]:
    """Shows how many lines of a file are translated, and the time left if their number is known."""
    num_lines = count_lines(path)
    with progress_bars("lines") as show:
        yield lambda num_done: show("translating", num_done, num_lines)
