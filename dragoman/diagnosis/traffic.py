"""Relates the measured network traffic of a run to what its own gradients need, and to the time of its steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from dragoman.diagnosis.step_model import ring_bytes_per_node
from dragoman.run.records import TrainRecord
from dragoman.run.units import format_rate

FEWEST_FOR_CORRELATION = 8
"""Intervals; with fewer, chance alone makes large correlations."""
SIGNIFICANT = 0.05
FOREIGN_FACTOR = 2.0
"""Traffic above this multiple of what the gradients need is not the run's alone; headers add 5 %."""
_BACKGROUND_BYTES_PER_SECOND = 1e6
"""Less traffic by others does not matter."""


@dataclass(frozen=True)
class NetworkUse:
    """Network traffic of a run with several workers, in the busier direction of the busiest interface."""

    interface: str | None = None
    bytes_per_second: float | None = None
    other_bytes_per_second: float = 0.0
    """What is far more than the gradients of the run need; 0 where that cannot be told."""
    correlation: float | None = None
    """Correlation with the seconds per step; None if it is no evidence."""
    p: float = 1.0
    """Probability of at least such a correlation by chance."""
    num_intervals: int = 0


def network_use(records: Sequence[TrainRecord]) -> NetworkUse:
    """Finds the traffic of a run; a run with one worker uses no network."""
    pairs = [
        (rate, each)
        for each in records
        if len(each.work_seconds_by_rank or []) != 1
        and each.traffic is not None
        and (rate := each.traffic.busier_direction) is not None
    ]
    if not pairs:
        return NetworkUse()
    rate = fmean(rate for rate, _ in pairs)
    own = [needed for _, each in pairs if (needed := own_bytes_per_second(each)) is not None]
    interface = next((each.traffic.interface for _, each in pairs if each.traffic and each.traffic.interface), None)
    # Between workers of one machine, more than the gradients goes over the loopback interface.
    is_shared = bool(own) and interface != "lo" and rate > FOREIGN_FACTOR * fmean(own) + _BACKGROUND_BYTES_PER_SECOND
    timed = [(rate, each.seconds_per_step) for rate, each in pairs if each.seconds_per_step is not None]
    found, p = (None, 1.0) if is_shared else correlate(timed)
    return NetworkUse(
        interface=interface,
        bytes_per_second=rate,
        other_bytes_per_second=max(0.0, rate - fmean(own)) if is_shared else 0.0,
        correlation=found,
        p=p,
        num_intervals=len(timed),
    )


def own_bytes_per_second(record: TrainRecord) -> float | None:
    """Bytes that gradients or weights need through the port of a machine, or between the workers of a single one."""
    num_ranks = len(record.work_seconds_by_rank or [])
    seconds = record.wall_seconds_per_step or record.seconds_per_step
    if not record.gradient_bytes or not record.num_machines or num_ranks < 2 or not seconds or seconds < 0:
        return None
    if record.replica_bytes_per_step is not None and record.num_machines > 1:
        return record.replica_bytes_per_step * (record.num_machines - 1) / seconds
    per_rank = ring_bytes_per_node(record.gradient_bytes, num_ranks)
    return (per_rank if record.num_machines > 1 else per_rank * num_ranks) / seconds


def correlate(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float]:
    """Returns the correlation and its p value; None if there are too few pairs, or if chance explains it."""
    if len(pairs) < FEWEST_FOR_CORRELATION:
        return None, 1.0
    first, second = np.array(pairs, dtype=np.float64).T
    if any(np.ptp(values) <= 1e-9 * np.max(np.abs(values)) for values in (first, second)):
        return None, 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        found = float(np.corrcoef(first, second)[0, 1])
    if not np.isfinite(found):
        return None, 1.0
    # By Fisher's transformation, which makes correlations nearly normal.
    deviations = abs(math.atanh(max(-1 + 1e-12, min(1 - 1e-12, found)))) * math.sqrt(len(pairs) - 3)
    p = math.erfc(deviations / math.sqrt(2))
    return (found, p) if p < SIGNIFICANT else (None, p)


def describe_network_use(use: NetworkUse) -> list[str]:
    """Describes the traffic, who else caused it, and how it relates to the step time."""
    if use.bytes_per_second is None:
        return []
    interface = use.interface or "The busiest interface"
    messages = [f"{interface} carried {format_rate(use.bytes_per_second)} on average in the busier direction."]
    if use.other_bytes_per_second:
        messages.append(
            f"Other programs used the network: about {format_rate(use.other_bytes_per_second)} of that, since the "
            "gradients of the run need only the rest."
        )
    if use.correlation is not None:
        messages.append(
            f"Traffic and seconds per step have a correlation of {use.correlation:+.2f} (p = {use.p:.2g}, "
            f"{use.num_intervals:,} intervals)."
        )
    return messages
