"""The step model: what limits a step, the exchange of gradients beside backward, links and all-reduces."""

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.step_model import (
    BOTTLENECK_SHARE,
    BOTTLENECKS,
    PARTS,
    Link,
    Step,
    add_exchange,
    bucket_ready_times,
    bucket_sizes,
    overlap_with_backward,
    packed_ring_all_reduce_seconds,
    ring_all_reduce_seconds,
    ring_bytes_per_node,
    tcp_goodput,
)

ROOT = Path(__file__).parents[3]
GRADIENT_BYTES = 60_880_896 * 4
RIG_INSIDE, RIG_BETWEEN = Link(5e-5, 1.6e9), Link(1e-4, 12.5e6 * tcp_goodput())
RIG_BYTES = 8.39e6
RANK_PARTS = ("data", "forward", "backward", "optimizer", "checkpoint", "waiting")
OWN_WORK = ("data", "forward", "backward", "optimizer", "checkpoint")
seconds = st.just(0.0) | st.floats(1e-9, 1e6)
part_tables = st.dictionaries(st.sampled_from(PARTS), seconds)
steps = st.builds(
    Step,
    part_tables,
    st.none() | st.dictionaries(st.sampled_from(RANK_PARTS), seconds),
    st.lists(seconds, max_size=8),
    st.floats(0, 1),
)

links = st.builds(Link, st.floats(0, 1e-2), st.floats(1e3, 1e12))
transfers = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20)


def step_of(ranks: list[dict[str, float]], network: float = 0.05, fixed_share: float = 0.0) -> Step:
    """A step of ranks with these parts, which then wait for the slowest and for the network."""
    work = [sum(rank.get(name, 0.0) for name in OWN_WORK) for rank in ranks]
    slowest = max(range(len(ranks)), key=work.__getitem__)
    names = {name for rank in ranks for name in rank}
    mean = {name: sum(rank.get(name, 0.0) for rank in ranks) / len(ranks) for name in names}
    waits = {
        "exposed_communication": network,
        "straggler": sum(max(work) - each for each in work) / len(work),
    }
    return Step(mean | waits, ranks[slowest] | {"waiting": network}, work, fixed_share)


def alike(num_ranks: int, **changes: float) -> list[dict[str, float]]:
    return [{"forward": 0.3, "backward": 0.6, "optimizer": 0.05, "data": 0.01} | changes for _ in range(num_ranks)]


def one_differs(num_ranks: int, which: int, **changes: float) -> list[dict[str, float]]:
    ranks = alike(num_ranks)
    ranks[which] |= changes
    return ranks


@pytest.mark.parametrize(
    ("step", "verdict"),
    [
        (step_of(alike(2)), "compute"),
        (step_of(alike(1), network=0.0), "compute"),
        (step_of(alike(2), network=2.0), "network"),
        (step_of(alike(2, data=2.0)), "input"),
        (step_of(one_differs(2, 1, data=0.8)), "input"),
        (step_of(one_differs(8, 3, data=0.8)), "input"),
        (step_of(alike(2, evaluation=1.0)), "overhead"),
        (step_of(one_differs(2, 0, checkpoint=0.8)), "overhead"),
        (step_of(one_differs(8, 0, checkpoint=0.8)), "overhead"),
        (step_of(alike(2, optimizer=0.8)), "overhead"),
        (step_of(alike(2, other=0.8)), "overhead"),
        (step_of(alike(2), fixed_share=0.8), "overhead"),
        (step_of(one_differs(2, 1, forward=0.7, backward=1.2)), "straggler"),
        (step_of(one_differs(8, 7, forward=0.7, backward=1.2)), "straggler"),
        (step_of(one_differs(8, 7, forward=0.7, backward=1.2), network=3.0), "network"),
    ],
)
def test_every_cause_is_found(step, verdict):
    assert step.bottleneck == verdict
    assert step.costs.margin > 0


@pytest.mark.parametrize(
    ("network", "bottleneck"), [(0.29, "compute"), (0.31, "network"), (0.35, "network"), (0.60, "network")]
)
def test_network_is_the_bottleneck_from_three_tenths_on_though_computing_takes_more(network, bottleneck):
    assert (
        Step({"forward": 0.95 - network, "optimizer": 0.05, "exposed_communication": network}).bottleneck == bottleneck
    )


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize(
    ("changes", "cause", "saved"),
    [({"data": 0.81}, "input", 0.81), ({"checkpoint": 0.8}, "overhead", 0.85), ({"backward": 1.4}, "straggler", 0.8)],
)
def test_a_delay_of_one_rank_counts_once_and_in_full(num_ranks, changes, cause, saved):
    """Without the delay every rank would finish that much sooner, although the mean over ranks hides it."""
    step = step_of(one_differs(num_ranks, 0, **changes))
    costs = step.costs
    assert costs.seconds[cause] == pytest.approx(saved)
    assert sum(costs.seconds.values()) == pytest.approx(step.seconds)
    assert costs.excess_of_slowest == pytest.approx(0.8)


def test_ranks_that_are_slow_in_turn_have_no_excess():
    step = Step({"forward": 1.0, "straggler": 0.6}, {"forward": 1.01}, [1.01, 1.0, 0.99, 1.0])
    costs = step.costs
    assert costs.bottleneck == "straggler"
    assert costs.excess_of_slowest < step.parts["straggler"]
    assert costs.seconds["straggler"] == pytest.approx(0.6)


def test_a_little_of_every_cause_is_compute_bound():
    parts = {"forward": 1.0, "exposed_communication": 0.2, "data": 0.2, "straggler": 0.2, "evaluation": 0.1}
    costs = Step(parts).costs
    assert costs.bottleneck == "compute"
    assert 0 < costs.margin < BOTTLENECK_SHARE


def test_a_step_without_parts_is_unknown():
    costs = Step({}).costs
    assert costs.bottleneck == "unknown"
    assert costs.share("unknown") == 0


def test_the_overhead_is_split():
    costs = Step({"forward": 0.5, "backward": 0.5, "evaluation": 2.0, "other": 0.25}, fixed_share=0.1).costs
    assert costs.overheads == {
        "evaluation": 2.0,
        "checkpoint": 0.0,
        "optimizer": 0.0,
        "other": 0.25,
        "small batches": pytest.approx(0.1),
    }


def test_overheads_shrink_with_what_other_programs_took():
    step = Step({"forward": 0.5, "backward": 0.5, "evaluation": 1.0}, lost_share=0.4)
    assert sum(step.costs.overheads.values()) == pytest.approx(step.costs.seconds["overhead"])


@given(steps)
def test_shares_are_fractions_and_add_up_to_one(step):
    costs = step.costs
    shares = {cause: costs.share(cause) for cause in BOTTLENECKS}
    assert all(0 <= share <= 1 for share in shares.values())
    assert costs.bottleneck in (*BOTTLENECKS, "unknown")
    if step.seconds:
        assert sum(shares.values()) == pytest.approx(1)
        assert -1 <= costs.margin <= 1
    else:
        assert costs.bottleneck == "unknown"


@given(steps)
def test_the_bottleneck_reaches_the_bound_and_no_cause_costs_more(step):
    costs = step.costs
    found = costs.bottleneck
    others = [costs.share(cause) for cause in BOTTLENECKS if cause != "compute"]
    if found == "compute":
        assert max(others) < BOTTLENECK_SHARE
    elif found != "unknown":
        assert costs.share(found) == max(others) >= BOTTLENECK_SHARE


def test_the_examples_of_the_cost_model_page_are_true():
    result = doctest.testfile(str(ROOT / "docs" / "cost-model.md"), module_relative=False)
    assert result.attempted > 15
    assert result.failed == 0


def test_a_ring_by_hand():
    assert ring_all_reduce_seconds(400, 4, Link(0.5, 100)) == pytest.approx(6 * 0.5 + 1.5 * 4)
    assert ring_all_reduce_seconds(400, 1, Link(0.5, 100)) == 0


def test_bytes_of_two_nodes_with_two_ranks_each():
    assert ring_bytes_per_node(GRADIENT_BYTES, 4, 2) == pytest.approx(365.3e6, rel=1e-4)
    assert ring_bytes_per_node(GRADIENT_BYTES, 4, 2, is_interleaved=True) == pytest.approx(730.6e6, rel=1e-4)
    assert ring_bytes_per_node(GRADIENT_BYTES, 2, 2) == 0


def test_figures_measured_between_two_hosts_come_out_within_a_tenth():
    """Measured with gloo on 2 hosts × 2 workers over 100 Mbit/s."""
    packed = packed_ring_all_reduce_seconds(RIG_BYTES, 2, 2, RIG_INSIDE, RIG_BETWEEN)
    interleaved = packed_ring_all_reduce_seconds(RIG_BYTES, 2, 2, RIG_INSIDE, RIG_BETWEEN, is_interleaved=True)
    assert packed == pytest.approx(1.085, rel=0.1)
    assert interleaved == pytest.approx(2.235, rel=0.1)


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
    ready = bucket_ready_times(sizes, 2.0)
    assert ready == sorted(ready, reverse=True)
    assert 0 <= ready[0] < 2.0
    assert ready[-1] == 0


@given(transfers, st.floats(1, 5))
def test_buckets_are_sent_one_at_a_time_and_never_before_they_are_ready(transfers, slowdown):
    ready, seconds = [list(column) for column in zip(*transfers, strict=True)]
    hidden, exposed = overlap_with_backward(ready, seconds, slowdown)
    assert 0 <= hidden <= max(ready)
    assert exposed >= max(transfer - before for before, transfer in transfers) - 1e-6
    assert exposed >= sum(seconds) - max(ready) - 1e-6
    assert exposed <= sum(seconds) + 1e-6


@given(transfers)
def test_hidden_and_exposed_are_all_transfers(transfers):
    ready, seconds = [list(column) for column in zip(*transfers, strict=True)]
    assert sum(overlap_with_backward(ready, seconds)) == pytest.approx(sum(seconds), abs=1e-6)


@given(transfers, st.floats(1, 5), st.floats(1, 5))
def test_an_exchange_never_makes_a_step_shorter(transfers, compute_slowdown, communication_slowdown):
    ready, seconds = [list(column) for column in zip(*transfers, strict=True)]
    own = {"forward": 50.0, "backward": 100.0}
    parts = add_exchange(own, ready, seconds, compute_slowdown, communication_slowdown)
    assert all(part >= 0 for part in parts.values())
    assert sum(parts.values()) >= 150.0 - 1e-6
    assert parts["forward"] == 50.0


def test_nothing_to_send_costs_nothing():
    assert overlap_with_backward([], []) == (0, 0)
    assert sum(add_exchange({"forward": 1.0, "backward": 2.0}, [], []).values()) == 3.0
