"""What a step's communication takes, by arithmetic: all-reduces over links, buckets, and their overlap with backward.

Seconds, bytes and bytes per second throughout; docs/cost-model.md explains each formula with an example.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

BOTTLENECKS = ("compute", "network", "input", "straggler", "overhead")
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
"""Of a step, as records name them; they add up to its wall time."""
COMPUTING = ("forward", "backward", "hidden_communication")
BINDING_SHARE = 0.3
"""A cause that would give back less than this does not bind: the step is bound by computing."""


@dataclass(frozen=True)
class StepView:
    """What is known of a typical step."""

    parts: Mapping[str, float]
    """Seconds by the names in `PARTS`, mean over ranks."""
    slowest: Mapping[str, float] | None = None
    """Seconds by part of the rank that had most to do itself."""
    work_by_rank: Sequence[float] = ()
    fixed_share: float = 0.0
    """Of forward and backward: what they would take for a batch of no tokens."""

    @property
    def seconds(self) -> float:
        """Wall time."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Losses:
    """Seconds a step would save without each cause; `compute` is what remains."""

    seconds: dict[str, float]
    overheads: dict[str, float]
    """What the overhead consists of."""
    excess_of_slowest: float
    """How much longer the slowest rank works than the others, step after step."""

    @property
    def bottleneck(self) -> str:
        """The cause that costs most, if it costs enough; unknown where no time was."""
        if not sum(self.seconds.values()):
            return "unknown"
        causes = {cause: seconds for cause, seconds in self.seconds.items() if cause != "compute"}
        worst = max(causes, key=causes.__getitem__)
        return worst if self.share(worst) >= BINDING_SHARE else "compute"

    def share(self, cause: str) -> float:
        """Of the wall time."""
        total = sum(self.seconds.values())
        return self.seconds[cause] / total if total else 0.0

    @property
    def margin(self) -> float:
        """How clear the verdict is: the share between it and the next best one."""
        found = self.bottleneck
        if found == "compute":
            return BINDING_SHARE - max(self.share(cause) for cause in self.seconds if cause != "compute")
        rivals = [self.share(cause) for cause in self.seconds if cause not in (found, "compute")]
        return self.share(found) - max([*rivals, BINDING_SHARE])


def find_losses(step: StepView) -> Losses:
    """What each cause costs."""
    parts = {name: step.parts.get(name, 0.0) for name in PARTS}
    computing = sum(parts[name] for name in COMPUTING)
    overheads = {name: parts[name] for name in ("evaluation", "checkpoint", "optimizer", "other")}
    overheads["small batches"] = step.fixed_share * computing
    losses = {"network": parts["exposed_communication"], "input": parts["data"], "straggler": parts["straggler"]}
    excess, cause = _excess_of_slowest(step, parts)
    if excess > parts["straggler"]:
        # Mean figures hold a share of what only one rank suffers from; what would be saved is all of it.
        losses["straggler"] = 0.0
        missing = excess * (1 - 1 / len(step.work_by_rank))
        if cause == "data":
            losses["input"] += missing
        elif cause == "checkpoint":
            overheads["checkpoint"] += missing
        else:
            losses["straggler"] = excess
    losses["overhead"] = sum(overheads.values())
    total = step.seconds
    losses = {name: min(max(0.0, seconds), total) for name, seconds in losses.items()}
    remainder = max(0.0, total - sum(losses.values()))
    return Losses({"compute": remainder} | losses, overheads, excess)


def _excess_of_slowest(step: StepView, parts: Mapping[str, float]) -> tuple[float, str]:
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


IP_AND_TCP_HEADER_BYTES = 52
"""IPv4 20, TCP 20, and the timestamps that Linux adds to every segment 12."""
ETHERNET_HEADER_BYTES = 14


@dataclass(frozen=True)
class Link:
    """One direction of a way between two ranks or nodes; the rate is that of payload, headers already taken off."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, num_bytes: float) -> float:
        """How long one message takes."""
        return self.latency_seconds + num_bytes / self.bytes_per_second


def ring_all_reduce_seconds(num_bytes: float, num_ranks: int, link: Link) -> float:
    """A ring all-reduce in which every hop is the same link: 2(N-1) rounds of a message of bytes/N; 0 for one rank."""
    return 2 * (num_ranks - 1) * link.seconds(num_bytes / num_ranks)


def hierarchical_all_reduce_seconds(
    num_bytes: float, num_nodes: int, ranks_per_node: int, inside: Link, between: Link
) -> float:
    """Summed inside each node first, then in a ring of nodes: each node's port carries the bytes of one rank only."""
    return ring_all_reduce_seconds(num_bytes, ranks_per_node, inside) + ring_all_reduce_seconds(
        num_bytes, num_nodes, between
    )


def packed_ring_all_reduce_seconds(
    num_bytes: float, num_nodes: int, ranks_per_node: int, inside: Link, between: Link, is_interleaved: bool = False
) -> float:
    """One ring over all ranks of all nodes: the slowest hop sets the rate, and latencies add up along the way.

    Packed neighbours share a node, so that a ring enters and leaves each node once. Where ranks are dealt out to the
    nodes by turns (interleaved), every hop crosses the network and the ranks of a node share its port.
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
    """What a node's port carries in each direction for one ring all-reduce; 0 where all ranks are on one node."""
    if num_ranks <= ranks_per_node:
        return 0.0
    num_crossing_ranks = ranks_per_node if is_interleaved else 1
    return num_crossing_ranks * 2 * (num_ranks - 1) / num_ranks * num_bytes


def bucket_sizes(num_bytes: int, bucket_bytes: int) -> list[int]:
    """Bytes of each bucket in the order they are sent: full ones, then the rest."""
    num_full, rest = divmod(num_bytes, bucket_bytes)
    return [bucket_bytes] * num_full + [rest] * (rest > 0)


def bucket_ready_times(sizes: Sequence[float], backward_begin: float, backward_seconds: float) -> list[float]:
    """When each bucket is complete, if backward yields gradients at an even pace: after its share of all bytes."""
    total = sum(sizes)
    times, num_done = [], 0.0
    for size in sizes:
        num_done += size
        times.append(backward_begin + backward_seconds * num_done / total)
    return times


def overlap_ends(ready: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """When each bucket has travelled: one at a time, each as soon as it is ready and the one before it has arrived."""
    ends: list[float] = []
    for ready_at, travel_seconds in zip(ready, seconds, strict=True):
        ends.append(max(ready_at, ends[-1] if ends else ready_at) + travel_seconds)
    return ends


def exposed_seconds(ready: Sequence[float], seconds: Sequence[float], compute_end: float) -> float:
    """How long a step waits for the last bucket after its computation has ended."""
    ends = overlap_ends(ready, seconds)
    return max(0.0, ends[-1] - compute_end) if ends else 0.0


def hidden_seconds(ready: Iterable[float], seconds: Sequence[float], compute_end: float) -> float:
    """How long buckets travel while backward still computes; travelling is one at a time, so this is a plain sum."""
    ready = list(ready)
    ends = overlap_ends(ready, seconds)
    return sum(max(0.0, min(end, compute_end) - (end - travel)) for end, travel in zip(ends, seconds, strict=True))


def tcp_goodput(mtu_bytes: int = 1500, frame_overhead_bytes: int = ETHERNET_HEADER_BYTES) -> float:
    """The share of a link's bytes that is payload: 1448/1514 for frames of 1500.

    What counts as the link's bytes is the frame with its 14-byte Ethernet header, as interface counters and traffic
    shapers count. A cable also carries preamble, checksum and gap: 38 bytes a frame, which gives 1448/1538.
    """
    return (mtu_bytes - IP_AND_TCP_HEADER_BYTES) / (mtu_bytes + frame_overhead_bytes)
