"""Tests of the sequence of steps: whole epochs within the budget, the same from any position and for any rank."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus import batching
from dragoman.corpus.batching import (
    FIRST_POSITION,
    BatchPosition,
    BatchSettings,
    BatchStream,
    StepPlan,
    fixed_batches,
    pad_pairs,
    share_of_rank,
)
from dragoman.corpus.mixture import Mixture, MixtureStage
from dragoman.corpus.prepared_corpus import TrainCorpus
from dragoman.corpus.shards import ParallelIds, Shard, Shards
from dragoman.run.batch_growth import BatchGrowth
from dragoman.run.errors import UserError

Lengths = list[tuple[int, int]]
LENGTHS = [(3 + i % 17, 2 + i % 13) for i in range(400)]
ALL_ONCE = Mixture((TrainCorpus("all", 1.0, len(LENGTHS), members=None),), (MixtureStage(0, {"all": 1.0}),))


@pytest.fixture
def small_pools(monkeypatch):
    """Several pools even for a few hundred pairs."""
    monkeypatch.setattr(batching, "POOL_MICRO_BATCHES", 6)


def make_pairs(lengths: Lengths) -> SimpleNamespace:
    """Stands in for memory-mapped shards: pair i holds the ids i + 10."""
    array = np.array(lengths, np.int64).reshape(-1, 2)
    return SimpleNamespace(
        lengths=lambda indices: (array[indices, 0], array[indices, 1]),
        source=lambda i: np.full(lengths[i][0], i + 10, np.uint16),
        target=lambda i: np.full(lengths[i][1], i + 10, np.uint16),
    )


def make_settings(**changes: Any) -> BatchSettings:
    values: dict[str, Any] = {"global_batch_tokens": 200, "virtual_workers": 4, "max_tokens": 40, "seed": 1} | changes
    return BatchSettings(**values)


def make_stream(
    lengths: Lengths = LENGTHS,
    mixture: Mixture | None = None,
    position: BatchPosition = FIRST_POSITION,
    **settings: Any,
) -> BatchStream:
    counts = Counter(max(pair) for pair in lengths)
    everything = Mixture((TrainCorpus("all", 1.0, len(lengths), members=None),), (MixtureStage(0, {"all": 1.0}),))
    return BatchStream(make_pairs(lengths), counts, mixture or everything, make_settings(**settings), position)


def make_two_corpora(*stages: tuple[int, float, float]) -> Mixture:
    """Even and odd pairs of `LENGTHS`, with weights from given steps on."""
    halves = [np.arange(first, len(LENGTHS), 2) for first in (0, 1)]
    corpora = tuple(TrainCorpus(name, 1.0, 200, half) for name, half in zip(("even", "odd"), halves, strict=True))
    return Mixture(corpora, tuple(MixtureStage(step, {"even": even, "odd": odd}) for step, even, odd in stages))


def steps_of_epoch(stream: BatchStream) -> Iterator[StepPlan]:
    epoch = stream.position.epoch
    while stream.position.epoch == epoch:
        yield stream.next_step()


def pairs_of(plan: StepPlan) -> list[int]:
    return np.concatenate(plan.micro_batches).tolist()


def assert_same(plan: StepPlan, other: StepPlan) -> None:
    assert [part.tolist() for part in plan.micro_batches] == [part.tolist() for part in other.micro_batches]
    assert replace(plan, micro_batches=()) == replace(other, micro_batches=())


pair_lengths = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=300)


@given(pair_lengths, st.integers(1, 6), st.integers(0, 10), st.sampled_from([1, 3, 200]))
def test_an_epoch_holds_every_usable_pair_once_within_the_budget(lengths, virtual_workers, seed, pool_micro_batches):
    settings = {"virtual_workers": virtual_workers, "seed": seed, "global_batch_tokens": 50 * virtual_workers}
    usable = [i for i, (s, t) in enumerate(lengths) if max(s, t) + 1 <= 40]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "POOL_MICRO_BATCHES", pool_micro_batches)
        if not usable:
            with pytest.raises(UserError, match="No training pair has at most 40 subwords per side"):
                make_stream(lengths, **settings)
            return
        stream = make_stream(lengths, **settings)
        assert (stream.num_left_out, stream.longest_used) == (len(lengths) - len(usable), 40)
        seen: Counter[int] = Counter()
        while sum(seen.values()) < len(usable):
            plan = stream.next_step()
            assert len(plan.micro_batches) == virtual_workers
            for part in plan.micro_batches:
                seen.update(part.tolist())
                assert len(part) * max((max(lengths[i]) + 1 for i in part), default=0) <= 50
            assert plan.num_target_tokens == sum(lengths[i][1] + 1 for i in pairs_of(plan))
            assert plan.num_tokens == sum(sum(lengths[i]) + 2 for i in pairs_of(plan))
            assert 0 < plan.num_tokens <= plan.num_padded_tokens
        assert seen == Counter(usable)


@pytest.mark.usefixtures("small_pools")
def test_only_the_last_step_of_an_epoch_has_idle_virtual_workers():
    stream = make_stream(virtual_workers=5, global_batch_tokens=250)
    *full, last = steps_of_epoch(stream)
    assert stream.position == BatchPosition(epoch=1, step=len(full) + 1)
    assert all(len(part) for plan in full for part in plan.micro_batches)
    is_busy = [bool(len(part)) for part in last.micro_batches]
    assert is_busy == sorted(is_busy, reverse=True)
    assert is_busy[0]


@pytest.mark.usefixtures("small_pools")
@pytest.mark.parametrize("mixture", [ALL_ONCE, make_two_corpora((0, 1.3, 0.4), (33, 0.0, 2.5), (50, 1.0, 1.0))])
def test_resuming_at_any_position_continues_the_same_sequence(mixture):
    stream = make_stream(mixture=mixture)
    positions, plans = [], []
    for _ in range(90):
        positions.append(stream.position)
        plans.append(stream.next_step())
    assert stream.position.epoch >= 2
    assert max(position.pool for position in positions) >= 3
    for cut in range(90):
        resumed = make_stream(mixture=mixture, position=positions[cut])
        for step in range(cut, min(cut + 8, 90)):
            assert resumed.position == positions[step]
            assert_same(resumed.next_step(), plans[step])


GROWING: dict[str, Any] = {"global_batch_tokens": 400, "growth": BatchGrowth(100, 400, doubling_steps=25)}


@pytest.mark.usefixtures("small_pools")
def test_batches_double_with_a_new_epoch_until_they_are_full():
    stream = make_stream(**GROWING)
    tokens, epochs = [], []
    for _ in range(80):
        epochs.append(stream.position.epoch)
        plan = stream.next_step()
        tokens.append(
            max(len(part) * max((max(LENGTHS[i]) + 1 for i in part), default=0) for part in plan.micro_batches)
        )
    for begin, end, budget in ((0, 25, 25), (25, 50, 50), (50, 80, 100)):
        assert 0.8 * budget < max(tokens[begin:end]) <= budget
    assert stream.next_step() is not None
    # No epoch spans a growth: its pools were cut for one size.
    assert epochs[24] < epochs[26]
    assert epochs[49] < epochs[51]


@pytest.mark.usefixtures("small_pools")
def test_resuming_while_batches_grow_continues_the_same_sequence():
    stream = make_stream(**GROWING)
    positions, plans = [], []
    for _ in range(70):
        positions.append(stream.position)
        plans.append(stream.next_step())
    for cut in range(70):
        resumed = make_stream(position=positions[cut], **GROWING)
        for step in range(cut, min(cut + 8, 70)):
            assert resumed.position == positions[step]
            assert_same(resumed.next_step(), plans[step])


def test_pairs_that_only_the_first_batches_leave_out_are_counted_apart():
    stream = make_stream(lengths=[(3, 3)] * 50 + [(30, 30)] * 20 + [(45, 45)], **GROWING)
    assert (stream.num_left_out, stream.longest_used) == (1, 40)
    assert (stream.num_left_out_at_first, stream.longest_used_at_first) == (21, 25)
    used = [max(lengths) for _ in range(60) for lengths in [pairs_of(stream.next_step())]]
    assert max(used[:25]) < 50  # the first 50 pairs are the short ones
    assert max(used[50:]) >= 50


@pytest.mark.usefixtures("small_pools")
def test_a_resumed_stream_reads_only_its_current_pool():
    stream = make_stream(virtual_workers=2, global_batch_tokens=100)
    while stream.position.pool < 5:
        stream.next_step()
    asked: list[int] = []
    pairs = make_pairs(LENGTHS)
    read_lengths = pairs.lengths
    pairs.lengths = lambda indices: asked.append(len(indices)) or read_lengths(indices)
    counts = Counter(max(pair) for pair in LENGTHS)
    settings = make_settings(virtual_workers=2, global_batch_tokens=100)
    resumed = BatchStream(pairs, counts, ALL_ONCE, settings, stream.position)
    assert asked == []
    assert_same(resumed.next_step(), stream.next_step())
    assert sum(asked) < len(LENGTHS) / 5


@given(st.integers(1, 8), st.integers(0, 3))
def test_ranks_that_plan_separately_share_every_step(num_ranks, seed):
    streams = [make_stream(virtual_workers=8, global_batch_tokens=400, seed=seed) for _ in range(num_ranks)]
    shares = [share_of_rank(8, rank, num_ranks) for rank in range(num_ranks)]
    for expected in steps_of_epoch(make_stream(virtual_workers=8, global_batch_tokens=400, seed=seed)):
        plans = [stream.next_step() for stream in streams]
        together = [plan.micro_batches[v].tolist() for plan, share in zip(plans, shares, strict=True) for v in share]
        assert together == [part.tolist() for part in expected.micro_batches]
        assert {plan.num_target_tokens for plan in plans} == {expected.num_target_tokens}


def test_epochs_and_seeds_differ():
    first = make_stream().next_step()
    second_epoch = make_stream(position=BatchPosition(epoch=1)).next_step()
    other_seed = make_stream(seed=2).next_step()
    for other in (second_epoch, other_seed):
        assert {*first.micro_batches[0].tolist()} != {*other.micro_batches[0].tolist()}


@pytest.mark.parametrize("even", [0.0, 0.5, 1.0, 2.25])
def test_weights_decide_how_often_pairs_are_seen(even):
    seen = Counter[int]()
    for plan in steps_of_epoch(make_stream(mixture=make_two_corpora((0, even, 1.0)))):
        seen.update(pairs_of(plan))
    assert sum(seen[pair] for pair in range(0, 400, 2)) == round(200 * even)
    assert {seen[pair] for pair in range(0, 400, 2)} <= {int(even), int(-(-even // 1))}
    assert {seen[pair] for pair in range(1, 400, 2)} == {1}


@pytest.mark.usefixtures("small_pools")
def test_a_stage_begins_a_new_epoch_with_its_weights_at_its_step():
    stream = make_stream(mixture=make_two_corpora((0, 1.0, 0.0), (7, 0.0, 1.0)))
    before, after = Counter[int](), Counter[int]()
    for _ in range(7):
        before.update(pairs_of(stream.next_step()))
    assert stream.position.step == 7
    assert stream.position.epoch == 0
    after.update(pairs_of(stream.next_step()))
    assert stream.position.epoch == 1
    for plan in steps_of_epoch(stream):
        after.update(pairs_of(plan))
    assert {pair % 2 for pair in before} == {0}
    assert after == Counter(range(1, 400, 2))


def test_a_stage_that_begins_where_an_epoch_does_skips_none():
    num_steps = len(list(steps_of_epoch(make_stream(mixture=make_two_corpora((0, 1.0, 0.0))))))
    stream = make_stream(mixture=make_two_corpora((0, 1.0, 0.0), (num_steps, 0.0, 1.0)))
    for _ in range(num_steps):
        stream.next_step()
    assert {pair % 2 for pair in pairs_of(stream.next_step())} == {1}
    assert stream.position.epoch == 1


def test_a_mixture_of_nothing_but_long_pairs_is_refused_in_words():
    lengths = [(5, 5), (99, 99)]
    corpora = (TrainCorpus("short", 1.0, 1, np.array([0])), TrainCorpus("long", 1.0, 1, np.array([1])))
    stream = make_stream(lengths, Mixture(corpora, (MixtureStage(0, {"short": 0.0, "long": 1.0}),)))
    with pytest.raises(UserError, match="with a weight above 0 has at most 40 subwords"):
        stream.next_step()


def test_pools_without_a_usable_pair_are_passed_over(monkeypatch):
    monkeypatch.setattr(batching, "MAX_POOL_SIZE", 2)
    lengths = [(99, 99)] * 95 + [(5, 5)] * 5
    stream = make_stream(lengths, virtual_workers=1)
    seen = [pair for _ in range(40) for pair in pairs_of(stream.next_step())]
    assert Counter(seen[:5]) == Counter(range(95, 100))
    assert stream.position.epoch >= 7
    assert stream.position.step == 40


def test_sorting_by_length_pads_little():
    generator = np.random.default_rng(0)
    lengths = [(int(n), int(n) + 2) for n in generator.integers(3, 38, 5000)]
    stream = make_stream(lengths, global_batch_tokens=4000)
    plans = [stream.next_step() for _ in range(20)]
    padding_share = 1 - sum(p.num_tokens for p in plans) / sum(p.num_padded_tokens for p in plans)
    assert padding_share < 0.05


def test_long_and_short_micro_batches_are_mixed_within_a_pool():
    lengths = [(int(n), int(n)) for n in np.random.default_rng(0).integers(3, 38, 5000)]
    plans = list(steps_of_epoch(make_stream(lengths, virtual_workers=1, global_batch_tokens=400)))
    longest = np.array([max(lengths[i][0] for i in pairs_of(plan)) for plan in plans])
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 4 / len(plans) ** 0.5
    halves = np.array_split(longest, 2)
    assert abs(halves[0].mean() - halves[1].mean()) < 4


def test_a_large_corpus_costs_what_a_pool_costs():
    """4 billion pairs, which nothing could hold in memory or go through in a test."""
    num_pairs = 2**32
    length = np.int64(20)
    pairs = SimpleNamespace(lengths=lambda indices: (length + indices % 7, length + indices % 5))
    everything = Mixture((TrainCorpus("all", 1.0, num_pairs, members=None),), (MixtureStage(0, {"all": 1.0}),))
    position = BatchPosition(epoch=2, pool=1_000_000, micro_batch=3, step=10**9)
    stream = BatchStream(pairs, {25: num_pairs}, everything, make_settings(), position)
    assert all(0 <= pair < num_pairs for pair in pairs_of(stream.next_step()))
    assert stream.position == BatchPosition(epoch=2, pool=1_000_000, micro_batch=7, step=10**9 + 1)


def test_padded_arrays():
    batch = pad_pairs([np.array([5, 6]), np.array([7])], [np.array([8]), np.array([9, 10, 11])])
    assert batch.source.tolist() == [[5, 6, 1], [7, 1, 0]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.target_input.tolist() == [[2, 8, 0, 0], [2, 9, 10, 11]]
    assert batch.target_output.tolist() == [[8, 1, 0, 0], [9, 10, 11, 1]]


@given(st.integers(1, 64), st.integers(1, 64))
def test_ranks_share_all_virtual_workers_evenly(virtual_workers, size):
    shares = [share_of_rank(virtual_workers, rank, size) for rank in range(size)]
    assert [worker for share in shares for worker in share] == list(range(virtual_workers))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_few_pairs_of_a_large_split_take_little_memory(tmp_path: Path):
    # Sparse files: 4 million empty sentences on each side.
    num_pairs = 4_000_000
    shard = Shard(num_pairs=num_pairs, num_source_tokens=0, num_target_tokens=0)
    for side in ("source", "target"):
        (tmp_path / f"00000.{side}.ids").touch()
        with (tmp_path / f"00000.{side}.offsets").open("wb") as file:
            file.truncate(8 * (num_pairs + 1))
    pairs = ParallelIds.open(tmp_path, Shards(dtype="<u2", shards=(shard,)))
    chosen = np.arange(1_000) * (num_pairs // 1_000)
    tracemalloc.start()
    batches = fixed_batches(pairs, 100, chosen)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(np.concatenate(batches)) == chosen.tolist()
    assert peak_bytes < 4 * 2**20, "it holds more than the chosen pairs"
