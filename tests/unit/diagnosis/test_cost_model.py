"""The arithmetic of communication: against figures measured on the rig, its page of examples, and its own limits."""

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.step_model import (
    Link,
    bucket_ready_times,
    bucket_sizes,
    exposed_seconds,
    hidden_seconds,
    hierarchical_all_reduce_seconds,
    overlap_ends,
    packed_ring_all_reduce_seconds,
    ring_all_reduce_seconds,
    ring_bytes_per_node,
    tcp_goodput,
)

ROOT = Path(__file__).parents[3]
GRADIENT_BYTES = 60_880_896 * 4
RIG_INSIDE, RIG_BETWEEN = Link(5e-5, 1.6e9), Link(1e-4, 12.5e6 * tcp_goodput())
RIG_BYTES = 8.39e6

links = st.builds(Link, st.floats(0, 1e-2), st.floats(1e3, 1e12))
travels = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20)


def test_every_example_of_the_page_is_true():
    result = doctest.testfile(str(ROOT / "docs" / "cost-model.md"), module_relative=False)
    assert result.attempted > 15
    assert result.failed == 0


def test_a_ring_by_hand():
    assert ring_all_reduce_seconds(400, 4, Link(0.5, 100)) == pytest.approx(6 * 0.5 + 1.5 * 4)
    assert ring_all_reduce_seconds(400, 1, Link(0.5, 100)) == 0


def test_bytes_of_the_seeds_cluster():
    assert ring_bytes_per_node(GRADIENT_BYTES, 4, 2) == pytest.approx(365.3e6, rel=1e-4)
    assert ring_bytes_per_node(GRADIENT_BYTES, 4, 2, is_interleaved=True) == pytest.approx(730.6e6, rel=1e-4)
    assert ring_bytes_per_node(GRADIENT_BYTES, 2, 2) == 0


def test_figures_measured_between_two_hosts_come_out_within_a_tenth():
    """FACTS §10: gloo, 2 hosts × 2 workers, 100 Mbit/s."""
    packed = packed_ring_all_reduce_seconds(RIG_BYTES, 2, 2, RIG_INSIDE, RIG_BETWEEN)
    interleaved = packed_ring_all_reduce_seconds(RIG_BYTES, 2, 2, RIG_INSIDE, RIG_BETWEEN, is_interleaved=True)
    hierarchical = hierarchical_all_reduce_seconds(RIG_BYTES, 2, 2, RIG_INSIDE, RIG_BETWEEN)
    assert packed == pytest.approx(1.085, rel=0.1)
    assert interleaved == pytest.approx(2.235, rel=0.1)
    assert hierarchical == pytest.approx(0.751, rel=0.1)


def test_goodput_says_which_bytes_count():
    assert tcp_goodput() == 1448 / 1514
    assert tcp_goodput(frame_overhead_bytes=38) == 1448 / 1538
    assert tcp_goodput(9000) > 0.99


@given(st.floats(1, 1e12), st.integers(1, 50), links, links)
def test_one_rank_a_node_and_one_node_are_plain_rings(num_bytes, number, inside, between):
    alone = packed_ring_all_reduce_seconds(num_bytes, 1, number, inside, between)
    assert alone == pytest.approx(ring_all_reduce_seconds(num_bytes, number, inside))
    if number > 1:
        apart = packed_ring_all_reduce_seconds(num_bytes, number, 1, inside, between)
        assert apart == pytest.approx(ring_all_reduce_seconds(num_bytes, number, between))


@given(st.floats(1, 1e12), st.integers(2, 50), st.integers(1, 16), st.floats(0, 1e-2), st.floats(1e3, 1e12))
def test_packed_ranks_are_never_slower_than_interleaved_ones(num_bytes, num_nodes, per_node, latency, rate):
    inside, between = Link(latency / 2, rate * 2), Link(latency, rate)
    packed, interleaved = (
        packed_ring_all_reduce_seconds(num_bytes, num_nodes, per_node, inside, between, is_interleaved=flag)
        for flag in (False, True)
    )
    assert packed <= interleaved * (1 + 1e-9)


@given(st.integers(1, 10**9), st.integers(10**5, 10**8))
def test_buckets_hold_everything_once(num_bytes, bucket_bytes):
    sizes = bucket_sizes(num_bytes, bucket_bytes)
    assert sum(sizes) == num_bytes
    assert all(0 < size <= bucket_bytes for size in sizes)
    ready = bucket_ready_times(sizes, 1.0, 2.0)
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(3.0)


@given(travels)
def test_buckets_travel_one_at_a_time_and_never_before_they_are_ready(travels):
    ready, seconds = [list(column) for column in zip(*travels, strict=True)]
    ends = overlap_ends(ready, seconds)
    assert ends == sorted(ends)
    assert all(end >= at + travel for end, at, travel in zip(ends, ready, seconds, strict=True))
    assert ends[-1] <= max(ready) + sum(seconds) + 1e-6


@given(travels, st.floats(0, 100))
def test_hidden_and_exposed_are_all_travelling_once_everything_is_ready(travels, later):
    ready, seconds = [list(column) for column in zip(*travels, strict=True)]
    compute_end = max(ready) + later
    parts = hidden_seconds(ready, seconds, compute_end) + exposed_seconds(ready, seconds, compute_end)
    assert parts == pytest.approx(sum(seconds), abs=1e-6)


def test_nothing_to_send_costs_nothing():
    assert overlap_ends([], []) == []
    assert exposed_seconds([], [], 3.0) == 0
    assert hidden_seconds([], [], 3.0) == 0
