"""Figures of an interval: sums over the right divisors, and parts that add up to the mean wall time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.cluster.step_clock import OWN_WORK, Part, StepClock, TimedStep
from dragoman.cluster.world import World
from dragoman.diagnosis.step_model import PARTS
from dragoman.monitoring.interval import MAX_RANKS_LISTED, IntervalParts, TrainMeters, combine_parts, read_parts

Steps = list[TimedStep]
seconds = st.floats(0, 100)


class Table:
    """Holds the numbers of ranks that are threads, for their collectives."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=10)
        self.rows: list[list[float]] = [[] for _ in range(size)]


class ThreadWorld:
    """A world whose ranks are threads of this process."""

    gather_numbers = World.gather_numbers
    num_machines = World.num_machines

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


def combine(ranks: list[Steps], before: list[TimedStep] | None = None, **options: object) -> IntervalParts:
    """Returns the result of all ranks, which must be the same."""
    table = Table(len(ranks))
    before = before or [TimedStep() for _ in ranks]
    with ThreadPoolExecutor(len(ranks)) as pool:
        found = list(
            pool.map(
                lambda rank: combine_parts(before[rank], ranks[rank], ThreadWorld(rank, table, **options)),
                range(len(ranks)),
            )
        )
    assert all(each == found[0] for each in found)
    return found[0]


def times(all_reduces: tuple[tuple[float, float], ...] = (), backward_end: float = 0.0, **parts: float) -> TimedStep:
    step = TimedStep(all_reduces=list(all_reduces), backward_end=backward_end)
    for name, spent in parts.items():
        step.seconds[Part(name)] = spent
    return step


def throttled(size: int, slow: int, work: float = 1.0, extra: float = 0.5, network: float = 0.2) -> list[Steps]:
    """Two steps in which one rank computes longer; all ranks end together."""
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
def test_a_slow_rank_is_named_and_the_others_wait_for_it(size):
    parts = combine(throttled(size, slow=1))
    assert parts.attribution["exposed_communication"] == pytest.approx(0.2)
    assert parts.attribution["straggler"] == pytest.approx(0.5 * (size - 1) / size)
    assert parts.attribution["forward"] == pytest.approx(1 + 0.5 / size)
    assert (parts.slowest_rank, parts.slowest_machine) == (1, "host1")
    assert parts.slowest["forward"] == pytest.approx(1.5)
    assert parts.work_by_rank == pytest.approx([1.5 if rank == 1 else 1.0 for rank in range(size)])
    assert parts.wall_seconds == pytest.approx(1.7)


def test_each_step_has_its_own_slowest_rank():
    """Ranks that are slow in turn cost as much as one that is always slow, though their mean work is the same."""
    ranks = [
        [times(forward=2, waiting=0), times(forward=1, waiting=1)],
        [times(forward=1, waiting=1), times(forward=2, waiting=0)],
    ]
    parts = combine(ranks)
    assert parts.attribution["exposed_communication"] == 0
    assert parts.attribution["straggler"] == pytest.approx(0.5)
    assert parts.work_by_rank == pytest.approx([1.5, 1.5])


def test_backward_is_split_by_whether_gradients_are_sent():
    ranks = [
        [times(backward=4, backward_end=4, all_reduces=((1, 6),), waiting=2)],
        [times(backward=4, backward_end=4, all_reduces=((2, 6),), waiting=2)],
    ]
    parts = combine(ranks).attribution
    assert (parts["backward"], parts["hidden_communication"]) == (pytest.approx(2), pytest.approx(2))
    assert parts["exposed_communication"] == pytest.approx(2)


def test_time_before_the_first_step_counts():
    steps = [[times(forward=1), times(forward=1)] for _ in range(2)]
    before = [times(evaluation=6, checkpoint=2), times(evaluation=6, other=2)]
    parts = combine(steps, before).attribution
    assert parts["evaluation"] == pytest.approx(3)
    assert parts["checkpoint"] == pytest.approx(0.5)
    assert parts["other"] == pytest.approx(0.5)


def rank_times(num_steps: int) -> st.SearchStrategy[Steps]:
    step = st.fixed_dictionaries({part.value: seconds for part in Part}).flatmap(
        lambda parts: st.lists(st.tuples(seconds, seconds).map(lambda pair: tuple(sorted(pair))), max_size=3).map(
            lambda all_reduces: times(tuple(all_reduces), parts["backward"], **parts)
        )
    )
    return st.lists(step, min_size=num_steps, max_size=num_steps)


@settings(max_examples=40)
@given(st.integers(1, 3).flatmap(lambda num: st.lists(rank_times(num), min_size=2, max_size=4)))
def test_parts_always_add_up_to_the_mean_wall_time(ranks):
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


def test_a_single_rank_has_no_straggler():
    parts = combine_parts(TimedStep(), [times(forward=1, waiting=0.25)], World(machines=("here",)))
    assert parts.attribution["straggler"] == 0
    assert parts.slowest_machine == "here"
    assert parts.wall_seconds == pytest.approx(1.25)


def test_without_timed_steps_there_are_no_parts():
    assert read_parts(StepClock(is_on=False), World()) is None
    assert read_parts(StepClock(), World()) is None  # no step yet


def test_parts_are_read_from_the_clock():
    clock = StepClock()
    clock.begin_step()
    clock.switch(Part.FORWARD)
    parts = read_parts(clock, World())
    assert parts is not None
    assert parts.wall_seconds > 0


def test_the_record_has_the_names_of_the_contract():
    record = combine(throttled(2, slow=0)).to_record()
    assert set(record) == {"attribution", "wall_seconds_per_step", "slowest", "num_machines", "work_seconds_by_rank"}
    assert record["num_machines"] == 2
    assert record["wall_seconds_per_step"] == pytest.approx(sum(record["attribution"].values()))
    assert (record["slowest"]["rank"], record["slowest"]["host"]) == (0, "host0")
    assert set(record["slowest"]["attribution"]) == {part.value for part in Part}
    assert record["work_seconds_by_rank"] == pytest.approx([1.5, 1.0])


def test_thousands_of_ranks_are_not_listed():
    parts = IntervalParts({}, 0, "a", {}, [1.0] * (MAX_RANKS_LISTED + 1))
    assert "work_seconds_by_rank" not in parts.to_record()
    parts = IntervalParts({}, 0, "a", {}, [1.0] * MAX_RANKS_LISTED)
    assert len(parts.to_record()["work_seconds_by_rank"]) == MAX_RANKS_LISTED


def test_without_machine_names_none_is_given():
    assert combine(throttled(2, slow=1), machines=("",)).slowest_machine == ""


class WorldOfTwo(World):
    """A world with another rank that has the same losses."""

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        return [2 * number for number in numbers]


def make_meters(**changes: object) -> TrainMeters:
    values = {
        "num_steps": 4,
        "num_target_tokens": 100,
        "num_tokens": 180,
        "num_padded_tokens": 240,
        "num_full_steps": 3.0,
        "seconds": 8.0,
        "gradient_norm_sum": 6.0,
        "num_finite_norms": 3,
        "losses": [torch.tensor([50.0, 40.0]), torch.tensor([100.0, 60.0])],
    }
    return TrainMeters(**values | changes)


def test_figures_of_an_interval():
    assert make_meters().read(World()) == pytest.approx(
        {
            "loss": 1.5,
            "negative_log_likelihood": 1.0,
            "gradient_norm": 2.0,
            "seconds_per_step": 2.0,
            "target_tokens_per_second": 12.5,
            "target_tokens_per_step": 25.0,
            "padding_share": 0.25,
            "batch_share": 0.75,
        }
    )


def test_only_losses_are_summed_over_ranks():
    alone, together = make_meters().read(World()), make_meters().read(WorldOfTwo())
    for name, figure in together.items():
        factor = 2 if name in ("loss", "negative_log_likelihood") else 1
        assert figure == pytest.approx(factor * alone[name]), name


def test_the_mean_is_over_tokens_not_over_steps():
    meters = make_meters(losses=[torch.tensor([10.0, 10.0]), torch.tensor([90.0, 90.0])])
    assert meters.read(World())["loss"] == pytest.approx(1.0)


def test_an_interval_of_skipped_steps_only_has_no_norm():
    assert make_meters(gradient_norm_sum=0.0, num_finite_norms=0).read(World())["gradient_norm"] == 0.0


def test_intervals_do_not_share_their_losses():
    first, second = TrainMeters(), TrainMeters()
    first.losses.append(torch.zeros(2))
    assert second.losses == []
