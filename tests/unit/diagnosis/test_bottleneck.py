"""Each cause is what a step would save without it: steps constructed for every verdict, and shares that add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.diagnosis.step_model import BINDING_SHARE, BOTTLENECKS, PARTS, Losses, StepView, find_losses

RANK_PARTS = ("data", "forward", "backward", "optimizer", "checkpoint", "waiting")
OWN_WORK = ("data", "forward", "backward", "optimizer", "checkpoint")
seconds = st.just(0.0) | st.floats(1e-9, 1e6)
part_tables = st.dictionaries(st.sampled_from(PARTS), seconds)
views = st.builds(
    StepView,
    part_tables,
    st.none() | st.dictionaries(st.sampled_from(RANK_PARTS), seconds),
    st.lists(seconds, max_size=8),
    st.floats(0, 1),
)


def view_of(ranks: list[dict[str, float]], network: float = 0.05, fixed_share: float = 0.0) -> StepView:
    """What is seen of ranks that do this and then wait for the slowest and the network."""
    work = [sum(rank.get(name, 0.0) for name in OWN_WORK) for rank in ranks]
    slowest = max(range(len(ranks)), key=work.__getitem__)
    names = {name for rank in ranks for name in rank}
    mean = {name: sum(rank.get(name, 0.0) for rank in ranks) / len(ranks) for name in names}
    waits = {
        "exposed_communication": network,
        "straggler": sum(max(work) - each for each in work) / len(work),
    }
    return StepView(mean | waits, ranks[slowest] | {"waiting": network}, work, fixed_share)


def alike(num_ranks: int, **changes: float) -> list[dict[str, float]]:
    return [{"forward": 0.3, "backward": 0.6, "optimizer": 0.05, "data": 0.01} | changes for _ in range(num_ranks)]


def one_differs(num_ranks: int, which: int, **changes: float) -> list[dict[str, float]]:
    ranks = alike(num_ranks)
    ranks[which] |= changes
    return ranks


@pytest.mark.parametrize(
    ("view", "verdict"),
    [
        (view_of(alike(2)), "compute"),
        (view_of(alike(1), network=0.0), "compute"),
        (view_of(alike(2), network=2.0), "network"),
        (view_of(alike(2, data=2.0)), "input"),
        (view_of(one_differs(2, 1, data=0.8)), "input"),
        (view_of(one_differs(8, 3, data=0.8)), "input"),
        (view_of(alike(2, evaluation=1.0)), "overhead"),
        (view_of(one_differs(2, 0, checkpoint=0.8)), "overhead"),
        (view_of(one_differs(8, 0, checkpoint=0.8)), "overhead"),
        (view_of(alike(2, optimizer=0.8)), "overhead"),
        (view_of(alike(2, other=0.8)), "overhead"),
        (view_of(alike(2), fixed_share=0.8), "overhead"),
        (view_of(one_differs(2, 1, forward=0.7, backward=1.2)), "straggler"),
        (view_of(one_differs(8, 7, forward=0.7, backward=1.2)), "straggler"),
        (view_of(one_differs(8, 7, forward=0.7, backward=1.2), network=3.0), "network"),
    ],
)
def test_every_cause_is_named(view, verdict):
    losses = find_losses(view)
    assert losses.bottleneck == verdict
    assert losses.margin > 0


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize(
    ("changes", "cause", "saved"),
    [({"data": 0.81}, "input", 0.81), ({"checkpoint": 0.8}, "overhead", 0.85), ({"backward": 1.4}, "straggler", 0.8)],
)
def test_what_only_one_rank_suffers_from_counts_once_and_whole(num_ranks, changes, cause, saved):
    """Without it every rank would be done so much sooner, however many ranks hide it in their mean."""
    view = view_of(one_differs(num_ranks, 0, **changes))
    losses = find_losses(view)
    assert losses.seconds[cause] == pytest.approx(saved)
    assert sum(losses.seconds.values()) == pytest.approx(view.seconds)
    assert losses.excess_of_slowest == pytest.approx(0.8)


def test_ranks_that_are_slow_in_turn_are_no_persistent_excess():
    view = StepView({"forward": 1.0, "straggler": 0.6}, {"forward": 1.01}, [1.01, 1.0, 0.99, 1.0])
    losses = find_losses(view)
    assert losses.bottleneck == "straggler"
    assert losses.excess_of_slowest < view.parts["straggler"]
    assert losses.seconds["straggler"] == pytest.approx(0.6)


def test_a_little_of_everything_is_bound_by_computing():
    parts = {"forward": 1.0, "exposed_communication": 0.2, "data": 0.2, "straggler": 0.2, "evaluation": 0.1}
    losses = find_losses(StepView(parts))
    assert losses.bottleneck == "compute"
    assert 0 < losses.margin < BINDING_SHARE


def test_where_no_time_was_nothing_is_known():
    losses = find_losses(StepView({}))
    assert losses.bottleneck == "unknown"
    assert losses.share("unknown") == 0


def test_what_the_overhead_consists_of_is_told():
    losses = find_losses(StepView({"forward": 0.5, "backward": 0.5, "evaluation": 2.0, "other": 0.25}, fixed_share=0.1))
    assert losses.overheads == {
        "evaluation": 2.0,
        "checkpoint": 0.0,
        "optimizer": 0.0,
        "other": 0.25,
        "small batches": pytest.approx(0.1),
    }


@given(views)
def test_shares_are_fractions_and_add_up_to_one(view):
    losses = find_losses(view)
    shares = {cause: losses.share(cause) for cause in BOTTLENECKS}
    assert all(0 <= share <= 1 for share in shares.values())
    assert losses.bottleneck in (*BOTTLENECKS, "unknown")
    if view.seconds:
        assert sum(shares.values()) == pytest.approx(1)
        assert -1 <= losses.margin <= 1
    else:
        assert losses.bottleneck == "unknown"


@given(views)
def test_a_cause_that_is_named_binds_and_none_costs_more(view):
    losses: Losses = find_losses(view)
    found = losses.bottleneck
    others = [losses.share(cause) for cause in BOTTLENECKS if cause != "compute"]
    if found == "compute":
        assert max(others) < BINDING_SHARE
    elif found != "unknown":
        assert losses.share(found) == max(others) >= BINDING_SHARE
