"""What held a run back: one verdict, with its evidence, from the files of the run alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dragoman.diagnosis.step_model import COMPUTING, PARTS, Losses, StepView, find_losses
from dragoman.diagnosis.wording import BOTTLENECK_WORDS, describe_parts, format_step
from dragoman.run.folder import RunFolder
from dragoman.run.following import LineFollower
from dragoman.run.status import number_or_none
from dragoman.run.summary import Record, parse_record, read_records
from dragoman.run.units import format_rate

FEWEST_INTERVALS = 3
"""With more, the first is left out: its steps warm up caches and memory."""
BUSY_SHARE = 0.9
FULL_CONFIDENCE_MARGIN = 0.2
SURE_STEPS = 50
SHORTEST_STEP = 1e-9
"""Seconds; less is no step, and shares of it would be noise or a division by nothing."""


@dataclass(frozen=True)
class Verdict:
    """What held the run back."""

    bottleneck: str
    """compute, network, input, straggler, overhead, or unknown."""
    share: float
    """Of its time that this cause took."""
    confidence: float
    why: str
    evidence: list[str] = field(default_factory=list)
    misleading: list[str] = field(default_factory=list)
    """Signs that seem to say something else, and why they do not."""
    network_correlation: float | None = None
    """Between the traffic of an interval and its seconds per step."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds per step."""

    @property
    def is_known(self) -> bool:
        """Whether the records said anything."""
        return self.bottleneck != "unknown"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def judge_run(run: RunFolder, num_records: int | None = None) -> Verdict:
    """One verdict on a run, finished or not; with a number, on its last records only."""
    if num_records is None:
        return judge_records(read_records(run))
    with LineFollower(run.metrics, num_records) as metrics:
        return judge_records([record for record in map(parse_record, metrics.read_lines()) if record is not None])


def judge_records(records: Sequence[Record]) -> Verdict:
    """One verdict from the records of metrics.jsonl."""
    intervals = [each for each in map(_interval, records) if each is not None]
    if len(intervals) > FEWEST_INTERVALS:
        intervals = intervals[1:]
    if not intervals:
        why = "No record of this run says what its steps' time was spent on."
        return Verdict("unknown", 0.0, 0.0, why)
    step = _typical_step(intervals)
    losses = find_losses(step)
    correlation = _network_correlation(intervals)
    return Verdict(
        losses.bottleneck,
        losses.share(losses.bottleneck),
        _confidence(losses, intervals),
        _why(losses, step, intervals),
        _evidence(losses, step, intervals, correlation),
        _misleading_signs(losses, step, intervals),
        correlation,
        dict(step.parts),
    )


def _interval(record: Record) -> Record | None:
    """A record of training that says where its time went, checked: the folder may be a stranger's."""
    parts = record.get("attribution")
    if record.get("kind") != "train" or not isinstance(parts, dict):
        return None
    numbers = {name: number_or_none(parts.get(name, 0.0)) for name in PARTS}
    known = [number for number in numbers.values() if number is not None and number >= 0]
    if len(known) < len(PARTS) or sum(known) < SHORTEST_STEP:
        return None
    return record | {"attribution": numbers}


def _typical_step(intervals: Sequence[Record]) -> StepView:
    """The mean over all intervals; each has as many steps as another, the last apart."""
    parts = {name: _mean([each["attribution"][name] for each in intervals]) for name in PARTS}
    num_ranks = max((len(_numbers(each.get("work_seconds_by_rank"))) for each in intervals), default=0)
    rows = [row for each in intervals if len(row := _numbers(each.get("work_seconds_by_rank"))) == num_ranks]
    work = np.mean(rows, axis=0).tolist() if num_ranks else []
    fixed = [number for each in intervals if (number := number_or_none(each.get("fixed_share"))) is not None]
    return StepView(parts, _slowest(intervals, work), work, min(1.0, max(0.0, _mean(fixed[-1:]))))


def _slowest(intervals: Sequence[Record], work: Sequence[float]) -> dict[str, float] | None:
    """The mean parts of the rank that was slowest over the whole run, from the intervals in which it was."""
    if not work:
        return None
    rank = int(np.argmax(work))
    found = [each["slowest"] for each in intervals if isinstance(each.get("slowest"), dict)]
    tables = [
        each["attribution"] for each in found if each.get("rank") == rank and isinstance(each.get("attribution"), dict)
    ]
    names = {name for table in tables for name in table}
    return {name: _mean(_numbers([table.get(name, 0.0) for table in tables])) for name in names} or None


def _confidence(losses: Losses, intervals: Sequence[Record]) -> float:
    """High where the cause is far ahead of others, and many steps say so."""
    clearness = min(1.0, max(0.0, losses.margin) / FULL_CONFIDENCE_MARGIN)
    steps = [number for each in intervals if (number := number_or_none(each.get("step"))) is not None]
    num_steps = max(steps, default=0) - min(steps, default=0)
    return round((0.5 + 0.45 * clearness) * (0.7 + 0.3 * min(1.0, num_steps / SURE_STEPS)), 2)


def _why(losses: Losses, step: StepView, intervals: Sequence[Record]) -> str:
    """The verdict in one sentence."""
    share = losses.share(losses.bottleneck)
    verdict = f"The run is {BOTTLENECK_WORDS[losses.bottleneck]}"
    match losses.bottleneck:
        case "network":
            return f"{verdict}: {share:.0%} of its time it waited for the network with nothing else to do."
        case "input":
            return f"{verdict}: {share:.0%} of its time it waited for data."
        case "straggler":
            return f"{verdict}: {_name_straggler(losses, step, intervals, share)}"
        case "overhead":
            worst = max(losses.overheads, key=losses.overheads.__getitem__)
            cause = _OVERHEAD_WORDS[worst].format(share=losses.overheads[worst] / step.seconds)
            return f"{verdict}: {share:.0%} of its time brought no learning; most of that is {cause}."
    computing = sum(step.parts[name] for name in COMPUTING) / step.seconds
    return f"{verdict}: {computing:.0%} of its time it computed gradients; nothing else held it back much."


_OVERHEAD_WORDS = {
    "evaluation": "evaluation ({share:.0%}): evaluate more rarely, or fewer sentences",
    "checkpoint": "saving checkpoints ({share:.0%}): save more rarely",
    "optimizer": "the optimizer ({share:.0%}): batches are small for the number of parameters",
    "other": "work between the steps ({share:.0%})",
    "small batches": "what a batch costs before its first token ({share:.0%}): batches are too small",
}


def _name_straggler(losses: Losses, step: StepView, intervals: Sequence[Record], share: float) -> str:
    if losses.excess_of_slowest <= step.parts["straggler"]:
        return f"{share:.0%} of its time ranks waited for each other, now for this one, now for that one."
    rank = int(np.argmax(step.work_by_rank))
    host = next((each["slowest"].get("host") for each in reversed(intervals) if _is_slowest(each, rank)), None)
    where = f" on {host}" if isinstance(host, str) and host else ""
    return (
        f"rank {rank}{where} takes {format_step(losses.excess_of_slowest)} a step longer than the others ({share:.0%})."
    )


def _is_slowest(record: Record, rank: int) -> bool:
    return isinstance(record.get("slowest"), dict) and record["slowest"].get("rank") == rank


def _evidence(losses: Losses, step: StepView, intervals: Sequence[Record], correlation: float | None) -> list[str]:
    sentences = [f"A step took {format_step(step.seconds)} in all: {describe_parts(step.parts)}."]
    rates = [_traffic(each) for each in intervals]
    known = [rate for rate in rates if rate is not None]
    if known:
        names = (each["traffic"].get("interface") for each in intervals if _traffic(each) is not None)
        interface = next((name for name in names if isinstance(name, str)), "The busiest interface")
        sentences.append(f"{interface} carried {format_rate(_mean(known))} in the busier direction, in the mean.")
    if correlation is not None:
        sentences.append(f"Traffic and seconds per step go together with a correlation of {correlation:+.2f}.")
    if len(step.work_by_rank) > 1:
        fastest, slowest = min(step.work_by_rank), max(step.work_by_rank)
        sentences.append(f"Ranks worked {format_step(fastest)} to {format_step(slowest)} a step themselves.")
    if step.fixed_share:
        sentences.append(f"{step.fixed_share:.0%} of forward and backward do not depend on the number of tokens.")
    return sentences


def _misleading_signs(losses: Losses, step: StepView, intervals: Sequence[Record]) -> list[str]:
    waiting = step.parts["exposed_communication"] + step.parts["straggler"]
    share = waiting / step.seconds
    if losses.bottleneck not in ("network", "straggler"):
        return []
    signs = []
    for kind, name in (("gpu", "GPU"), ("cpu", "CPU")):
        values = [each["utilisation"].get(kind) for each in intervals if isinstance(each.get("utilisation"), dict)]
        numbers = _numbers(values)
        if numbers and _mean(numbers) >= BUSY_SHARE:
            signs.append(
                f"{name} utilisation was {_mean(numbers):.0%}, but {share:.0%} of each step was spent waiting inside "
                "communication: a kernel or thread that waits for the network counts as busy."
            )
    return signs


def _network_correlation(intervals: Sequence[Record]) -> float | None:
    """Between traffic and seconds per step; None where there are too few figures, or one of them never changes."""
    pairs = [(_traffic(each), number_or_none(each.get("seconds_per_step"))) for each in intervals]
    known = [(rate, seconds) for rate, seconds in pairs if rate is not None and seconds is not None]
    if len(known) < FEWEST_INTERVALS:
        return None
    traffic, seconds = np.array(known).T
    if np.ptp(traffic) <= 1e-9 * np.max(np.abs(traffic)) or np.ptp(seconds) <= 1e-9 * np.max(np.abs(seconds)):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        found = float(np.corrcoef(traffic, seconds)[0, 1])
    return found if np.isfinite(found) else None


def _traffic(record: Record) -> float | None:
    """Bytes per second in the busier direction."""
    traffic = record.get("traffic")
    if not isinstance(traffic, dict):
        return None
    rates = _numbers([traffic.get("sent_bytes_per_second"), traffic.get("received_bytes_per_second")])
    return max(rates, default=None)


def _numbers(values: Any) -> list[float]:
    found = map(number_or_none, values if isinstance(values, list) else [])
    return [number for number in found if number is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
