"""Follows which required sequences of subwords an output contains so far, and how many subwords the others need.

No sequence is part of another: what contains the longer one contains both. So the missing ones end one after the other,
each overlapping the one before as far as it can, and the shortest way to complete an output is the best of all orders.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dragoman.translation.possible_outputs import contains
from dragoman.translation.search import SourceSegment

_MAX_ORDERED = 8
"""The best order of more sequences takes too long to find; their overlaps are then not counted on."""

Pattern = tuple[int, ...]


@dataclass(frozen=True)
class Progress:
    """What an output contains so far of the required sequences."""

    missing: frozenset[int]
    """Indices of the sequences it does not contain yet."""
    matched: tuple[int, ...]
    """For each sequence, how many of its first subwords the output ends with."""


class RequiredSubwords:
    """The sequences that the output for one source must contain."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        distinct = sorted({pattern for pattern in patterns if pattern}, key=lambda pattern: (-len(pattern), pattern))
        self.patterns: list[Pattern] = []
        for pattern in distinct:
            if not any(contains(longer, pattern) for longer in self.patterns):
                self.patterns.append(pattern)
        self._fallbacks = [_fallbacks(pattern) for pattern in self.patterns]
        self._needs: dict[tuple[frozenset[int], int], int] = {}

    def start(self) -> Progress:
        """Returns the progress of an empty output."""
        return Progress(frozenset(range(len(self.patterns))), (0,) * len(self.patterns))

    def advance(self, progress: Progress, token: int) -> Progress:
        """Returns the progress after one more subword."""
        matched = tuple(self._match(index, progress.matched[index], token) for index in range(len(self.patterns)))
        done = {index for index in progress.missing if matched[index] == len(self.patterns[index])}
        return Progress(progress.missing - done, matched)

    def next_tokens(self, progress: Progress) -> set[int]:
        """Returns the subwords that begin or continue a missing sequence."""
        begun = {self.patterns[index][progress.matched[index]] for index in progress.missing}
        return begun | {self.patterns[index][0] for index in progress.missing}

    def need(self, progress: Progress) -> int:
        """Returns the smallest number of subwords that complete all missing sequences."""
        if not progress.missing:
            return 0
        return min(
            len(self.patterns[index]) - progress.matched[index] + self._need_after(progress.missing - {index}, index)
            for index in progress.missing
        )

    def _need_after(self, missing: frozenset[int], last: int) -> int:
        """Returns the smallest number of subwords that complete `missing` after an output that ends with `last`."""
        if len(self.patterns) > _MAX_ORDERED:
            return sum(len(self.patterns[index]) for index in missing)
        if not missing:
            return 0
        key = missing, last
        if key not in self._needs:
            self._needs[key] = min(
                len(self.patterns[index]) - self._overlaps[last][index] + self._need_after(missing - {index}, index)
                for index in missing
            )
        return self._needs[key]

    @cached_property
    def _overlaps(self) -> list[list[int]]:
        """For each pair, how many of the last subwords of the first are the first subwords of the second."""
        return [[_overlap(first, second) for second in self.patterns] for first in self.patterns]

    def _match(self, index: int, matched: int, token: int) -> int:
        """Returns how many first subwords of a sequence the output ends with after one more (Knuth, Morris, Pratt)."""
        pattern, fallbacks = self.patterns[index], self._fallbacks[index]
        if matched == len(pattern):
            matched = fallbacks[matched]
        while matched and pattern[matched] != token:
            matched = fallbacks[matched]
        return matched + (pattern[matched] == token)


def fitting_rules(segment: SourceSegment, longest: int) -> RequiredSubwords:
    """Returns what is required as far as `longest` subwords have room; what was named last is left out first."""
    required = list(segment.required)
    while True:
        rules = RequiredSubwords(required)
        progress = advance_all(rules, rules.start(), segment.prefix)
        if not required or len(segment.prefix) + rules.need(progress) <= longest:
            return rules
        required.pop()


def advance_all(rules: RequiredSubwords, progress: Progress, tokens: Iterable[int]) -> Progress:
    """Returns the progress after more subwords."""
    for token in tokens:
        progress = rules.advance(progress, token)
    return progress


def _overlap(first: Pattern, second: Pattern) -> int:
    longest = min(len(first), len(second)) - 1
    return next((length for length in range(longest, 0, -1) if first[-length:] == second[:length]), 0)


def _fallbacks(pattern: Pattern) -> list[int]:
    """Returns for each number of matched subwords the next smaller number that also matches."""
    return [0, *(_overlap(pattern[:length], pattern[:length]) for length in range(1, len(pattern) + 1))]
