"""How long a step takes with each way to synchronise, and how many bytes it sends: formulas without measurements.

`check`, `plan` and `verdict` fill them with figures of their own; docs/cost-model.md has an example.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

STREAMED_INTERVALS, WAITED_INTERVALS = (1, 2, 4, 8, 16, 32), (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Steps between two averages of weights that are considered. Streamed means: after each step, a part of the weights is
sent, and arrives while the next step computes, because a later average is worth less. The others are waited for."""
LOCAL_CHOICES = (*((each, each, True) for each in STREAMED_INTERVALS), *((each, 1, False) for each in WAITED_INTERVALS))
"""Interval, fragments, and whether weights travel while the next steps compute."""
LOCAL_WIRE = "int4"
"""Format of the differences that are sent."""
SHOWN_INTERVALS = (1, 4, 16, 64, 256)
"""Those that tables for people have."""
MEGABYTE = 1e6
FLOAT_BYTES = 4
_BLOCK, _SCALE_BYTES = 256, 4
"""Values that share a scale, and its bytes: as cluster/wire_formats.py sends them."""
_BYTES_BY_FORMAT = {
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "int8": 1 + _SCALE_BYTES / _BLOCK,
    "int4": 0.5 + _SCALE_BYTES / _BLOCK,
}


class ExchangePlan(Protocol):
    """What the time of a step depends on: a `Synchronisation`, or a planned one, which needs no settings of a run."""

    @property
    def strategy(self) -> str:
        """Name of the strategy."""

    @property
    def interval(self) -> int:
        """Steps between two averages of all weights."""

    @property
    def wire(self) -> str:
        """Format in which replicas send."""

    @property
    def fragments(self) -> int:
        """Parts of the weights that are averaged in turn."""

    @property
    def overlap(self) -> bool:
        """Whether weights travel while the next steps compute."""


@dataclass(frozen=True)
class ReplicaPlaces:
    """Where the replicas of a run are computed, as far as it decides what crosses the network."""

    num_replicas: int
    num_leaders: int
    """Ranks that speak for one replica or several."""
    most_led: int
    """Largest number of replicas that one rank leads: each leader sends as many payloads."""
    port_crossings: int
    """Largest number of hops that leave one machine, in a ring over the leaders."""
    ranks_of_replica: int
    machines_of_replica: int
    replicas_of_rank: int
    """The three largest numbers of their kind."""


def place_replicas(machines: Sequence[str], virtual_workers: int, num_replicas: int) -> ReplicaPlaces:
    """Finds the ranks of each replica; virtual workers are shared in order, as evenly as possible."""
    size, width = len(machines), virtual_workers // num_replicas
    shares = [range(rank * virtual_workers // size, (rank + 1) * virtual_workers // size) for rank in range(size)]
    replicas_of = [{worker // width for worker in share} for share in shares]
    ranks_of = [[rank for rank, own in enumerate(replicas_of) if replica in own] for replica in range(num_replicas)]
    led = [ranks[0] for ranks in ranks_of]
    leaders = sorted(set(led))
    leaving = [
        machines[leader]
        for leader, following in zip(leaders, [*leaders[1:], leaders[0]], strict=True)
        if machines[leader] != machines[following]
    ]
    return ReplicaPlaces(
        num_replicas=num_replicas,
        num_leaders=len(leaders),
        most_led=max(map(led.count, leaders)),
        port_crossings=max(map(leaving.count, leaving), default=0),
        ranks_of_replica=max(map(len, ranks_of)),
        machines_of_replica=max(len({machines[rank] for rank in ranks}) for ranks in ranks_of),
        replicas_of_rank=max(map(len, replicas_of)),
    )


@dataclass(frozen=True)
class ExchangeFacts:
    """Times and sizes that the step of every strategy is built from."""

    every_step_seconds: float
    """A step with exact sums over all ranks."""
    every_step_bytes: float
    """Bytes of such a step through the port of the busiest machine, in each direction."""
    computing_seconds: float
    """A step that exchanges gradients inside machines only."""
    replica_seconds: float
    """A step that exchanges gradients inside replicas only."""
    replica_bytes: float
    """Bytes of such a step through a port: 0 unless a replica spans machines."""
    num_machines: int
    places: ReplicaPlaces
    payload_bytes: Mapping[str, float]
    """Bytes of the whole gradient by format."""
    encoding_seconds: Mapping[str, float]
    """Seconds to encode one payload and to add up those of all replicas, by format."""
    between: Callable[[float, int], float]
    """Seconds that bytes need through a port in a number of rounds."""
    broadcast_inside: Callable[[float], float]
    """Seconds until the bytes of a leader have reached the other ranks of its machine."""
    compute_slowdown: float = 1.0
    communication_slowdown: float = 1.0
    gather: Callable[[float], float] | None = None
    """Seconds of a gather between leaders, by the bytes that one sends; None where that was not measured."""


@dataclass(frozen=True)
class StrategyStep:
    """A step with one strategy: its time, the part of it that waits for the network, and its bytes."""

    seconds: float
    waiting_seconds: float
    bytes_per_host: float


def payload_sizes(gradient_bytes: float, measured: Mapping[str, float] | None = None) -> dict[str, float]:
    """Bytes of a gradient in each format, from its bytes in fp32; measured sizes count before these."""
    sizes = {name: gradient_bytes / FLOAT_BYTES * each for name, each in _BYTES_BY_FORMAT.items()}
    return sizes | dict(measured or {})


def strategy_step(facts: ExchangeFacts, plan: ExchangePlan) -> StrategyStep:
    """Computes the step of a strategy, after the steps that are made together."""
    match plan.strategy:
        case "every_step":
            waiting = max(0.0, facts.every_step_seconds - facts.computing_seconds)
            return StrategyStep(facts.every_step_seconds, waiting, facts.every_step_bytes)
        case "hierarchical":
            return _hierarchical_step(facts)
        case "powersgd":
            return _powersgd_step(facts)
        case "local" | "diloco":
            return _local_step(facts, plan)
    payload = facts.payload_bytes[plan.wire]
    sent, seconds = _gather(facts, payload)
    encoding = facts.encoding_seconds.get(plan.wire, 0.0) + _tell_replica(facts, payload)
    base = facts.replica_seconds
    return StrategyStep(base + encoding + seconds, _own_waiting(facts) + seconds, facts.replica_bytes + sent)


def _hierarchical_step(facts: ExchangeFacts) -> StrategyStep:
    """Sums inside each machine during backward; then over one rank of each machine, then tells the others."""
    whole, num = facts.payload_bytes["fp32"], facts.num_machines
    sent = 2 * (num - 1) / num * whole
    seconds = facts.between(sent, 2 * (num - 1))
    return StrategyStep(facts.computing_seconds + seconds + facts.broadcast_inside(whole), seconds, sent)


def _powersgd_step(facts: ExchangeFacts) -> StrategyStep:
    """Sums two sets of factors, one after the other, over the leaders."""
    payload, num = facts.payload_bytes["powersgd"], facts.places.num_leaders
    sent = facts.places.port_crossings * 2 * (num - 1) / num * payload
    seconds = facts.between(sent, 4 * (num - 1))
    own = facts.encoding_seconds.get("powersgd", 0.0)
    own += facts.broadcast_inside(payload) if facts.places.ranks_of_replica > 1 else 0.0
    base = facts.replica_seconds
    return StrategyStep(base + own + seconds, _own_waiting(facts) + seconds, facts.replica_bytes + sent)


def _local_step(facts: ExchangeFacts, plan: ExchangePlan) -> StrategyStep:
    """Averages one fragment of the weights every few steps, and waits for it or lets it travel meanwhile."""
    num_steps = max(1, plan.interval // plan.fragments)
    payload = facts.payload_bytes[plan.wire] / plan.fragments
    sent, travelling = _gather(facts, payload)
    encoding = facts.encoding_seconds.get(plan.wire, 0.0) / plan.fragments + _tell_replica(facts, payload)
    own = num_steps * facts.replica_seconds + encoding
    total = own + travelling
    if plan.overlap:
        total = overlap_with_steps(own, travelling, facts.compute_slowdown, facts.communication_slowdown)
    waiting = _own_waiting(facts) + (total - own) / num_steps
    return StrategyStep(total / num_steps, waiting, facts.replica_bytes + sent / num_steps)


def overlap_with_steps(
    own_seconds: float, travelling_seconds: float, compute_slowdown: float = 1.0, communication_slowdown: float = 1.0
) -> float:
    """Seconds of some steps while an exchange travels, which must have arrived when they end.

    Each second of sending delays computing by `compute_slowdown` - 1 seconds, as `Contention` measures it, and sending
    takes `communication_slowdown` times as long meanwhile. It is never slower than first one, then the other.
    """
    one_after_the_other = own_seconds + travelling_seconds
    travelling = travelling_seconds * communication_slowdown
    delayed = own_seconds + (compute_slowdown - 1) * travelling
    if travelling > delayed:  # computing ends first, and what is left travels undisturbed
        computing = own_seconds / (2 - compute_slowdown)
        delayed = travelling_seconds + computing * (1 - 1 / communication_slowdown)
    return min(delayed, one_after_the_other)


def _gather(facts: ExchangeFacts, payload: float) -> tuple[float, float]:
    """Bytes through a port, and seconds, until all L leaders have the payloads of all replicas: L - 1 rounds."""
    places = facts.places
    num_rounds = places.num_leaders - 1
    sent = places.port_crossings * num_rounds * places.most_led * payload
    gather = facts.gather or (lambda num_bytes: facts.between(num_bytes, num_rounds))
    return sent, gather(sent)


def _tell_replica(facts: ExchangeFacts, payload: float) -> float:
    """Seconds until the other ranks of a replica have the payloads that its leader gathered."""
    places = facts.places
    return facts.broadcast_inside(places.num_replicas * payload) if places.ranks_of_replica > 1 else 0.0


def _own_waiting(facts: ExchangeFacts) -> float:
    """Seconds that a replica on several machines waits for its own sums."""
    return max(0.0, facts.replica_seconds - facts.computing_seconds) if facts.places.machines_of_replica > 1 else 0.0


def broadcast_share(num_ranks: int) -> float:
    """Time of a broadcast along a tree, relative to a ring all-reduce of as many bytes over the same ranks."""
    if num_ranks < 2:
        return 0.0
    return math.ceil(math.log2(num_ranks)) * num_ranks / (2 * (num_ranks - 1))
