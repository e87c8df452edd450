"""What a rehearsal measured: a few steps of the model and the way between the machines, as plain figures in JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dragoman.run.units import BITS_PER_BYTE

MEGA = 1e6


@dataclass(frozen=True)
class Transfer:
    """So many bytes took so many seconds, in the mean."""

    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class MeasuredLink:
    """The way from one machine to another, as it is used."""

    sender: str
    receiver: str
    latency_seconds: float
    bytes_per_second: float
    interface: str = ""
    """The one of the sender whose counters rose."""
    kind: str = "unknown"
    """loopback, vpn, virtual, ethernet or unknown."""
    claimed_megabits_per_second: float | None = None

    @property
    def megabits_per_second(self) -> float:
        """Payload that really arrived."""
        return self.bytes_per_second * BITS_PER_BYTE / MEGA

    def to_json(self) -> dict[str, Any]:
        """As `dragoman check --json` prints it."""
        return {
            "from": self.sender,
            "to": self.receiver,
            "interface": self.interface,
            "kind": self.kind,
            "latency_seconds": self.latency_seconds,
            "bytes_per_second": self.bytes_per_second,
            "megabytes_per_second": self.bytes_per_second / MEGA,
            "megabits_per_second": self.megabits_per_second,
            "claimed_megabits_per_second": self.claimed_megabits_per_second,
        }


@dataclass(frozen=True)
class Contention:
    """What computing and sending cost each other: factors on the time of each, 1.0 for nothing."""

    compute_slowdown: float
    communication_slowdown: float


@dataclass
class Measurements:
    """Everything a prediction is made from; filled stage by stage, so that a rehearsal cut short still tells much."""

    machines: Sequence[str]
    """The machine of each rank."""
    gradient_bytes: int
    bucket_bytes: Sequence[int]
    alone_parts: dict[str, float] = field(default_factory=dict)
    """Seconds per step without any exchange, mean over ranks."""
    alone_steps: list[float] = field(default_factory=list)
    """Seconds of each such step, on the rank that took longest."""
    work_by_rank: list[float] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    bucket_ready: list[float] = field(default_factory=list)
    """When each bucket is complete, in seconds before the end of backward."""
    fixed_share: float = 0.0
    all_reduce: list[Transfer] = field(default_factory=list)
    """Of all ranks, by rising size."""
    all_reduce_inside: list[Transfer] = field(default_factory=list)
    """Of the ranks of one machine."""
    contention: Contention | None = None
    links: list[MeasuredLink] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    """Seconds of whole steps, with the exchange."""
    step_parts: dict[str, float] = field(default_factory=dict)
    """Of those, mean over ranks."""
    notes: list[str] = field(default_factory=list)
    """What could not be looked at."""
    seconds: float = 0.0
    """How long the rehearsal took."""

    @property
    def machine_names(self) -> list[str]:
        """Each machine once, in the order of ranks."""
        return list(dict.fromkeys(self.machines))

    @property
    def is_interleaved(self) -> bool:
        """Whether neighbouring ranks are on different machines although they need not be."""
        changes = sum(a != b for a, b in zip(self.machines, self.machines[1:], strict=False))
        return changes > len(self.machine_names) - 1

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        nested = {
            "all_reduce": [Transfer(**each) for each in values["all_reduce"]],
            "all_reduce_inside": [Transfer(**each) for each in values["all_reduce_inside"]],
            "links": [MeasuredLink(**each) for each in values["links"]],
            "contention": Contention(**values["contention"]) if values["contention"] else None,
        }
        return cls(**{**values, **nested})
