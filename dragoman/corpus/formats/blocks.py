"""Blocks of sentence pairs, which the readers yield, and the handling of lines that cannot be read."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from dragoman.corpus.formats.compression import NoteBytes
from dragoman.run.errors import UserError


class Unreadable(Exception):  # noqa: N818 - BadLines decides whether it becomes an error
    """One line cannot be read: the reason ("has a NUL byte ...") and what the user can do ("correct it")."""

    def __init__(self, reason: str, advice: str = "correct or delete it") -> None:
        super().__init__(reason)
        self.reason, self.advice = reason, advice


AddBadLine = Callable[[Path, int, Unreadable], None]
"""(file, line number, problem): how the readers report a bad line."""


@dataclass(frozen=True)
class Reading:
    """How the files of a text are read, and who is told about it."""

    max_expansion: int
    add_bad_line: AddBadLine
    note_bytes: NoteBytes


@dataclass(frozen=True)
class BadLine:
    """A line, row or unit that was skipped."""

    path: Path
    number: int
    reason: str
    what: str = "line"

    @property
    def message(self) -> str:
        """Entry in the list of skipped lines."""
        return f"{self.path}, {self.what} {self.number:,}: {self.reason}."


class BadLines:
    """Collects the bad lines of all texts of a preparation, and raises when there are more than allowed."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.records: list[BadLine] = []

    def add(
        self, path: Path, number: int, reason: str, advice: str = "correct or delete it", what: str = "line"
    ) -> None:
        """Records a bad line."""
        if len(self.records) < self.allowed:
            self.records.append(BadLine(path, number, reason, what))
            return
        place = f"{path}, {what} {number:,} {reason}"
        if self.allowed == 0:
            raise UserError(f"{place}; {advice}, or skip up to N bad lines with --skip-bad-lines N.")
        raise UserError(
            f"{place}, after {self.allowed:,} bad lines, the most that --skip-bad-lines allows; "
            f"{advice}, or allow more."
        )


MAX_LINE_BYTES = 65_536
"""Longest sentence, in bytes of UTF-8."""
BLOCK_BYTES = 8 * 2**20
"""A block is full when its text has this many characters (which are faster to count than bytes)."""


@dataclass(frozen=True)
class Block:
    """Consecutive pairs of one text, before normalisation, but without "\\n" inside a sentence."""

    first_number: int
    """Number of the first pair's line, row or unit, from 1; pair i has the number `first_number + i`."""
    sources: list[str]
    targets: list[str]


def cut_blocks(runs: Iterable[Block]) -> Iterator[Block]:
    """Joins runs of consecutive pairs to full blocks; a gap in the numbers ends a block too."""
    block, size = Block(1, [], []), 0
    for run in runs:
        if run.first_number != block.first_number + len(block.sources):
            if block.sources:
                yield block
            block, size = Block(run.first_number, [], []), 0
        num_taken = 0
        while size + _size(run, num_taken) >= BLOCK_BYTES:
            num_more = _num_pairs_to_size(run, num_taken, BLOCK_BYTES - size)
            _append(block, run, num_taken, num_taken + num_more)
            num_taken += num_more
            yield block
            block, size = Block(block.first_number + len(block.sources), [], []), 0
        size += _size(run, num_taken)
        _append(block, run, num_taken, len(run.sources))
    if block.sources:
        yield block


def _size(run: Block, start: int) -> int:
    """Counts the characters of the pairs from `start`; line ends count, so that empty lines cannot fill the memory."""
    sources, targets = (run.sources[start:], run.targets[start:]) if start else (run.sources, run.targets)
    return sum(map(len, sources)) + sum(map(len, targets)) + 2 * len(sources)


def _num_pairs_to_size(run: Block, start: int, size: int) -> int:
    """Counts the pairs from `start` that are needed to reach a size."""
    pairs = zip(run.sources[start:], run.targets[start:], strict=True)
    return bisect_left(list(accumulate(len(source) + len(target) + 2 for source, target in pairs)), size) + 1


def _append(block: Block, run: Block, start: int, stop: int) -> None:
    block.sources.extend(run.sources[start:stop])
    block.targets.extend(run.targets[start:stop])


SAFE_CHARACTERS = MAX_LINE_BYTES // 4
"""Text of this many characters is within the limit, even at four bytes for each."""


def too_long(num_bytes: int, max_bytes: int = MAX_LINE_BYTES, what: str = "a sentence") -> Unreadable:
    """Returns the problem of text over the limit."""
    return Unreadable(
        f"has {num_bytes:,} bytes, more than the {max_bytes:,} {what} may have",
        "split it into sentences, one per line, or delete it",
    )


def decode_sentence(content: bytes, is_after_utf8: bool = False, unit: str = "line") -> str:
    """Decodes UTF-8 strictly; byte offsets in messages count from 0 at the start of the content."""
    if (offset := content.find(b"\0")) >= 0:
        raise Unreadable(
            f"has a NUL byte (0x00) at byte offset {offset}, which is typical of damaged files and UTF-16 text",
            "convert the file to UTF-8 or correct the line",
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        contrast = ", although lines before it are" if is_after_utf8 else ""
        raise Unreadable(
            f"is not UTF-8 at byte offset {problem.start} of the {unit} (0x{content[problem.start]:02x}){contrast}",
            "convert the file to UTF-8 or correct the line",
        ) from None


def check_sentence(text: str) -> str:
    """Checks text from a format with its own escapes or line breaks, and joins it to one line."""
    if "\0" in text:
        raise Unreadable(f"has a NUL character (U+0000) at character offset {text.index(chr(0))}")
    try:
        num_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError as problem:
        half = f"\\u{ord(text[problem.start]):04x}"
        raise Unreadable(f"has half a character ({half}) at character offset {problem.start}") from None
    if num_bytes > MAX_LINE_BYTES:
        raise too_long(num_bytes)
    return join_lines(text)


def join_lines(text: str) -> str:
    """Joins a sentence that a format spread over several lines."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text
