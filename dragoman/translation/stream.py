"""Translating a file or standard input, a block of lines at a time: memory stays bounded, output comes early."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.lines import TextFile
from dragoman.translation.translator import Translator

LINES_PER_BLOCK = 2_000
"""Enough for batches of like length, little enough to see output soon."""
STANDARD_INPUT = Path("/dev/stdin")


def translate_stream(translator: Translator, path: Path, output: TextIO, say: Callable[[str], None]) -> None:
    """Writes one line for each line of the file (`-` is standard input), in order; at a terminal, line by line."""
    is_standard_input = path == Path("-")
    text = TextFile(STANDARD_INPUT if is_standard_input else path)
    lines = (normalise(line) for line in text)
    block_size = 1 if is_standard_input and sys.stdin.isatty() else LINES_PER_BLOCK
    for block in _blocks(lines, block_size):
        for translation in translator.translate(block):
            output.write(translation + "\n")
        output.flush()
    for notice in text.notices():
        say(notice)


def _blocks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while block := list(islice(lines, size)):
        yield block
