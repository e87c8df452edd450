"""What a search for translations takes and returns, whichever program computes it; needs no torch."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.run.config import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY
from dragoman.run.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """Draws subwords at random instead of searching for the most probable ones."""

    temperature: float = 1.0
    """Divides the logits: below 1 the draws are more cautious, above 1 more varied."""
    top_k: int = 0
    """Draw only from the k most probable subwords; 0: from all."""
    top_p: float = 1.0
    """Draw only from the most probable subwords that together reach this probability."""
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"The temperature must be above 0, not {self.temperature:g}.")
        if self.top_k < 0:
            raise UsageError(f"top_k must be 0 (all subwords) or more, not {self.top_k:,}.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1, not {self.top_p:g}.")
        if self.seed < 0:
            raise UsageError(f"The seed must be 0 or more, not {self.seed}.")


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the beam search."""

    beam_size: int = 4
    """Hypotheses kept alive per source; 1 is greedy search, which stops at its first end."""
    length_penalty: float = 0.6
    """Exponent alpha of ((5 + length) / 6)^alpha, by which log-probabilities are divided; length counts EOS."""
    max_length_factor: float = 2.0
    max_length_extra: int = 20
    """An output has at most factor · source subwords + extra subwords; both sides count EOS."""
    max_subwords: int | None = None
    """The most subwords of an output, EOS included, however long its source is."""
    num_best: int = 1
    """Most hypotheses returned per source."""
    sampling: Sampling | None = None
    """How to draw hypotheses at random; `num_best` are drawn independently. None: beam search."""
    forbidden: tuple[tuple[int, ...], ...] = ()
    """Sequences of subwords that no output contains."""
    forbidden_starts: tuple[tuple[int, ...], ...] = ()
    """Sequences of subwords that no output contains where a word begins: at its start, or after one of `word_ends`."""
    word_ends: tuple[int, ...] = ()
    """Subwords after which the next one begins a word although it has no mark of a blank, e.g. a quotation mark."""
    with_alignment: bool = False
    """Whether hypotheses say which source subword each of their subwords attends to most."""

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MAX_BEAM_SIZE:
            raise UsageError(f"The beam size must be between 1 and {MAX_BEAM_SIZE:,}, not {self.beam_size:,}.")
        if self.sampling is None and not 1 <= self.num_best <= self.beam_size:
            raise UsageError(f"num_best must be between 1 and the beam size {self.beam_size}, not {self.num_best}.")
        if not 1 <= self.num_best <= MAX_BEAM_SIZE:
            raise UsageError(f"num_best must be between 1 and {MAX_BEAM_SIZE:,}, not {self.num_best:,}.")
        if not 0 <= self.length_penalty <= MAX_LENGTH_PENALTY:
            raise UsageError(
                f"The length penalty must be between 0 and {MAX_LENGTH_PENALTY:g}, not {self.length_penalty:g}."
            )
        if self.max_length_factor < 0 or self.max_length_extra < 1:
            raise UsageError("The length limit needs a factor of 0 or more and at least 1 extra subword.")
        if self.max_subwords is not None and self.max_subwords < 1:
            raise UsageError(f"The longest output must have at least 1 subword, not {self.max_subwords}.")
        if not all(self.forbidden) or not all(self.forbidden_starts):
            raise UsageError("A forbidden sequence needs at least one subword.")

    @property
    def num_rows(self) -> int:
        """Hypotheses that are computed at the same time for each source."""
        return self.beam_size if self.sampling is None else self.num_best

    def penalty(self, length: int) -> float:
        """Returns the divisor of the log-probability of a hypothesis with this many subwords (Wu et al. 2016)."""
        return float(((5 + length) / 6) ** self.length_penalty)

    def max_length(self, source_length: int) -> int:
        """Returns the largest number of subwords of an output, EOS included."""
        longest = int(self.max_length_factor * source_length) + self.max_length_extra
        return longest if self.max_subwords is None else min(longest, self.max_subwords)


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one source."""

    tokens: list[int]
    """Without BOS and EOS."""
    score: float
    """The log-probability divided by the length penalty."""
    log_probability: float
    aligned: list[int] | None = None
    """For each token the source token it attends to most; only where the settings ask for it."""


@dataclass(frozen=True)
class SourceSegment:
    """One source to search for: a line, or a part of a long one."""

    ids: list[int]
    """Without EOS."""
    prefix: tuple[int, ...] = ()
    """Subwords that the output begins with."""
    required: tuple[tuple[int, ...], ...] = ()
    """Sequences of subwords that the output contains."""
    number: int = 0
    """Number of the line in its input: drawn subwords depend on it and on the seed, not on the batch."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the source, EOS included."""
        return len(self.ids) + 1


Batch = Sequence[SourceSegment]
Found = list[list[Hypothesis]]
"""The hypotheses of each segment of a batch: best first, or in the order they were drawn."""


class SearchBackend(Protocol):
    """A model that finds translations of segments, with its own way to use all cores."""

    def search_batches(self, batches: Sequence[Batch], settings: SearchSettings) -> Generator[tuple[int, Found]]:
        """Yields the index of each batch and what was found for it, in the order they are done."""
        ...
