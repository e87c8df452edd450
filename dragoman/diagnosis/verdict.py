"""Finds the bottleneck of a run and its evidence, from the files of the run alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dragoman.diagnosis.step_model import COMPUTING, PARTS, SHORTEST_STEP, CauseCosts, Step
from dragoman.diagnosis.wording import BOTTLENECK_WORDS, describe_parts, format_step
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import Record, TrainRecord, parse_records
from dragoman.run.summary import read_records
from dragoman.run.units import format_rate

_FEWEST_INTERVALS = 3
"""With more intervals, the first is left out: its steps warm up caches and memory."""
BUSY_SHARE = 0.9
_FULL_CONFIDENCE_MARGIN = 0.2
_SURE_STEPS = 50


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a run, with its evidence."""

    bottleneck: str
    """compute, network, input, straggler, overhead, or unknown."""
    share: float
    """Share of the time that this cause took."""
    confidence: float
    why: str
    evidence: list[str] = field(default_factory=list)
    misleading: list[str] = field(default_factory=list)
    """Observations that point elsewhere, and why they do not count."""
    network_correlation: float | None = None
    """Correlation of traffic and seconds per step over the intervals."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds per step."""

    @property
    def is_known(self) -> bool:
        """Whether a bottleneck was found."""
        return self.bottleneck != "unknown"

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return asdict(self)


def verdict_of_run(run: RunFolder, num_records: int | None = None) -> Verdict:
    """Finds the bottleneck of a run, finished or not; with a number, from its last records only."""
    if num_records is None:
        return verdict_of_records(read_records(run))
    with LineFollower(run.metrics, num_records) as metrics:
        return verdict_of_records(list(parse_records(metrics.read_lines())))


def verdict_of_records(records: Sequence[Record]) -> Verdict:
    """Finds the bottleneck of a run from the records of its metrics.jsonl."""
    intervals = [record for record in records if isinstance(record, TrainRecord) and _has_parts(record)]
    if len(intervals) > _FEWEST_INTERVALS:
        intervals = intervals[1:]
    if not intervals:
        why = "No record of this run has the parts of its steps, so what limited it is not known."
        return Verdict("unknown", 0.0, 0.0, why)
    step = _typical_step(intervals)
    correlation = _network_correlation(intervals)
    return Verdict(
        step.bottleneck,
        step.costs.share(step.bottleneck),
        _confidence(step.costs, intervals),
        _why(step, intervals),
        _evidence(step, intervals, correlation),
        _misleading_signs(step, intervals),
        correlation,
        dict(step.parts),
    )


def _has_parts(record: TrainRecord) -> bool:
    """Whether the record has the parts of its steps."""
    return sum((record.attribution or {}).get(name, 0.0) for name in PARTS) >= SHORTEST_STEP


def _typical_step(intervals: Sequence[TrainRecord]) -> Step:
    """Mean over all intervals; all have the same number of steps, except perhaps the last."""
    parts = {name: _mean([(each.attribution or {}).get(name, 0.0) for each in intervals]) for name in PARTS}
    rows = [each.work_seconds_by_rank or [] for each in intervals]
    num_ranks = max(map(len, rows), default=0)
    work = np.mean([row for row in rows if len(row) == num_ranks], axis=0).tolist() if num_ranks else []
    fixed = [each.fixed_share for each in intervals if each.fixed_share is not None]
    return Step(parts, _slowest(intervals, work), work, min(1.0, max(0.0, _mean(fixed[-1:]))))


def _slowest(intervals: Sequence[TrainRecord], work: Sequence[float]) -> dict[str, float] | None:
    """Mean parts of the rank that was slowest over the whole run, from the intervals in which it was the slowest."""
    if not work:
        return None
    rank = int(np.argmax(work))
    tables = [each.slowest.attribution for each in intervals if each.slowest and each.slowest.rank == rank]
    names = {name for table in tables for name in table}
    return {name: _mean([table.get(name, 0.0) for table in tables]) for name in names} or None


def _confidence(costs: CauseCosts, intervals: Sequence[TrainRecord]) -> float:
    """High where the bottleneck is far ahead of other causes, over many steps."""
    clearness = min(1.0, max(0.0, costs.margin) / _FULL_CONFIDENCE_MARGIN)
    steps = [each.step for each in intervals]
    num_steps = max(steps) - min(steps)
    return round((0.5 + 0.45 * clearness) * (0.7 + 0.3 * min(1.0, num_steps / _SURE_STEPS)), 2)


def _why(step: Step, intervals: Sequence[TrainRecord]) -> str:
    """States the bottleneck in one message."""
    share = step.costs.share(step.bottleneck)
    verdict = f"The run is {BOTTLENECK_WORDS[step.bottleneck]}"
    match step.bottleneck:
        case "network":
            return f"{verdict}: it spent {share:.0%} of its time only waiting for the network."
        case "input":
            return f"{verdict}: it spent {share:.0%} of its time waiting for data."
        case "straggler":
            return f"{verdict}: {_name_straggler(step, intervals, share)}"
        case "overhead":
            overheads = step.costs.overheads
            worst = max(overheads, key=overheads.__getitem__)
            cause = _OVERHEAD_WORDS[worst].format(share=overheads[worst] / step.seconds)
            return f"{verdict}: {share:.0%} of its time was not spent on learning; most of that is {cause}."
    computing = sum(step.parts[name] for name in COMPUTING) / step.seconds
    return f"{verdict}: it spent {computing:.0%} of its time computing gradients; no other cause took much time."


_OVERHEAD_WORDS = {
    "evaluation": "evaluation ({share:.0%}): evaluate less often, or fewer sentences",
    "checkpoint": "saving checkpoints ({share:.0%}): save less often",
    "optimizer": "the optimizer ({share:.0%}): batches are small for the number of parameters",
    "other": "work between the steps ({share:.0%})",
    "small batches": "the fixed cost of a batch, before its first token ({share:.0%}): use larger batches",
}


def _name_straggler(step: Step, intervals: Sequence[TrainRecord], share: float) -> str:
    excess = step.costs.excess_of_slowest
    if excess <= step.parts["straggler"]:
        return (
            f"ranks waited for each other {share:.0%} of the time. No single rank is to blame: different ranks were "
            "slow at different times."
        )
    rank = int(np.argmax(step.work_by_rank))
    found = (each.slowest for each in reversed(intervals))
    host = next((slowest.host for slowest in found if slowest and slowest.rank == rank), "")
    where = f" on {host}" if host else ""
    return f"rank {rank}{where} takes {format_step(excess)} longer per step than the others ({share:.0%})."


def _evidence(step: Step, intervals: Sequence[TrainRecord], correlation: float | None) -> list[str]:
    messages = [f"A step took {format_step(step.seconds)} in total: {describe_parts(step.parts)}."]
    traffic = [each.traffic for each in intervals if each.traffic and each.traffic.busier_direction is not None]
    if traffic:
        interface = next((each.interface for each in traffic if each.interface), "The busiest interface")
        rate = _mean([each.busier_direction or 0.0 for each in traffic])
        messages.append(f"{interface} carried {format_rate(rate)} on average in the busier direction.")
    if correlation is not None:
        messages.append(f"Traffic and seconds per step have a correlation of {correlation:+.2f}.")
    if len(step.work_by_rank) > 1:
        fastest, slowest = min(step.work_by_rank), max(step.work_by_rank)
        messages.append(f"The ranks' own work took {format_step(fastest)} to {format_step(slowest)} per step.")
    if step.fixed_share:
        messages.append(f"{step.fixed_share:.0%} of forward and backward does not depend on the number of tokens.")
    return messages


def _misleading_signs(step: Step, intervals: Sequence[TrainRecord]) -> list[str]:
    if step.bottleneck not in ("network", "straggler"):
        return []
    share = (step.parts["exposed_communication"] + step.parts["straggler"]) / step.seconds
    signs = []
    for kind, name in (("gpu", "GPU"), ("cpu", "CPU")):
        busy = [number for each in intervals if (number := getattr(each.utilisation, kind, None)) is not None]
        if busy and _mean(busy) >= BUSY_SHARE:
            signs.append(
                f"{name} utilisation was {_mean(busy):.0%}, but {share:.0%} of each step was spent waiting inside "
                "communication: a kernel or thread that waits for the network counts as busy."
            )
    return signs


def _network_correlation(intervals: Sequence[TrainRecord]) -> float | None:
    """Correlation of traffic and seconds per step; None with too few figures, or if one of them never changes."""
    pairs = [(each.traffic and each.traffic.busier_direction, each.seconds_per_step) for each in intervals]
    known = [(rate, seconds) for rate, seconds in pairs if rate is not None and seconds is not None]
    if len(known) < _FEWEST_INTERVALS:
        return None
    traffic, seconds = np.array(known).T
    if np.ptp(traffic) <= 1e-9 * np.max(np.abs(traffic)) or np.ptp(seconds) <= 1e-9 * np.max(np.abs(seconds)):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        found = float(np.corrcoef(traffic, seconds)[0, 1])
    return found if np.isfinite(found) else None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
