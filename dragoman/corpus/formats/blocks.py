"""Blocks of consecutive pairs, and where they are cut: a matter of the text alone, never of how it was read."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

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
