"""What a step's communication takes, by arithmetic: all-reduces over links, buckets, and their overlap with backward.

Seconds, bytes and bytes per second throughout; docs/cost-model.md explains each formula with an example.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
