"""Tests of the computed shuffle: every index once, well mixed, the same on every platform."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.permutation import MAX_SIZE, Permutation


def permute_all(size: int, *key: int | str) -> list[int]:
    return Permutation(size, key)(np.arange(size)).tolist()


@given(st.integers(1, 5_000), st.integers(0, 2**63), st.integers(0, 100))
def test_every_number_below_the_size_comes_once(size, seed, epoch):
    assert sorted(permute_all(size, seed, epoch)) == list(range(size))


@given(st.integers(1, MAX_SIZE), st.integers(0, 2**63), st.data())
def test_places_are_inside_and_differ_for_any_size(size, seed, data):
    indices = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=50))
    places = Permutation(size, (seed,))(np.array(indices, np.int64))
    assert places.dtype == np.int64
    assert len(set(places.tolist())) == len(indices)
    assert all(0 <= place < size for place in places.tolist())


@given(st.integers(1, 10**6), st.integers(0, 1_000))
def test_a_place_does_not_depend_on_the_other_indices(size, index):
    index %= size
    alone = Permutation(size, (7,))(np.array([index]))
    among_others = Permutation(size, (7,))(np.arange(index + 1))
    assert alone[0] == among_others[index]


@pytest.mark.parametrize("size", [2, 3, 5, 9])
def test_over_many_keys_each_index_goes_everywhere_equally_often(size):
    num_keys = 3_000
    counts = np.zeros((size, size))
    for key in range(num_keys):
        counts[np.arange(size), permute_all(size, key)] += 1
    expected = num_keys / size
    chi_square, freedom = ((counts - expected) ** 2 / expected).sum(), (size - 1) ** 2
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("size", [1_000, 4_097, 100_000, 2**40])
def test_neighbours_are_spread_evenly(size):
    """Places of consecutive indices fill ten bins of the range evenly, and are not correlated."""
    num_indices = min(size, 20_000)
    places = Permutation(size, (3,))(np.arange(num_indices)) / size
    parts = np.bincount((places * 10).astype(int), minlength=10)
    assert ((parts - num_indices / 10) ** 2 / (num_indices / 10)).sum() < 40
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 5 / num_indices**0.5


def test_other_keys_give_other_orders():
    orders = [permute_all(1_000, *key) for key in [(1,), (2,), (1, 0), (1, "a"), (1, "b"), ("1",), (0, 1)]]
    for number, order in enumerate(orders):
        for other in orders[:number]:
            assert sum(a == b for a, b in zip(order, other, strict=True)) < 20


def test_the_order_is_the_same_on_every_platform_for_all_time():
    """Golden: a change here would make resumed runs see other sentences."""
    assert permute_all(10, 1, 0, "epoch") == [5, 7, 6, 4, 3, 1, 0, 8, 9, 2]
    assert Permutation(2**62, (1,))(np.arange(3)).tolist() == [
        234981034203795000,
        795638504769135552,
        504453257398518083,
    ]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_any_integers_may_ask(dtype):
    assert Permutation(99, (1,))(np.arange(99, dtype=dtype)).tolist() == permute_all(99, 1)


def test_no_indices_give_no_places():
    assert Permutation(99, (1,))(np.arange(0)).tolist() == []


@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_impossible_sizes_are_programmer_errors(size):
    with pytest.raises(AssertionError):
        Permutation(size, ())


def test_it_takes_less_than_a_microsecond_per_index():
    """Measured: 0.05 to 0.2 µs per index; the best of five leaves room for a busy machine."""
    shuffle, indices = (
        Permutation(2**25 + 1, (1,)),
        np.arange(100_000),
    )  # the worst size: half are permuted twice
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        shuffle(indices)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.1
