"""Reads two plain text files side by side, line by line."""

from collections.abc import Iterator
from pathlib import Path

from dragoman.corpus.formats.blocks import AddBadLine, Block, Unreadable
from dragoman.corpus.formats.compression import NoteBytes
from dragoman.corpus.formats.lines import LineReader
from dragoman.run.errors import UserError


class _Side:
    """The lines of one file, which can be taken in any number."""

    def __init__(self, path: Path, max_expansion: int, note_bytes: NoteBytes) -> None:
        self.reader = LineReader(path, max_expansion, note_bytes=note_bytes)
        self.faults: dict[int, Unreadable] = {}
        self._chunks = self.reader.chunks()
        self._texts: list[str] = []

    def fill(self) -> int:
        """Reads lines if none are held, and returns how many are held."""
        if not self._texts and (lines := next(self._chunks, None)) is not None:
            self._texts = lines.texts
            self.faults |= lines.faults
        return len(self._texts)

    def take(self, num_lines: int) -> list[str]:
        """Removes and returns held lines."""
        taken, self._texts = self._texts[:num_lines], self._texts[num_lines:]
        return taken

    def count_all(self) -> int:
        """Reads to the end, and returns the number of lines of the file."""
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

    def runs(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad line between them."""
        next_number = 1
        while num_lines := min(self._source.fill(), self._target.fill()):
            yield from self._between_bad_lines(
                Block(next_number, self._source.take(num_lines), self._target.take(num_lines))
            )
            next_number += num_lines
        self._check_equal_lengths()

    def notices(self) -> list[str]:
        """Returns messages about the files for the user."""
        return self._source.reader.notices() + self._target.reader.notices()

    def _between_bad_lines(self, run: Block) -> Iterator[Block]:
        start, stop = 0, len(run.sources)
        for number in self._take_bad_numbers(run.first_number + stop):
            index = number - run.first_number
            yield Block(run.first_number + start, run.sources[start:index], run.targets[start:index])
            start = index + 1
        yield Block(run.first_number + start, run.sources[start:], run.targets[start:]) if start else run

    def _take_bad_numbers(self, stop_number: int) -> Iterator[int]:
        """Reports bad lines before a number; a pair that is bad on both sides counts once, for its source."""
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
