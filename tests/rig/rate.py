"""Limits the rate of a link with token buckets at both ends, so that each direction has the full rate."""

import re

from dragoman.run.errors import UsageError
from rig.tools import run_tool

BITS = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}
# The bucket holds what the link carries in this time. Half a millisecond at 1 Gbit/s halved the rate: the timer that
# refills the bucket comes late on a busy machine.
BURST_SECONDS = 0.01
MIN_BURST_BYTES = 16 * 1024
# How long a packet may wait for its turn. 50 ms caused about a thousand retransmissions in 2 s at 10 Mbit/s; with
# 200 ms losses still made the same step of a run take 1.5 s in one minute and 2.1 s in the next.
QUEUE_LATENCY = "1s"


def bits_per_second(rate: str) -> float:
    """Parses a rate in the notation of `tc`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{rate!r} is not a rate: write for example 500kbit, 100mbit or 1gbit.")
    return float(match[1]) * BITS[match[2]]


def burst_bytes(rate: str) -> int:
    """The size of the token bucket for a rate."""
    return max(MIN_BURST_BYTES, round(bits_per_second(rate) / 8 * BURST_SECONDS))


def limit_device(device: str, rate: str | None, namespace: str | None = None) -> None:
    """Limits what a device sends, in a named network namespace or here; None lifts the limit."""
    place = ["-netns", namespace] if namespace else []
    if rate is not None:
        shape = ["tbf", "rate", rate, "burst", str(burst_bytes(rate)), "latency", QUEUE_LATENCY]
        run_tool("tc", *place, "qdisc", "replace", "dev", device, "root", *shape)
    elif " tbf " in run_tool("tc", *place, "qdisc", "show", "dev", device):
        run_tool("tc", *place, "qdisc", "delete", "dev", device, "root")
