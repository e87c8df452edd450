"""Blocks of sentence pairs as readers yield them, and what is done with lines that cannot be read."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from dragoman.run.errors import UserError


class Unreadable(Exception):  # noqa: N818 - it is a finding about a line; whether it becomes an error is up to BadLines
    """Why one line cannot be read ("has a NUL byte ..."), and what the user can do about it ("correct it")."""

    def __init__(self, reason: str, advice: str = "correct or delete it") -> None:
        super().__init__(reason)
        self.reason, self.advice = reason, advice


AddBadLine = Callable[[Path, int, Unreadable], None]
"""(file, line number, what is wrong): how readers of formats report a line."""


@dataclass(frozen=True)
class BadLine:
    """A line, row or unit that was skipped."""

    path: Path
    number: int
    reason: str
    what: str = "line"

    @property
    def sentence(self) -> str:
        """For the list of skipped lines."""
        return f"{self.path}, {self.what} {self.number:,}: {self.reason}."


class BadLines:
    """Keeps the bad lines of all texts that are read together, and raises when there are more than allowed."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.records: list[BadLine] = []

    def add(
        self, path: Path, number: int, reason: str, advice: str = "correct or delete it", what: str = "line"
    ) -> None:
        """Notes a bad line."""
        if len(self.records) < self.allowed:
            self.records.append(BadLine(path, number, reason, what))
            return
        place = f"{path}, {what} {number:,} {reason}"
        if self.allowed == 0:
            raise UserError(f"{place}; {advice}, or continue past it with --skip-bad-lines N.")
        raise UserError(
            f"{place}, and {self.allowed:,} bad lines, as many as were allowed, came before it; "
            f"{advice}, or allow more with --skip-bad-lines."
        )


MAX_LINE_BYTES = 65_536
"""Of one sentence, in UTF-8."""
BLOCK_BYTES = 8 * 2**20
"""A block is closed as soon as its text has so many characters, which are cheaper to count than bytes."""


@dataclass(frozen=True)
class Block:
    """Consecutive pairs of one text, as read: not normalised, but without "\\n" inside a sentence."""

    first_number: int
    """Line, row or unit (from 1) of the first pair; pair i has the number `first_number + i`."""
    sources: list[str]
    targets: list[str]


def cut_blocks(pieces: Iterable[Block]) -> Iterator[Block]:
    """Joins pieces that follow each other, and cuts where a block is full; a gap in the numbers ends a block too."""
    block, size = Block(1, [], []), 0
    for piece in pieces:
        if piece.first_number != block.first_number + len(block.sources):
            if block.sources:
                yield block
            block, size = Block(piece.first_number, [], []), 0
        num_taken = 0
        while size + _size(piece, num_taken) >= BLOCK_BYTES:
            num_more = _num_pairs_to_size(piece, num_taken, BLOCK_BYTES - size)
            _append(block, piece, num_taken, num_taken + num_more)
            num_taken += num_more
            yield block
            block, size = Block(block.first_number + len(block.sources), [], []), 0
        size += _size(piece, num_taken)
        _append(block, piece, num_taken, len(piece.sources))
    if block.sources:
        yield block


def _size(piece: Block, start: int) -> int:
    """Characters of the pairs from `start` on; line ends count, so that blank lines cannot fill the memory."""
    sources, targets = (piece.sources[start:], piece.targets[start:]) if start else (piece.sources, piece.targets)
    return sum(map(len, sources)) + sum(map(len, targets)) + 2 * len(sources)


def _num_pairs_to_size(piece: Block, start: int, size: int) -> int:
    """How many pairs from `start` on it takes to reach a size."""
    pairs = zip(piece.sources[start:], piece.targets[start:], strict=True)
    return bisect_left(list(accumulate(len(source) + len(target) + 2 for source, target in pairs)), size) + 1


def _append(block: Block, piece: Block, start: int, stop: int) -> None:
    block.sources.extend(piece.sources[start:stop])
    block.targets.extend(piece.targets[start:stop])


SAFE_CHARACTERS = MAX_LINE_BYTES // 4
"""So many characters are within the limit, however many bytes each of them takes."""


def too_long(num_bytes: int, max_bytes: int = MAX_LINE_BYTES, what: str = "a sentence") -> Unreadable:
    """The finding about text over the limit."""
    return Unreadable(
        f"has {num_bytes:,} bytes, more than the {max_bytes:,} {what} may have",
        "split it into sentences, one a line, or delete it",
    )


def decode_sentence(content: bytes, is_after_utf8: bool = False, unit: str = "line") -> str:
    """Decodes strictly; byte offsets in messages count from 0 at the start of the content."""
    if (offset := content.find(b"\0")) >= 0:
        raise Unreadable(
            f"has a NUL byte (0x00) at byte offset {offset}, as damaged files and UTF-16 text have",
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
    """Checks text from a format with escapes or line breaks of its own, and makes one line of it."""
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
    """Makes one line of a sentence that a format let run over several."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text
