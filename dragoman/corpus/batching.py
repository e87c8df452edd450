"""Decides which pairs each virtual worker trains on at each step.

The plan depends on the seed, the settings and the corpus, never on the number of ranks. It is made one pool at a time:
the next pairs of the shuffled epoch are sorted by length (for little padding) and cut into micro-batches within the
token budget of a virtual worker; the micro-batches are shuffled, and each step takes the next `virtual_workers`.
Where the global batch grows, a new epoch begins with the larger budget.
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
from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.errors import UserError

POOL_MICRO_BATCHES = 200
"""Number of micro-batches whose pairs are sorted together: more means less padding, but less random lengths."""
MAX_POOL_SIZE = 400_000
"""Largest number of pairs in a pool: planning takes 0.3 s and 20 MB. Reached at 59,000 tokens per micro-batch."""

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class BatchSettings:
    """Settings that decide the plan, besides the corpus."""

    global_batch_tokens: int
    virtual_workers: int
    max_tokens: int
    seed: int
    growth: BatchGrowth | None = None
    """How the global batch grows to `global_batch_tokens`; None where it has that size from the first step on."""

    def at(self, step: int) -> "BatchSettings":
        """Returns the settings of the step that follows `step` finished ones, without growth."""
        tokens = self.growth.tokens_at(step) if self.growth else self.global_batch_tokens
        return replace(self, global_batch_tokens=tokens, growth=None)

    def is_growing(self, step: int) -> bool:
        """Whether the step that follows `step` finished ones is larger than the one before it."""
        return self.growth is not None and self.growth.is_growing(step)

    @property
    def micro_batch_tokens(self) -> int:
        """Token budget of one virtual worker."""
        return self.global_batch_tokens // self.virtual_workers

    @property
    def longest_used(self) -> int:
        """Longest side of a pair that is used, in subwords with EOS."""
        return min(self.max_tokens, self.micro_batch_tokens)


@dataclass(frozen=True)
class BatchPosition:
    """Position of a run in the endless sequence of steps; a resume needs nothing else."""

    epoch: int = 0
    pool: int = 0
    micro_batch: int = 0
    """Index, within the pool, of the next micro-batch."""
    step: int = 0
    """Number of steps so far."""

    @property
    def is_epoch_begin(self) -> bool:
        """Whether the epoch has not started yet."""
        return self.pool == self.micro_batch == 0

    def next_epoch(self) -> "BatchPosition":
        """Position at the beginning of the next epoch."""
        return BatchPosition(self.epoch + 1, step=self.step)


FIRST_POSITION = BatchPosition()


@dataclass(frozen=True)
class PlannedMicroBatch:
    """Pairs of one micro-batch, and their numbers of tokens."""

    pairs: Indices
    num_target_tokens: int
    num_padded_tokens: int
    num_tokens: int


@dataclass(frozen=True)
class StepPlan:
    """Pairs of one global batch."""

    micro_batches: tuple[Indices, ...]
    """Pairs of each virtual worker; in the last step of an epoch, some may be empty."""
    num_target_tokens: int
    """Target tokens of the whole batch, EOS included; every rank knows it without communication."""
    num_padded_tokens: int
    """Computed positions of source and target, padding included."""
    num_tokens: int
    """Computed positions that hold a token."""
    target_tokens_by_worker: tuple[int, ...] = ()
    """Target tokens of each virtual worker."""


@dataclass(frozen=True)
class MicroBatch:
    """Padded arrays of one virtual worker: sources end with EOS, target inputs begin with BOS, outputs end with EOS."""

    source: Indices
    source_lengths: Indices
    target_input: Indices
    target_output: Indices

    @property
    def num_target_tokens(self) -> int:
        """Number of target tokens, EOS included and padding not."""
        return int(np.count_nonzero(self.target_output != PAD_ID))

    def first_pair(self) -> "MicroBatch":
        """Returns the first pair alone, without padding."""
        return self.select(slice(0, 1))

    def select(self, rows: slice) -> "MicroBatch":
        """Returns some of the pairs, without the padding that only others need."""
        lengths, target_output = self.source_lengths[rows], self.target_output[rows]
        num_source, num_target = int(lengths.max()), int((target_output != PAD_ID).sum(1).max())
        return MicroBatch(
            self.source[rows, :num_source],
            lengths,
            self.target_input[rows, :num_target],
            target_output[:, :num_target],
        )


@dataclass(frozen=True)
class EpochPlan:
    """Plan of the micro-batches of one epoch, one pool at a time."""

    pairs: ParallelIds
    order: EpochOrder
    settings: BatchSettings
    wanted_pool_size: int

    @property
    def num_pools(self) -> int:
        """Number of pools of equal size; a small last pool would need more padding."""
        return max(1, round(self.order.num_draws / self.wanted_pool_size))

    def plan_pool(self, pool: int) -> list[PlannedMicroBatch]:
        """Plans the micro-batches of one pool, in the order of use; none if all its pairs are too long."""
        begin, end = (number * self.order.num_draws // self.num_pools for number in (pool, pool + 1))
        drawn = self.order.pairs(begin, end)
        source, target = (lengths + 1 for lengths in self.pairs.lengths(drawn))
        longer = np.maximum(source, target)
        by_length = _sort_for_little_padding(source, target)
        by_length = by_length[longer[by_length] <= self.settings.longest_used]
        cuts = _cut_by_budget(by_length, longer[by_length], self.settings.micro_batch_tokens)
        if not cuts:
            return []
        shuffle = Permutation(len(cuts), (self.order.seed, self.order.epoch, "micro-batches", pool))
        shuffled = (cuts[place] for place in shuffle(np.arange(len(cuts))))
        return [_plan_micro_batch(drawn[cut], source[cut], target[cut]) for cut in shuffled]


def _sort_for_little_padding(source: Indices, target: Indices) -> Indices:
    """Sorts pairs by their longer side, then by how much longer the source is, rising and falling by turns.

    So both lengths of neighbours are alike. Stable: pairs of equal lengths stay in shuffled order.
    """
    longer = np.maximum(source, target)
    return np.lexsort(((source - target) * np.where(longer % 2, 1, -1), longer))


def _plan_micro_batch(pairs: Indices, source_lengths: Indices, target_lengths: Indices) -> PlannedMicroBatch:
    num_source_tokens, num_target_tokens = int(source_lengths.sum()), int(target_lengths.sum())
    num_padded_tokens = len(pairs) * int(source_lengths.max() + target_lengths.max())
    return PlannedMicroBatch(pairs, num_target_tokens, num_padded_tokens, num_source_tokens + num_target_tokens)


class BatchStream:
    """Endless sequence of steps over a mixture of corpora, from any position."""

    def __init__(
        self,
        pairs: ParallelIds,
        length_counts: Mapping[int, int],
        mixture: Mixture,
        settings: BatchSettings,
        position: BatchPosition = FIRST_POSITION,
    ) -> None:
        """`length_counts`: number of training pairs by number of subwords of the longer side, EOS not counted."""
        self._pairs = pairs
        self._mixture = mixture
        self._settings = settings
        self._position = position
        self._length_counts = length_counts
        self.longest_used = settings.longest_used
        self.longest_used_at_first = settings.at(0).longest_used
        self.num_left_out = self._count_longer_than(self.longest_used)
        self.num_left_out_at_first = self._count_longer_than(self.longest_used_at_first)
        if self.num_left_out_at_first == sum(length_counts.values()):
            raise _nothing_usable(settings.at(0), "No training pair")
        self._epoch_plan: EpochPlan | None = None
        self._pool: list[PlannedMicroBatch] | None = None

    @property
    def position(self) -> BatchPosition:
        """Position at which the next step begins."""
        return self._position

    def next_step(self) -> StepPlan:
        """Returns the next step and advances; a new epoch begins when this one ends, a stage begins or batches grow."""
        step = self._position.step
        is_change = self._mixture.is_stage_begin(step) or self._settings.is_growing(step)
        if is_change and not self._position.is_epoch_begin:
            self._begin_next_epoch()
        # If all remaining pairs of an epoch are too long, the step begins with the next epoch.
        taken = self._take_from_epoch() or self._take_from_epoch()
        if not taken:
            raise _nothing_usable(self._settings.at(step), "No pair of the training corpora with a weight above 0")
        self._position = replace(self._position, step=self._position.step + 1)
        return _describe_step(taken, self._settings.virtual_workers)

    def micro_batch(self, pairs: Indices) -> MicroBatch:
        """Reads and pads the pairs of one virtual worker."""
        return pad_pairs([self._pairs.source(i) for i in pairs], [self._pairs.target(i) for i in pairs])

    def _count_longer_than(self, num_subwords: int) -> int:
        return sum(num for length, num in self._length_counts.items() if length + 1 > num_subwords)

    def _take_from_epoch(self) -> list[PlannedMicroBatch]:
        """Takes the next `virtual_workers` micro-batches, from one or more pools; fewer if the epoch ends."""
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
        """Plans the current epoch and pool only."""
        if self._epoch_plan is None:
            order = self._mixture.epoch_order(self._position.step, self._settings.seed, self._position.epoch)
            settings = self._settings.at(self._position.step)
            self._epoch_plan = EpochPlan(self._pairs, order, settings, _choose_pool_size(self._length_counts, settings))
        if self._pool is None:
            self._pool = self._epoch_plan.plan_pool(self._position.pool)
        return self._epoch_plan, self._pool

    def _begin_next_pool(self) -> None:
        self._position = replace(self._position, pool=self._position.pool + 1, micro_batch=0)
        self._pool = None

    def _begin_next_epoch(self) -> None:
        self._position = self._position.next_epoch()
        self._epoch_plan = self._pool = None


def _choose_pool_size(length_counts: Mapping[int, int], settings: BatchSettings) -> int:
    """Number of draws for about `POOL_MICRO_BATCHES` micro-batches, including pairs that will be left out."""
    usable = [(length + 1) * num for length, num in length_counts.items() if length < settings.longest_used]
    tokens_per_draw = sum(usable) / sum(length_counts.values())
    return min(MAX_POOL_SIZE, max(1, int(POOL_MICRO_BATCHES * settings.micro_batch_tokens / tokens_per_draw)))


def _nothing_usable(settings: BatchSettings, no_pair: str) -> UserError:
    return UserError(
        f"{no_pair} has at most {settings.longest_used} subwords per side. Raise data.max_tokens, or give each virtual "
        "worker more tokens with training.global_batch_tokens and training.initial_batch_tokens."
    )


def _describe_step(taken: Sequence[PlannedMicroBatch], virtual_workers: int) -> StepPlan:
    micro_batches = [planned.pairs for planned in taken] + [np.zeros(0, np.int64)] * (virtual_workers - len(taken))
    return StepPlan(
        tuple(micro_batches),
        sum(planned.num_target_tokens for planned in taken),
        sum(planned.num_padded_tokens for planned in taken),
        sum(planned.num_tokens for planned in taken),
        (*(planned.num_target_tokens for planned in taken), *[0] * (virtual_workers - len(taken))),
    )


def fixed_batches(pairs: ParallelIds, budget: int, chosen: Indices | None = None) -> list[Indices]:
    """Returns batches that hold each pair of a split, or each chosen pair, once; the same for every run."""
    chosen = np.arange(pairs.num_pairs) if chosen is None else chosen
    longer_side = np.maximum(*pairs.lengths(chosen)) + 1
    by_length = np.argsort(longer_side, kind="stable")
    return _cut_by_budget(chosen[by_length], longer_side[by_length], budget)


def _cut_by_budget(sorted_pairs: Indices, rising_lengths: Indices, budget: int) -> list[Indices]:
    """Cuts sorted pairs into the fewest batches whose size times longest length stays within the budget."""
    cuts = []
    begin = 0
    while begin < len(sorted_pairs):
        # count * length of the last grows with count, so bisection finds the largest count that fits.
        counts = range(1, len(sorted_pairs) - begin + 1)
        fitting = bisect_right(counts, budget, key=lambda count, first=begin: count * rising_lengths[first + count - 1])  # type: ignore[misc]
        end = begin + max(1, fitting)
        cuts.append(sorted_pairs[begin:end])
        begin = end
    return cuts


def pad_pairs(sources: Sequence[NDArray[np.generic]], targets: Sequence[NDArray[np.generic]]) -> MicroBatch:
    """Pads sentences into the arrays of a model, and adds BOS and EOS."""
    source, source_lengths = pad_sentences(sources)
    target_output, target_lengths = pad_sentences(targets)
    target_input = np.roll(target_output, 1, axis=1)
    target_input[:, 0] = BOS_ID
    # The roll left an EOS before the padding; no output is predicted from it, but padding should be all PAD.
    target_input[np.arange(target_input.shape[1]) >= target_lengths[:, None]] = PAD_ID
    return MicroBatch(source, source_lengths, target_input, target_output)


def pad_sentences(sentences: Sequence[NDArray[np.generic] | Sequence[int]]) -> tuple[Indices, Indices]:
    """Returns sentences with EOS as one padded array, and their lengths with EOS."""
    lengths = np.array([len(sentence) + 1 for sentence in sentences], dtype=np.int64)
    padded = np.full((len(sentences), int(lengths.max(initial=1))), PAD_ID, dtype=np.int64)
    for row, sentence in enumerate(sentences):
        padded[row, : len(sentence)] = sentence
        padded[row, len(sentence)] = EOS_ID
    return padded, lengths


def share_of_rank(virtual_workers: int, rank: int, size: int) -> range:
    """Virtual workers that one rank computes: contiguous, and as evenly shared as possible."""
    return range(rank * virtual_workers // size, (rank + 1) * virtual_workers // size)
