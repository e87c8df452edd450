"""An interval over all ranks: who waited least was the slowest, and the parts add up to the mean wall time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.cluster.part_clock import OWN_WORK, Part, PartClock, StepTimes
from dragoman.cluster.world import World
from dragoman.diagnosis.step_model import PARTS
from dragoman.monitoring.step_parts import MOST_RANKS_LISTED, IntervalParts, combine_parts, read_parts

Steps = list[StepTimes]
seconds = st.floats(0, 100)


class Table:
    """Where ranks that are threads leave their numbers; a number from each is what a collective sees."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=10)
        self.rows: list[list[float]] = [[] for _ in range(size)]


class ThreadWorld:
    """A world whose ranks are threads of this process."""

    gather_numbers = World.gather_numbers

    def __init__(self, rank: int, table: Table, machines: tuple[str, ...] | None = None) -> None:
        self.rank, self.size, self._table = rank, len(table.rows), table
        self.machines = machines or tuple(f"host{index}" for index in range(self.size))

    def _reduce(self, numbers: list[float], operation: Callable[[tuple[float, ...]], float]) -> list[float]:
        self._table.rows[self.rank] = numbers
        self._table.barrier.wait()
        found = [operation(column) for column in zip(*self._table.rows, strict=True)]
        self._table.barrier.wait()
        return found

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        return self._reduce(numbers, sum)

    def smallest_numbers(self, numbers: list[float]) -> list[float]:
        return self._reduce(numbers, min)


def combine(ranks: list[Steps], before: list[StepTimes] | None = None, **options: object) -> IntervalParts:
    """What all ranks find together, which must be the same."""
    table = Table(len(ranks))
    before = before or [StepTimes() for _ in ranks]
    with ThreadPoolExecutor(len(ranks)) as pool:
        found = list(
            pool.map(
                lambda rank: combine_parts(before[rank], ranks[rank], ThreadWorld(rank, table, **options)),
                range(len(ranks)),
            )
        )
    assert all(each == found[0] for each in found)
    return found[0]


def times(flights: tuple[tuple[float, float], ...] = (), backward_end: float = 0.0, **parts: float) -> StepTimes:
    step = StepTimes(flights=list(flights), backward_end=backward_end)
    for name, spent in parts.items():
        step.seconds[Part(name)] = spent
    return step


def throttled(size: int, slow: int, work: float = 1.0, extra: float = 0.5, network: float = 0.2) -> list[Steps]:
    """Two steps of ranks of which one computes longer; all end together."""
    return [
        [
            times(
                forward=work + (extra if rank == slow else 0.0),
                waiting=network + (0.0 if rank == slow else extra),
            )
            for _ in range(2)
        ]
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_slow_rank_makes_the_others_wait_for_it_and_is_named(size):
    parts = combine(throttled(size, slow=1))
    assert parts.attribution["exposed_communication"] == pytest.approx(0.2)
    assert parts.attribution["straggler"] == pytest.approx(0.5 * (size - 1) / size)
    assert parts.attribution["forward"] == pytest.approx(1 + 0.5 / size)
    assert (parts.slowest_rank, parts.slowest_machine) == (1, "host1")
    assert parts.slowest["forward"] == pytest.approx(1.5)
    assert parts.work_by_rank == pytest.approx([1.5 if rank == 1 else 1.0 for rank in range(size)])
    assert parts.wall_seconds == pytest.approx(1.7)


def test_each_step_has_its_own_slowest_rank():
    """Ranks that are slow in turn cost as much as one that always is, though their work is the same in the mean."""
    ranks = [
        [times(forward=2, waiting=0), times(forward=1, waiting=1)],
        [times(forward=1, waiting=1), times(forward=2, waiting=0)],
    ]
    parts = combine(ranks)
    assert parts.attribution["exposed_communication"] == 0
    assert parts.attribution["straggler"] == pytest.approx(0.5)
    assert parts.work_by_rank == pytest.approx([1.5, 1.5])


def test_backward_is_split_by_whether_gradients_travel():
    ranks = [
        [times(backward=4, backward_end=4, flights=((1, 6),), waiting=2)],
        [times(backward=4, backward_end=4, flights=((2, 6),), waiting=2)],
    ]
    parts = combine(ranks).attribution
    assert (parts["backward"], parts["hidden_communication"]) == (pytest.approx(2), pytest.approx(2))
    assert parts["exposed_communication"] == pytest.approx(2)


def test_what_came_before_the_first_step_counts_too():
    steps = [[times(forward=1), times(forward=1)] for _ in range(2)]
    before = [times(evaluation=6, checkpoint=2), times(evaluation=6, other=2)]
    parts = combine(steps, before).attribution
    assert parts["evaluation"] == pytest.approx(3)
    assert parts["checkpoint"] == pytest.approx(0.5)
    assert parts["other"] == pytest.approx(0.5)


def rank_times(num_steps: int) -> st.SearchStrategy[Steps]:
    step = st.fixed_dictionaries({part.value: seconds for part in Part}).flatmap(
        lambda parts: st.lists(st.tuples(seconds, seconds).map(lambda pair: tuple(sorted(pair))), max_size=3).map(
            lambda flights: times(tuple(flights), parts["backward"], **parts)
        )
    )
    return st.lists(step, min_size=num_steps, max_size=num_steps)


@settings(max_examples=40)
@given(st.integers(1, 3).flatmap(lambda num: st.lists(rank_times(num), min_size=2, max_size=4)))
def test_whatever_ranks_do_the_parts_add_up_to_the_mean_wall_time(ranks):
    parts = combine(ranks)
    num_steps = len(ranks[0])
    wall = [sum(sum(step.seconds.values()) for step in steps) / num_steps for steps in ranks]
    assert sum(parts.attribution.values()) == pytest.approx(sum(wall) / len(wall))
    assert set(parts.attribution) == set(PARTS)
    assert all(value >= -1e-9 for value in parts.attribution.values())
    shortest = [min(steps[index].seconds[Part.WAITING] for steps in ranks) for index in range(num_steps)]
    assert parts.attribution["exposed_communication"] == pytest.approx(sum(shortest) / num_steps)
    work = [sum(step.seconds[part] for step in steps for part in OWN_WORK) / num_steps for steps in ranks]
    assert parts.work_by_rank == pytest.approx(work)
    assert parts.work_by_rank[parts.slowest_rank] == max(parts.work_by_rank)


def test_a_world_of_one_waits_for_nobody():
    parts = combine_parts(StepTimes(), [times(forward=1, waiting=0.25)], World(machines=("here",)))
    assert parts.attribution["straggler"] == 0
    assert parts.slowest_machine == "here"
    assert parts.wall_seconds == pytest.approx(1.25)


def test_nothing_is_read_where_nothing_is_noted():
    assert read_parts(PartClock(is_on=False), World()) is None
    assert read_parts(PartClock(), World()) is None  # no step yet


def test_a_clock_is_read_for_its_steps():
    clock = PartClock()
    clock.begin_step()
    clock.switch(Part.FORWARD)
    parts = read_parts(clock, World())
    assert parts is not None
    assert parts.wall_seconds > 0


def test_the_record_has_the_names_of_the_contract():
    record = combine(throttled(2, slow=0)).to_record()
    assert set(record) == {"attribution", "wall_seconds_per_step", "slowest", "work_seconds_by_rank"}
    assert record["wall_seconds_per_step"] == pytest.approx(sum(record["attribution"].values()))
    assert (record["slowest"]["rank"], record["slowest"]["host"]) == (0, "host0")
    assert set(record["slowest"]["attribution"]) == {part.value for part in Part}
    assert record["work_seconds_by_rank"] == pytest.approx([1.5, 1.0])


def test_thousands_of_ranks_are_not_listed():
    parts = IntervalParts({}, 0, "a", {}, [1.0] * (MOST_RANKS_LISTED + 1))
    assert "work_seconds_by_rank" not in parts.to_record()
    parts = IntervalParts({}, 0, "a", {}, [1.0] * MOST_RANKS_LISTED)
    assert len(parts.to_record()["work_seconds_by_rank"]) == MOST_RANKS_LISTED


def test_a_world_that_does_not_know_its_machines_names_none():
    assert combine(throttled(2, slow=1), machines=("",)).slowest_machine == ""
