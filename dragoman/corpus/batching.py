"""Pairs to batches: which pairs each virtual worker learns from at each step.

The plan of an epoch depends on the seed, the epoch and the corpus, never on how many ranks there are: pairs are
shuffled, sorted by length within large pools (so that little is padded), cut into micro-batches under the token
budget of a virtual worker, and the micro-batches shuffled again; each step takes the next `virtual_workers` of them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.shards import ParallelIds
from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID
from dragoman.run.errors import UserError

POOL_MICRO_BATCHES = 200
"""Micro-batches' worth of pairs that are sorted together: more pads less, but mixes lengths less freely."""

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class BatchSettings:
    """What the plan depends on, besides the corpus."""

    global_batch_tokens: int
    virtual_workers: int
    max_tokens: int
    seed: int

    @property
    def micro_batch_tokens(self) -> int:
        """A virtual worker's share of the budget."""
        return self.global_batch_tokens // self.virtual_workers


@dataclass(frozen=True)
class BatchPosition:
    """Where in the endless sequence of steps a run stands; all a resume needs."""

    epoch: int = 0
    step_in_epoch: int = 0


FIRST_POSITION = BatchPosition()


@dataclass(frozen=True)
class StepPlan:
    """The pairs of one global batch, by virtual worker. In an epoch's last step some may have none."""

    parts: tuple[Indices, ...]
    num_target_tokens: int
    """End marks included. Every rank knows it without asking the others."""
    num_padded_tokens: int
    """Positions computed, source and target, padding included."""
    num_tokens: int
    """Positions computed that hold a token."""


@dataclass(frozen=True)
class MicroBatch:
    """Padded arrays of one virtual worker: sources end with EOS, target inputs begin with BOS, outputs end with EOS."""

    source: Indices
    source_lengths: Indices
    target_input: Indices
    target_output: Indices

    def first_pair(self) -> "MicroBatch":
        """The first pair alone, without padding."""
        source_length, target_length = self.source_lengths[0], (self.target_output[0] != PAD_ID).sum()
        return MicroBatch(
            self.source[:1, :source_length],
            self.source_lengths[:1],
            self.target_input[:1, :target_length],
            self.target_output[:1, :target_length],
        )


class BatchStream:
    """The endless sequence of steps over a corpus, from any position on."""

    def __init__(self, pairs: ParallelIds, settings: BatchSettings, position: BatchPosition = FIRST_POSITION) -> None:
        self._pairs = pairs
        self._settings = settings
        self._position = position
        self._source_lengths = pairs.source_lengths.astype(np.int64) + 1
        self._target_lengths = pairs.target_lengths.astype(np.int64) + 1
        longer_side = np.maximum(self._source_lengths, self._target_lengths)
        longest = min(settings.max_tokens, settings.micro_batch_tokens)
        self._usable: Indices = np.flatnonzero(longer_side <= longest)
        self._longer_side = longer_side
        self.num_left_out = len(longer_side) - len(self._usable)
        self.longest_used = longest
        if not len(self._usable):
            raise UserError(
                f"No training pair has at most {longest} pieces a side. Raise data.max_tokens, or give each virtual "
                "worker more with training.global_batch_tokens."
            )
        self._plan: list[Indices] | None = None

    @property
    def position(self) -> BatchPosition:
        """Where the next step begins."""
        return self._position

    def next_step(self) -> StepPlan:
        """The next step's pairs; moves on, into the next epoch where this one ends."""
        if self._plan is None:
            self._plan = self._plan_epoch(self._position.epoch)
        width = self._settings.virtual_workers
        begin = self._position.step_in_epoch * width
        parts = tuple(self._plan[begin : begin + width])
        if begin + width >= len(self._plan):
            self._position = BatchPosition(self._position.epoch + 1, 0)
            self._plan = None
        else:
            self._position = BatchPosition(self._position.epoch, self._position.step_in_epoch + 1)
        return self._describe(parts + (np.zeros(0, np.int64),) * (width - len(parts)))

    def micro_batch(self, part: Indices) -> MicroBatch:
        """Reads and pads the pairs of one virtual worker."""
        return pad_pairs([self._pairs.source(i) for i in part], [self._pairs.target(i) for i in part])

    def _plan_epoch(self, epoch: int) -> list[Indices]:
        generator = np.random.default_rng([self._settings.seed, epoch])
        shuffled = generator.permutation(self._usable)
        budget = self._settings.micro_batch_tokens
        mean_length = float(self._longer_side[self._usable].mean())
        pool_size = max(1, int(POOL_MICRO_BATCHES * budget / mean_length))
        micro_batches: list[Indices] = []
        for begin in range(0, len(shuffled), pool_size):
            pool = shuffled[begin : begin + pool_size]
            # Stable, so that equal lengths stay in shuffled order; the source breaks ties to pad it less.
            pool = pool[np.lexsort((self._source_lengths[pool], self._longer_side[pool]))]
            micro_batches += _cut_by_budget(pool, self._longer_side[pool], budget)
        order = generator.permutation(len(micro_batches))
        return [micro_batches[i] for i in order]

    def _describe(self, parts: tuple[Indices, ...]) -> StepPlan:
        num_padded = num_tokens = num_target_tokens = 0
        for part in parts:
            if len(part):
                source, target = self._source_lengths[part], self._target_lengths[part]
                num_padded += len(part) * int(source.max() + target.max())
                num_tokens += int(source.sum() + target.sum())
                num_target_tokens += int(target.sum())
        return StepPlan(parts, num_target_tokens, num_padded, num_tokens)


def fixed_batches(pairs: ParallelIds, budget: int) -> list[Indices]:
    """Every pair of a split once, whatever its length, in batches that depend on the split alone."""
    longer_side = np.maximum(pairs.source_lengths, pairs.target_lengths).astype(np.int64) + 1
    by_length = np.argsort(longer_side, kind="stable")
    return _cut_by_budget(by_length, longer_side[by_length], budget)


def _cut_by_budget(sorted_pairs: Indices, rising_lengths: Indices, budget: int) -> list[Indices]:
    """Cuts pairs of rising length into the fewest runs whose size times longest length stays within the budget."""
    cuts = []
    begin = 0
    while begin < len(sorted_pairs):
        # count · length of the last grows with the count, so the largest fitting count can be bisected for.
        counts = range(1, len(sorted_pairs) - begin + 1)
        fitting = bisect_right(counts, budget, key=lambda count, first=begin: count * rising_lengths[first + count - 1])  # type: ignore[misc]
        end = begin + max(1, fitting)
        cuts.append(sorted_pairs[begin:end])
        begin = end
    return cuts


def pad_pairs(sources: Sequence[NDArray[np.generic]], targets: Sequence[NDArray[np.generic]]) -> MicroBatch:
    """Pads sentences into the arrays a model takes, adding begin and end marks."""
    source, source_lengths = pad_sentences(sources)
    target_output, target_lengths = pad_sentences(targets)
    target_input = np.roll(target_output, 1, axis=1)
    target_input[:, 0] = BOS_ID
    # What rolled in as input after the last real one is an EOS that stands before padding only: harmless, but tidy.
    target_input[np.arange(target_input.shape[1]) >= target_lengths[:, None]] = PAD_ID
    return MicroBatch(source, source_lengths, target_input, target_output)


def pad_sentences(sentences: Sequence[NDArray[np.generic] | Sequence[int]]) -> tuple[Indices, Indices]:
    """Sentences with their end marks as one padded array, and their lengths (end marks counted)."""
    lengths = np.array([len(sentence) + 1 for sentence in sentences], dtype=np.int64)
    padded = np.full((len(sentences), int(lengths.max(initial=1))), PAD_ID, dtype=np.int64)
    for row, sentence in enumerate(sentences):
        padded[row, : len(sentence)] = sentence
        padded[row, len(sentence)] = EOS_ID
    return padded, lengths


def share_of_rank(virtual_workers: int, rank: int, size: int) -> range:
    """The virtual workers one rank computes: contiguous, and as even as can be."""
    return range(rank * virtual_workers // size, (rank + 1) * virtual_workers // size)
