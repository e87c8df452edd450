"""Pairs to batches: which pairs each virtual worker learns from at each step.

The plan depends on the seed, the settings and the corpus, never on how many ranks there are, and is made a pool at a
time: the next pairs of the shuffled epoch are sorted by length (so that little is padded), cut into micro-batches under
the token budget of a virtual worker, and these shuffled; each step takes the next `virtual_workers` of them.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.mixture import EpochOrder, Mixture
from dragoman.corpus.permutation import Permutation
from dragoman.corpus.shards import ParallelIds
from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID
from dragoman.run.errors import UserError

POOL_MICRO_BATCHES = 200
"""Micro-batches' worth of pairs that are sorted together: more pads less, but mixes lengths less freely."""
MAX_POOL_SIZE = 400_000
"""However large the budget: this many take 0.3 s and 20 MB to plan. Reached with micro-batches of 59,000 tokens."""

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

    @property
    def longest_used(self) -> int:
        """Pieces a side, end mark included, that a pair may have to be learned from."""
        return min(self.max_tokens, self.micro_batch_tokens)


@dataclass(frozen=True)
class BatchPosition:
    """Where in the endless sequence of steps a run stands; all a resume needs."""

    epoch: int = 0
    pool: int = 0
    micro_batch: int = 0
    """The next one to take, within the pool."""
    step: int = 0
    """Steps taken so far."""

    @property
    def is_epoch_begin(self) -> bool:
        """Whether nothing of the epoch was taken yet."""
        return self.pool == self.micro_batch == 0

    def next_epoch(self) -> "BatchPosition":
        """The beginning of the epoch after this one."""
        return BatchPosition(self.epoch + 1, step=self.step)


FIRST_POSITION = BatchPosition()


@dataclass(frozen=True)
class PlannedMicroBatch:
    """The pairs of one virtual worker, and how many tokens they will be."""

    pairs: Indices
    num_target_tokens: int
    num_padded_tokens: int
    num_tokens: int


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


@dataclass(frozen=True)
class EpochPlan:
    """The micro-batches of one epoch, planned a pool at a time."""

    pairs: ParallelIds
    order: EpochOrder
    settings: BatchSettings
    wanted_pool_size: int

    @property
    def num_pools(self) -> int:
        """Pools are of equal size: a small last one would pad more than the others."""
        return max(1, round(self.order.num_draws / self.wanted_pool_size))

    def plan_pool(self, pool: int) -> list[PlannedMicroBatch]:
        """The micro-batches of one pool in the order they are taken; none if all its pairs are too long."""
        begin, end = (number * self.order.num_draws // self.num_pools for number in (pool, pool + 1))
        drawn = self.order.pairs(begin, end)
        source, target = (lengths + 1 for lengths in self.pairs.lengths(drawn))
        longer = np.maximum(source, target)
        # Stable, so that equal lengths stay in shuffled order; the source breaks ties to pad it less.
        by_length = np.lexsort((source, longer))
        by_length = by_length[longer[by_length] <= self.settings.longest_used]
        cuts = _cut_by_budget(by_length, longer[by_length], self.settings.micro_batch_tokens)
        if not cuts:
            return []
        shuffle = Permutation(len(cuts), (self.order.seed, self.order.epoch, "micro-batches", pool))
        shuffled = (cuts[place] for place in shuffle(np.arange(len(cuts))))
        return [_plan_micro_batch(drawn[cut], source[cut], target[cut]) for cut in shuffled]


def _plan_micro_batch(pairs: Indices, source_lengths: Indices, target_lengths: Indices) -> PlannedMicroBatch:
    num_source_tokens, num_target_tokens = int(source_lengths.sum()), int(target_lengths.sum())
    num_padded_tokens = len(pairs) * int(source_lengths.max() + target_lengths.max())
    return PlannedMicroBatch(pairs, num_target_tokens, num_padded_tokens, num_source_tokens + num_target_tokens)


class BatchStream:
    """The endless sequence of steps over a mixture of corpora, from any position on."""

    def __init__(
        self,
        pairs: ParallelIds,
        length_counts: Mapping[int, int],
        mixture: Mixture,
        settings: BatchSettings,
        position: BatchPosition = FIRST_POSITION,
    ) -> None:
        """`length_counts`: how many training pairs have a longer side of so many pieces, end mark not counted."""
        self._pairs = pairs
        self._mixture = mixture
        self._settings = settings
        self._position = position
        usable = {length + 1: num for length, num in length_counts.items() if length < settings.longest_used}
        self.num_left_out = sum(length_counts.values()) - sum(usable.values())
        self.longest_used = settings.longest_used
        if not usable:
            raise _nothing_usable(settings, "No training pair")
        self._wanted_pool_size = _choose_pool_size(usable, sum(length_counts.values()), settings.micro_batch_tokens)
        self._epoch_plan: EpochPlan | None = None
        self._pool: list[PlannedMicroBatch] | None = None

    @property
    def position(self) -> BatchPosition:
        """Where the next step begins."""
        return self._position

    def next_step(self) -> StepPlan:
        """The next step's pairs; moves on, into a new epoch where this one ends or a stage begins."""
        if self._mixture.is_stage_begin(self._position.step) and not self._position.is_epoch_begin:
            self._begin_next_epoch()
        # Where all that was left of an epoch is too long, the step begins with the next one.
        taken = self._take_from_epoch() or self._take_from_epoch()
        if not taken:
            raise _nothing_usable(self._settings, "No pair of the training corpora with a weight above 0")
        self._position = replace(self._position, step=self._position.step + 1)
        return _describe_step(taken, self._settings.virtual_workers)

    def micro_batch(self, part: Indices) -> MicroBatch:
        """Reads and pads the pairs of one virtual worker."""
        return pad_pairs([self._pairs.source(i) for i in part], [self._pairs.target(i) for i in part])

    def _take_from_epoch(self) -> list[PlannedMicroBatch]:
        """The next `virtual_workers` micro-batches, from as many pools as they need; fewer if the epoch ends before."""
        taken: list[PlannedMicroBatch] = []
        epoch, width = self._position.epoch, self._settings.virtual_workers
        while len(taken) < width and self._position.epoch == epoch:
            plan, pool = self._plan_current()
            begin = self._position.micro_batch
            end = min(begin + width - len(taken), len(pool))
            taken += pool[begin:end]
            if end < len(pool):
                self._position = replace(self._position, micro_batch=end)
            elif self._position.pool + 1 < plan.num_pools:
                self._begin_next_pool()
            else:
                self._begin_next_epoch()
        return taken

    def _plan_current(self) -> tuple[EpochPlan, list[PlannedMicroBatch]]:
        """The plan of the epoch and of the pool the stream stands in; nothing before or after is looked at."""
        if self._epoch_plan is None:
            order = self._mixture.epoch_order(self._position.step, self._settings.seed, self._position.epoch)
            self._epoch_plan = EpochPlan(self._pairs, order, self._settings, self._wanted_pool_size)
        if self._pool is None:
            self._pool = self._epoch_plan.plan_pool(self._position.pool)
        return self._epoch_plan, self._pool

    def _begin_next_pool(self) -> None:
        self._position = replace(self._position, pool=self._position.pool + 1, micro_batch=0)
        self._pool = None

    def _begin_next_epoch(self) -> None:
        self._position = self._position.next_epoch()
        self._epoch_plan = self._pool = None


def _choose_pool_size(usable_counts: Mapping[int, int], num_pairs: int, micro_batch_tokens: int) -> int:
    """Draws that make about `POOL_MICRO_BATCHES` micro-batches, those that will be left out counted in."""
    tokens_per_draw = sum(length * num for length, num in usable_counts.items()) / num_pairs
    return min(MAX_POOL_SIZE, max(1, int(POOL_MICRO_BATCHES * micro_batch_tokens / tokens_per_draw)))


def _nothing_usable(settings: BatchSettings, no_pair: str) -> UserError:
    return UserError(
        f"{no_pair} has at most {settings.longest_used} pieces a side. Raise data.max_tokens, or give each virtual "
        "worker more with training.global_batch_tokens."
    )


def _describe_step(taken: Sequence[PlannedMicroBatch], virtual_workers: int) -> StepPlan:
    parts = [planned.pairs for planned in taken] + [np.zeros(0, np.int64)] * (virtual_workers - len(taken))
    return StepPlan(
        tuple(parts),
        sum(planned.num_target_tokens for planned in taken),
        sum(planned.num_padded_tokens for planned in taken),
        sum(planned.num_tokens for planned in taken),
    )


def fixed_batches(pairs: ParallelIds, budget: int, chosen: Indices | None = None) -> list[Indices]:
    """Every pair of a split once, or every chosen one, whatever its length, in batches that depend on nothing else."""
    chosen = np.arange(pairs.num_pairs) if chosen is None else chosen
    longer_side = np.maximum(pairs.source_lengths[chosen], pairs.target_lengths[chosen]).astype(np.int64) + 1
    by_length = np.argsort(longer_side, kind="stable")
    return _cut_by_budget(chosen[by_length], longer_side[by_length], budget)


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
