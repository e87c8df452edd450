"""The logged intervals that a verdict is about: which ones count, a typical step, and who else used the machines.

All intervals of a run count, so that a verdict does not depend on the moment it is asked for. Left out are the first
interval of each start, whose steps warm up caches and memory, rare intervals that took far longer than the others, and
those with a smaller batch where the batch grows during the run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from dragoman.diagnosis.step_model import PARTS, SHORTEST_STEP, Step
from dragoman.run.records import (
    MAX_PROGRAMS,
    MachineLoad,
    ProgramLoad,
    Record,
    RestartRecord,
    TrainRecord,
    steps_covered,
)

_FEWEST_INTERVALS = 3
"""Intervals are left out only if more than this many remain."""
_OUTLIER_FACTOR = 3.0
"""An interval whose steps took longer than this times the median was disturbed."""
_LARGEST_OUTLIER_SHARE = 0.25
"""If more intervals are as slow, they are no exceptions."""
DISTURBED_SHARE = 0.1
"""From this share of lost time on, figures that were measured meanwhile are uncertain."""
_SPARSE_PARTS = ("evaluation", "checkpoint")
"""Parts that only some intervals have."""


@dataclass(frozen=True)
class Interval:
    """One train record with the parts of its steps."""

    record: TrainRecord
    num_steps: int
    is_first: bool
    """Whether it is the first after a start."""

    @property
    def parts(self) -> dict[str, float]:
        """Seconds per step; a part that is missing took no time."""
        return {name: (self.record.attribution or {}).get(name, 0.0) for name in PARTS}

    @property
    def batch_share(self) -> float:
        """Size of the batches as a share of full ones."""
        return self.record.batch_share or 1.0

    @property
    def steady_seconds(self) -> float:
        """Seconds per step, without evaluations and checkpoints."""
        return sum(seconds for name, seconds in self.parts.items() if name not in _SPARSE_PARTS)


@dataclass(frozen=True)
class MeasuredIntervals:
    """The intervals that count, and what follows from them."""

    intervals: Sequence[Interval]
    """All that count, also those with single disturbances."""
    steady: Sequence[Interval]
    """Without those that took far longer than the others."""
    fixed_share: float | None
    """Share of forward and backward that does not depend on the number of tokens; None if it is not known."""

    @property
    def is_fixed_share_doubtful(self) -> bool:
        """Whether that share was measured only while others disturbed the run."""
        return self.fixed_share is None and any(each.fixed_share is not None for each in self.records)

    @property
    def records(self) -> list[TrainRecord]:
        """The records that count."""
        return [interval.record for interval in self.steady]

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step."""
        first = min(interval.record.step - interval.num_steps + 1 for interval in self.steady)
        return max(1, first), max(interval.record.step for interval in self.steady)

    def typical_step(self) -> Step:
        """The mean step, by part."""
        steady, sparse = _mean_parts(self.steady), _mean_parts(self.intervals)
        parts = {name: sparse[name] if name in _SPARSE_PARTS else steady[name] for name in PARTS}
        work = self._mean_work()
        return typical_step(
            parts, self._slowest(work), work, self.fixed_share or 0.0, self.loads(), self.slowest_host(work)
        )

    def _mean_work(self) -> list[float]:
        rows = [(each.num_steps, each.record.work_seconds_by_rank or []) for each in self.steady]
        num_ranks = max((len(row) for _, row in rows), default=0)
        rows = [(num_steps, row) for num_steps, row in rows if len(row) == num_ranks]
        if not num_ranks:
            return []
        means = np.average([row for _, row in rows], axis=0, weights=[num_steps for num_steps, _ in rows])
        return [float(seconds) for seconds in means]

    def _slowest(self, work: Sequence[float]) -> dict[str, float] | None:
        """Mean parts of the rank that was slowest over all, from the intervals in which it was the slowest."""
        if not work:
            return None
        rank = int(np.argmax(work))
        tables = [each.slowest.attribution for each in self.records if each.slowest and each.slowest.rank == rank]
        names = {name for table in tables for name in table}
        return {name: fmean(table.get(name, 0.0) for table in tables) for name in names} or None

    def slowest_host(self, work: Sequence[float]) -> str:
        """The machine of the rank with the most work; empty where it is not known."""
        rank = int(np.argmax(work)) if work else -1
        found = (each.slowest for each in reversed(self.records))
        return next((slowest.host for slowest in found if slowest and slowest.rank == rank), "")

    def loads(self) -> list[MachineLoad]:
        """Who used the cores of each machine, means over the intervals; the most disturbed machine first."""
        by_host: dict[str, list[tuple[MachineLoad, int]]] = {}
        for each in self.steady:
            for load in each.record.load or []:
                by_host.setdefault(load.host, []).append((load, each.num_steps))
        found = [_mean_load(host, loads) for host, loads in by_host.items()]
        return sorted(found, key=lambda load: (-load.lost_share, -load.other_cores))


def measured_intervals(records: Iterable[Record]) -> MeasuredIntervals | None:
    """Selects the intervals that count; None if no record has the parts of its steps."""
    found = _intervals(list(records))
    if not found:
        return None
    # While the batch grows, steps of one size say little about those of another: the newest size counts.
    found = [each for each in found if math.isclose(each.batch_share, found[-1].batch_share)]
    fixed_share = _fixed_share(found)
    # A run that was continued with another number of workers has other steps.
    found = [each for each in found if _num_ranks(each) == _num_ranks(found[-1])]
    warm = [each for each in found if not each.is_first]
    if len(warm) >= _FEWEST_INTERVALS:
        found = warm
    bound = _OUTLIER_FACTOR * median(each.steady_seconds for each in found)
    steady = [each for each in found if each.steady_seconds <= bound]
    is_rare = len(found) - len(steady) <= _LARGEST_OUTLIER_SHARE * len(found)
    return MeasuredIntervals(found, steady if is_rare else found, fixed_share)


def _intervals(records: Sequence[Record]) -> list[Interval]:
    steps = iter(steps_covered(records))
    found: list[Interval] = []
    is_first = True
    for record in records:
        if isinstance(record, RestartRecord):
            is_first = True
        elif isinstance(record, TrainRecord):
            num_steps = max(1, next(steps))
            if sum((record.attribution or {}).get(name, 0.0) for name in PARTS) >= SHORTEST_STEP:
                found.append(Interval(record, num_steps, is_first))
                is_first = False
    return _with_short_beginning(found)


def _with_short_beginning(intervals: list[Interval]) -> list[Interval]:
    """Limits the first interval to the length of the others: the records may begin in the middle of a run."""
    if len(intervals) < 2:
        return intervals
    first = intervals[0]
    num_steps = min(first.num_steps, max(each.num_steps for each in intervals[1:]))
    return [Interval(first.record, num_steps, first.is_first), *intervals[1:]]


def _num_ranks(interval: Interval) -> int:
    return len(interval.record.work_seconds_by_rank or [])


def _fixed_share(intervals: Sequence[Interval]) -> float | None:
    """Median over all starts of the run, each of which measured it once; not those that others disturbed meanwhile."""
    measured: dict[float, Interval] = {}
    for each in intervals:
        if each.record.fixed_share is not None:
            measured.setdefault(each.record.fixed_share, each)
    sound = [share for share, each in measured.items() if not is_disturbed(each.record.load or [])]
    return min(1.0, max(0.0, median(sound))) if sound else None


def is_disturbed(loads: Sequence[MachineLoad]) -> bool:
    """Whether other programs took so much of a machine that the fixed cost of a batch cannot be measured meanwhile."""
    return any(load.lost_share >= DISTURBED_SHARE for load in loads)


def typical_step(
    parts: Mapping[str, float],
    slowest: Mapping[str, float] | None,
    work_by_rank: Sequence[float],
    fixed_share: float,
    loads: Sequence[MachineLoad],
    slowest_host: str,
) -> Step:
    """Builds the step that a bottleneck is named for: the only way to one, before a run (`check`) and after it.

    `fixed_share` is 0 if it was measured while other programs disturbed the run.
    """
    step = Step(parts, slowest, work_by_rank, fixed_share)
    return replace(step, lost_share=lost_share(step, loads, slowest_host))


def lost_share(step: Step, loads: Sequence[MachineLoad], slowest_host: str) -> float:
    """Share of a step that would be saved if no other program used the cores."""
    if not loads or step.seconds <= 0:
        return 0.0
    if len(loads) == 1 or not step.work_by_rank:
        worst = max(loads, key=lambda load: load.lost_share)
        return max(worst.lost_share, _lost_by_one_rank(step, worst))
    # With several machines, all wait for the slowest rank: what it loses counts, down to what the others lose too.
    slowest = next((load.lost_share for load in loads if load.host == slowest_host), 0.0)
    work = max(step.work_by_rank)
    gain = min(slowest * work, max(step.costs.excess_of_slowest, min(load.lost_share for load in loads) * work))
    return min(1.0, max(0.0, gain) / step.seconds)


def _lost_by_one_rank(step: Step, load: MachineLoad) -> float:
    """Share of a step that is saved if all of the lost time was that of the slowest rank, which the others wait for."""
    if len(step.work_by_rank) < 2 or not load.lost_cores:
        return 0.0
    own_cores = load.own_cores / len(step.work_by_rank)
    share = load.lost_cores / (own_cores + load.lost_cores)
    return max(0.0, min(share * max(step.work_by_rank), step.costs.excess_of_slowest)) / step.seconds


def _mean_load(host: str, loads: Sequence[tuple[MachineLoad, int]]) -> MachineLoad:
    means = {}
    for name in ("num_cores", "own_cores", "other_cores", "stolen_cores", "waiting_threads"):
        known = [(value, num_steps) for load, num_steps in loads if (value := getattr(load, name)) is not None]
        if known:
            values, weights = zip(*known, strict=True)
            means[name] = float(np.average(values, weights=weights))
    seen: dict[int, list[ProgramLoad]] = {}
    for load, _ in loads:
        for program in load.programs:
            seen.setdefault(program.pid, []).append(program)
    heaviest = sorted(seen.values(), key=lambda found: -sum(each.cores for each in found))[:MAX_PROGRAMS]
    # Programs are looked up only now and then, so most intervals name none: the mean is over those that do.
    means_of = [each[-1].model_copy(update={"cores": fmean(found.cores for found in each)}) for each in heaviest]
    programs = sorted(means_of, key=lambda program: -program.cores)
    return MachineLoad(host=host, programs=programs, **means)


def _mean_parts(intervals: Sequence[Interval]) -> dict[str, float]:
    rows = [list(each.parts.values()) for each in intervals]
    means = np.average(rows, axis=0, weights=[each.num_steps for each in intervals])
    return dict(zip(PARTS, map(float, means), strict=True))
