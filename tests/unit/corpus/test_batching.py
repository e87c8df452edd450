from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.batching import BatchPosition, BatchSettings, BatchStream, pad_pairs, share_of_rank
from dragoman.run.errors import UserError


def make_pairs(lengths: list[tuple[int, int]]) -> SimpleNamespace:
    """Stands in for memory-mapped shards: pair i holds the ids i + 10."""
    return SimpleNamespace(
        source_lengths=np.array([s for s, _ in lengths], np.int32),
        target_lengths=np.array([t for _, t in lengths], np.int32),
        source=lambda i: np.full(lengths[i][0], i + 10, np.uint16),
        target=lambda i: np.full(lengths[i][1], i + 10, np.uint16),
    )


def make_settings(**changes: int) -> BatchSettings:
    values = {"global_batch_tokens": 200, "virtual_workers": 4, "max_tokens": 40, "seed": 1} | changes
    return BatchSettings(**values)


pair_lengths = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=300)


@given(pair_lengths, st.integers(1, 6), st.integers(0, 10))
def test_an_epoch_holds_every_usable_pair_once_within_the_budget(lengths, virtual_workers, seed):
    settings = make_settings(virtual_workers=virtual_workers, seed=seed, global_batch_tokens=50 * virtual_workers)
    pairs = make_pairs(lengths)
    usable = [i for i, (s, t) in enumerate(lengths) if max(s, t) + 1 <= 40]
    if not usable:
        with pytest.raises(UserError, match="No training pair"):
            BatchStream(pairs, settings)
        return
    stream = BatchStream(pairs, settings)
    assert stream.num_left_out == len(lengths) - len(usable)
    seen: Counter[int] = Counter()
    while stream.position.epoch == 0:
        plan = stream.next_step()
        assert len(plan.parts) == virtual_workers
        for part in plan.parts:
            seen.update(part.tolist())
            longest = max((max(lengths[i]) + 1 for i in part), default=0)
            assert len(part) * longest <= settings.micro_batch_tokens
        assert plan.num_target_tokens == sum(lengths[i][1] + 1 for part in plan.parts for i in part)
        assert 0 < plan.num_tokens <= plan.num_padded_tokens
    assert seen == Counter(usable)


def test_resuming_at_any_position_continues_the_same_sequence():
    lengths = [(3 + i % 17, 2 + i % 13) for i in range(400)]
    stream = BatchStream(make_pairs(lengths), make_settings())
    plans = [(stream.next_step(), stream.position) for _ in range(70)]
    assert stream.position.epoch >= 1
    for cut in (0, 1, 13, 50):
        resumed = BatchStream(make_pairs(lengths), make_settings(), plans[cut][1])
        for expected, position_after in plans[cut + 1 :]:
            found = resumed.next_step()
            assert all((a == b).all() for a, b in zip(expected.parts, found.parts, strict=True))
            assert resumed.position == position_after


def test_epochs_and_seeds_differ():
    lengths = [(3 + i % 17, 2 + i % 13) for i in range(400)]
    first = BatchStream(make_pairs(lengths), make_settings()).next_step()
    second_epoch = BatchStream(make_pairs(lengths), make_settings(), BatchPosition(1, 0)).next_step()
    other_seed = BatchStream(make_pairs(lengths), make_settings(seed=2)).next_step()
    for other in (second_epoch, other_seed):
        assert {*first.parts[0].tolist()} != {*other.parts[0].tolist()}


def test_sorting_by_length_pads_little():
    generator = np.random.default_rng(0)
    lengths = [(int(n), int(n) + 2) for n in generator.integers(3, 38, 5000)]
    stream = BatchStream(make_pairs(lengths), make_settings(global_batch_tokens=4000))
    plans = [stream.next_step() for _ in range(20)]
    padding_share = 1 - sum(p.num_tokens for p in plans) / sum(p.num_padded_tokens for p in plans)
    assert padding_share < 0.05


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
