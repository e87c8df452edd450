"""Which virtual workers form a replica, and which ranks compute for it, whatever their numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.world import World
from dragoman.corpus.batching import share_of_rank


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, int]:
    """Draws numbers of virtual workers, replicas and ranks that fit each other."""
    num_replicas, width = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    num_virtual_workers = num_replicas * width
    return num_virtual_workers, num_replicas, draw(st.integers(1, num_virtual_workers))


@given(layouts())
def test_every_virtual_worker_belongs_to_one_replica_and_replicas_have_as_many(numbers):
    num_virtual_workers, num_replicas, _ = numbers
    layout = ReplicaLayout.of_run(*numbers)
    assert [worker for own in layout.virtual_workers for worker in own] == list(range(num_virtual_workers))
    assert {len(own) for own in layout.virtual_workers} == {num_virtual_workers // num_replicas}
    assert layout.num_replicas == num_replicas


@given(layouts())
def test_a_rank_computes_for_the_replicas_of_its_virtual_workers(numbers):
    num_virtual_workers, num_replicas, num_ranks = numbers
    layout = ReplicaLayout.of_run(*numbers)
    for rank in range(num_ranks):
        share = share_of_rank(num_virtual_workers, rank, num_ranks)
        expected = sorted({worker * num_replicas // num_virtual_workers for worker in share})
        assert layout.own(rank) == expected
        assert set(layout.led_by(rank)) <= set(expected)


@given(layouts())
def test_every_replica_has_one_leader_among_its_ranks(numbers):
    layout = ReplicaLayout.of_run(*numbers)
    assert len(layout.leaders) == layout.num_replicas
    assert all(leader == ranks[0] for leader, ranks in zip(layout.leaders, layout.ranks, strict=True))
    led = [replica for rank in range(numbers[2]) for replica in layout.led_by(rank)]
    assert sorted(led) == list(range(layout.num_replicas))


@given(layouts(), st.data())
def test_replicas_do_not_depend_on_the_number_of_ranks(numbers, data):
    num_virtual_workers, num_replicas, num_ranks = numbers
    other = ReplicaLayout.of_run(num_virtual_workers, num_replicas, data.draw(st.integers(1, num_virtual_workers)))
    assert other.virtual_workers == ReplicaLayout.of_run(*numbers).virtual_workers
    assert num_ranks <= num_virtual_workers


@pytest.mark.parametrize(
    ("num_ranks", "expected"),
    [
        (1, ((0,), (0,))),
        (2, ((0,), (1,))),
        (3, ((0, 1), (2,))),
        (4, ((0, 1), (2, 3))),
    ],
)
def test_ranks_of_two_replicas_with_four_virtual_workers(num_ranks, expected):
    assert ReplicaLayout.of_run(4, 2, num_ranks).ranks == expected


def test_a_rank_may_compute_for_two_replicas_and_lead_one():
    layout = ReplicaLayout.of_run(6, 2, 3)
    assert layout.ranks == ((0, 1), (1, 2))
    assert layout.own(1) == [0, 1]
    assert [layout.led_by(rank) for rank in range(3)] == [[0], [1], []]


def test_machines_keep_their_ranks_together():
    layout = ReplicaLayout.of_machines(5, World(rank=0, size=3, machines=("a", "b", "a")))
    assert layout.ranks == ((0, 2), (1,))
    assert layout.virtual_workers == ((0, 3, 4), (1, 2))
    assert layout.leaders == (0, 1)
