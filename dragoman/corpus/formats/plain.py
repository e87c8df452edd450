"""Two plain text files, line by line; and putting text together again that was cut into subwords."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from dragoman.corpus.formats.blocks import AddBadLine, Block, Unreadable
from dragoman.corpus.formats.compression import NoteBytes
from dragoman.corpus.formats.lines import LineReader
from dragoman.corpus.settings import Pieces
from dragoman.run.errors import UserError


class _Side:
    """The lines of one file, of which any number can be taken."""

    def __init__(self, path: Path, max_expansion: int, note_bytes: NoteBytes) -> None:
        self.reader = LineReader(path, max_expansion, note_bytes=note_bytes)
        self.faults: dict[int, Unreadable] = {}
        self._chunks = self.reader.chunks()
        self._texts: list[str] = []

    def fill(self) -> int:
        """Makes sure that lines are held if there are any, and says how many."""
        if not self._texts and (lines := next(self._chunks, None)) is not None:
            self._texts = lines.texts
            self.faults |= lines.faults
        return len(self._texts)

    def take(self, num_lines: int) -> list[str]:
        """Hands out lines that are held."""
        taken, self._texts = self._texts[:num_lines], self._texts[num_lines:]
        return taken

    def count_all(self) -> int:
        """Reads to the end, so that the file's number of lines is known."""
        for _ in self._chunks:
            pass
        return self.reader.num_lines


class PlainReader:
    """Reads two plain files side by side."""

    what = "line"

    def __init__(
        self, source: Path, target: Path, max_expansion: int, add_bad_line: AddBadLine, note_bytes: NoteBytes
    ) -> None:
        self._source = _Side(source, max_expansion, note_bytes)
        self._target = _Side(target, max_expansion, note_bytes)
        self._add_bad_line = add_bad_line

    def pieces(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad line between them."""
        next_number = 1
        while num_lines := min(self._source.fill(), self._target.fill()):
            yield from self._between_bad_lines(
                Block(next_number, self._source.take(num_lines), self._target.take(num_lines))
            )
            next_number += num_lines
        self._check_equal_lengths()

    def notices(self) -> list[str]:
        """What the user should know about the files, one sentence each."""
        return self._source.reader.notices() + self._target.reader.notices()

    def _between_bad_lines(self, piece: Block) -> Iterator[Block]:
        start, stop = 0, len(piece.sources)
        for number in self._take_bad_numbers(piece.first_number + stop):
            index = number - piece.first_number
            yield Block(piece.first_number + start, piece.sources[start:index], piece.targets[start:index])
            start = index + 1
        yield Block(piece.first_number + start, piece.sources[start:], piece.targets[start:]) if start else piece

    def _take_bad_numbers(self, stop_number: int) -> Iterator[int]:
        """Reports bad lines before a number; a pair that is bad on both sides is one, for its source's reason."""
        faults = self._target.faults | self._source.faults
        for number in sorted(number for number in faults if number < stop_number):
            side = self._source if number in self._source.faults else self._target
            self._source.faults.pop(number, None)
            self._target.faults.pop(number, None)
            self._add_bad_line(side.reader.path, number, faults[number])
            yield number

    def _check_equal_lengths(self) -> None:
        num_source, num_target = self._source.count_all(), self._target.count_all()
        if num_source != num_target:
            raise UserError(
                f"{self._source.reader.path} has {num_source:,} lines but {self._target.reader.path} has "
                f"{num_target:,}; line N of one must be the translation of line N of the other."
            )


SAMPLE_LINES = 1000
_LEAST_SHARE_OF_CUT_LINES = 0.2
_JOINER = re.compile("@@( |$)", re.MULTILINE)

KindOfPieces = Literal["none", "sentencepiece", "subword-nmt"]
Undo = Callable[[list[str]], list[str]]


def recognise_pieces(lines: Sequence[str]) -> KindOfPieces:
    """What the first lines of a side look like."""
    filled = [line for line in lines if line and not line.isspace()]
    if filled and all(line.startswith("▁") for line in filled):
        return "sentencepiece"
    num_cut = sum("@@ " in line for line in lines)
    if num_cut and num_cut >= _LEAST_SHARE_OF_CUT_LINES * len(lines):
        return "subword-nmt"
    return "none"


def choose_pieces(setting: Pieces, lines: Sequence[str]) -> KindOfPieces:
    """What the setting says, or what the lines look like."""
    return recognise_pieces(lines) if setting == "auto" else setting


def put_together(kind: KindOfPieces, lines: list[str]) -> list[str]:
    """The lines as they were before; done for all of them at once, because that is much faster."""
    if kind == "none" or not lines:
        return lines
    text = "\n".join(lines)
    text = _without_sentencepiece(text) if kind == "sentencepiece" else _JOINER.sub("", text)
    return text.split("\n")


def tell_pieces(side: str, kind: KindOfPieces) -> str:
    """The notice about pieces that were undone."""
    maker, mark = ("SentencePiece", "▁") if kind == "sentencepiece" else ("subword-nmt", "@@")
    return f"{side} was cut into pieces by {maker} ({mark}); they were put together again."


def _without_sentencepiece(text: str) -> str:
    """Spaces part the pieces, and ▁ was a space, but for the one that SentencePiece puts before a sentence."""
    return text.replace(" ", "").replace("▁", " ").replace("\n ", "\n").removeprefix(" ")
