"""The one model of a training step: its parts, the exchange of gradients, and the cause that limits it.

`dragoman plan` fills it with data-sheet figures, `check` with measurements, `verdict` with the records of a run. Units
are seconds, bytes and bytes per second; docs/cost-model.md explains each formula with an example.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

BOTTLENECKS = ("compute", "network", "input", "straggler", "overhead", "other_programs")
PARTS = (
    "forward",
    "backward",
    "hidden_communication",
    "exposed_communication",
    "straggler",
    "data",
    "optimizer",
    "evaluation",
    "checkpoint",
    "other",
)
"""The parts of a step, as records name them; they add up to its wall time."""
COMPUTING = ("forward", "backward", "hidden_communication")
_OVERHEADS = ("evaluation", "checkpoint", "optimizer", "other")
BOTTLENECK_SHARE = 0.3
"""A cause is the bottleneck if a step without it would be shorter by at least this share; otherwise compute is."""
SHORTEST_STEP = 1e-9
"""Seconds; shares of anything shorter would be noise or a division by zero."""


@dataclass(frozen=True)
class Step:
    """A typical step: measured, predicted or planned."""

    parts: Mapping[str, float]
    """Seconds by the names in `PARTS`, mean over ranks."""
    slowest: Mapping[str, float] | None = None
    """Seconds by part of the rank with the most work of its own."""
    work_by_rank: Sequence[float] = ()
    """Seconds of own work of each rank, without waiting."""
    fixed_share: float = 0.0
    """Share of forward and backward that does not depend on the number of tokens."""
    lost_share: float = 0.0
    """Share of the step that it takes longer because other programs used the cores."""

    @property
    def seconds(self) -> float:
        """Wall time."""
        return sum(self.parts.values())

    @cached_property
    def costs(self) -> "CauseCosts":
        """Seconds that each cause takes."""
        return _find_costs(self)

    @property
    def bottleneck(self) -> str:
        """One of `BOTTLENECKS`, or "unknown" for a step without parts."""
        return self.costs.bottleneck


@dataclass(frozen=True)
class CauseCosts:
    """How much shorter a step would be without each cause; `compute` is the rest."""

    seconds: dict[str, float]
    overheads: dict[str, float]
    """Seconds of each kind of overhead."""
    excess_of_slowest: float
    """Seconds that the slowest rank works longer than the mean of the others."""

    @property
    def bottleneck(self) -> str:
        """The most expensive cause if it reaches `BOTTLENECK_SHARE`, else compute; unknown if the step has no time."""
        if not sum(self.seconds.values()):
            return "unknown"
        causes = {cause: seconds for cause, seconds in self.seconds.items() if cause != "compute"}
        worst = max(causes, key=causes.__getitem__)
        return worst if self.share(worst) >= BOTTLENECK_SHARE else "compute"

    def share(self, cause: str) -> float:
        """Share of the step that a cause takes."""
        total = sum(self.seconds.values())
        return self.seconds[cause] / total if total else 0.0

    @property
    def margin(self) -> float:
        """How clear the bottleneck is: its share less that of the next candidate."""
        found = self.bottleneck
        if found == "compute":
            return BOTTLENECK_SHARE - max(self.share(cause) for cause in self.seconds if cause != "compute")
        rivals = [self.share(cause) for cause in self.seconds if cause not in (found, "compute")]
        return self.share(found) - max([*rivals, BOTTLENECK_SHARE])


def _find_costs(step: Step) -> CauseCosts:
    """Computes how much shorter a step would be without each cause."""
    parts = {name: step.parts.get(name, 0.0) for name in PARTS}
    overheads = {name: parts[name] for name in _OVERHEADS}
    overheads["small batches"] = step.fixed_share * sum(parts[name] for name in COMPUTING)
    costs = {"network": parts["exposed_communication"], "input": parts["data"], "straggler": parts["straggler"]}
    excess, cause = _excess_of_slowest(step, parts)
    if excess > parts["straggler"]:
        # The mean over ranks hides most of a delay that only one rank has; without it, all of the delay would go.
        costs["straggler"] = 0.0
        missing = excess * (1 - 1 / len(step.work_by_rank))
        if cause == "data":
            costs["input"] += missing
        elif cause == "checkpoint":
            overheads["checkpoint"] += missing
        else:
            costs["straggler"] = excess
    costs["overhead"] = sum(overheads.values())
    total = step.seconds
    costs = {name: min(max(0.0, seconds), total) for name, seconds in costs.items()}
    # Other programs make ranks wait for each other first; then they make every part longer.
    lost = min(1.0, step.lost_share) * total
    explained = min(lost, costs["straggler"])
    scale = 1 - (lost - explained) / total if total else 1.0
    costs = {name: seconds * scale for name, seconds in costs.items()}
    overheads = {name: seconds * scale for name, seconds in overheads.items()}
    costs["straggler"] = max(0.0, costs["straggler"] - explained)
    costs["other_programs"] = lost
    rest = max(0.0, total - sum(costs.values()))
    return CauseCosts({"compute": rest} | costs, overheads, excess)


def _excess_of_slowest(step: Step, parts: Mapping[str, float]) -> tuple[float, str]:
    """How much longer the slowest rank works than the mean of the others, and on what."""
    work = sorted(step.work_by_rank)
    if len(work) < 2 or step.slowest is None:
        return 0.0, ""
    excess = work[-1] - fmean(work[:-1])
    means = {
        "data": parts["data"],
        "checkpoint": parts["checkpoint"],
        "computing": sum(parts[name] for name in COMPUTING) + parts["optimizer"],
    }
    own = {
        "data": step.slowest.get("data", 0.0),
        "checkpoint": step.slowest.get("checkpoint", 0.0),
        "computing": sum(step.slowest.get(name, 0.0) for name in ("forward", "backward", "optimizer")),
    }
    return excess, max(means, key=lambda name: own[name] - means[name])


# Exchange of gradients: buckets are sent while backward computes


def bucket_sizes(num_bytes: int, bucket_bytes: int) -> list[int]:
    """Bytes of each bucket in the order they are sent: full ones, then the rest."""
    num_full, rest = divmod(num_bytes, bucket_bytes)
    return [bucket_bytes] * num_full + [rest] * (rest > 0)


def bucket_ready_times(sizes: Sequence[float], backward_seconds: float) -> list[float]:
    """When each bucket is complete, in seconds before the end of backward, which yields gradients at an even pace."""
    total = left = sum(sizes)
    times = []
    for size in sizes:
        left -= size
        times.append(backward_seconds * left / total)
    return times


def overlap_with_backward(
    ready: Sequence[float], seconds: Sequence[float], slowdown: float = 1.0
) -> tuple[float, float]:
    """Seconds of transfer during backward (hidden) and after it (exposed).

    Buckets are sent one at a time, each as soon as it is ready (in seconds before the end of backward) and the one
    before it has arrived. During backward a transfer takes `slowdown` times as long.
    """
    now, hidden = -math.inf, 0.0
    for seconds_before_end, transfer_seconds in zip(ready, seconds, strict=True):
        begin = max(now, -seconds_before_end)
        now = _arrival(begin, transfer_seconds, slowdown)
        hidden += max(0.0, min(now, 0.0) - begin)
    return hidden, max(0.0, now)


def _arrival(begin: float, seconds: float, slowdown: float) -> float:
    """When a transfer arrives; backward ends at time 0."""
    if begin >= 0.0:
        return begin + seconds
    if begin + seconds * slowdown <= 0.0:
        return begin + seconds * slowdown
    return seconds + begin / slowdown


def add_exchange(
    own_parts: Mapping[str, float],
    ready: Sequence[float],
    seconds: Sequence[float],
    compute_slowdown: float = 1.0,
    communication_slowdown: float = 1.0,
) -> dict[str, float]:
    """Returns the parts of a step that also exchanges its gradients.

    Computing and sending may slow each other down, as on a CPU: factors on the time of each while both happen.
    """
    backward = own_parts.get("backward", 0.0)
    hidden, exposed = overlap_with_backward(ready, seconds, communication_slowdown)
    hidden = min(hidden, backward)
    delay = hidden * max(0.0, compute_slowdown - 1.0)
    return {
        **own_parts,
        "backward": backward - hidden,
        "hidden_communication": hidden + delay,
        "exposed_communication": max(0.0, exposed - delay),
    }


# Links and all-reduces

_IP_AND_TCP_HEADER_BYTES = 52
"""IPv4 20, TCP 20, and the timestamps that Linux adds to every segment 12."""
_ETHERNET_HEADER_BYTES = 14


@dataclass(frozen=True)
class Link:
    """One direction of a link between two ranks or nodes; the rate is that of payload, without headers."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, num_bytes: float) -> float:
        """How long one message takes."""
        return self.latency_seconds + num_bytes / self.bytes_per_second


def ring_all_reduce_seconds(num_bytes: float, num_ranks: int, link: Link) -> float:
    """A ring all-reduce in which every hop is the same link: 2(N-1) rounds of a message of bytes/N; 0 for one rank."""
    return 2 * (num_ranks - 1) * link.seconds(num_bytes / num_ranks)


def packed_ring_all_reduce_seconds(
    num_bytes: float, num_nodes: int, ranks_per_node: int, inside: Link, between: Link, is_interleaved: bool = False
) -> float:
    """One ring over all ranks of all nodes: the slowest hop sets the rate, and the latencies of all hops add up.

    In a packed ring the ranks of a node are neighbours, so it enters and leaves each node once. Interleaved ranks (on
    nodes a, b, a, b) cross the network at every hop, and those of a node share its port.
    """
    num_ranks = num_nodes * ranks_per_node
    if num_nodes == 1:
        return ring_all_reduce_seconds(num_bytes, num_ranks, inside)
    if is_interleaved or ranks_per_node == 1:
        shared_port = Link(between.latency_seconds, between.bytes_per_second / ranks_per_node)
        return ring_all_reduce_seconds(num_bytes, num_ranks, shared_port)
    num_hops = 2 * (num_ranks - 1)
    num_crossings = math.ceil(num_hops / ranks_per_node)
    latency_seconds = num_crossings * between.latency_seconds + (num_hops - num_crossings) * inside.latency_seconds
    slowest = min(inside.bytes_per_second, between.bytes_per_second)
    return latency_seconds + num_hops / num_ranks * num_bytes / slowest


def ring_bytes_per_node(
    num_bytes: float, num_ranks: int, ranks_per_node: int = 1, is_interleaved: bool = False
) -> float:
    """Bytes through a node's port in each direction for one ring all-reduce; 0 where all ranks are on one node."""
    if num_ranks <= ranks_per_node:
        return 0.0
    num_crossing_ranks = ranks_per_node if is_interleaved else 1
    return num_crossing_ranks * 2 * (num_ranks - 1) / num_ranks * num_bytes


def tcp_goodput(mtu_bytes: int = 1500, frame_overhead_bytes: int = _ETHERNET_HEADER_BYTES) -> float:
    """The share of a link's bytes that is payload: 1448/1514 for frames of 1500.

    A frame counts with its 14-byte Ethernet header, as interface counters and traffic shapers count. A cable also
    carries preamble, checksum and gap: 38 bytes per frame, which gives 1448/1538.
    """
    return (mtu_bytes - _IP_AND_TCP_HEADER_BYTES) / (mtu_bytes + frame_overhead_bytes)
