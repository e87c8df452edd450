"""What a host must know to start its workers of one attempt. Apart from the agent, which imports torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class AttemptSpec:
    """What a host must know to start its workers."""

    attempt_id: str
    module: str
    arguments: tuple[str, ...]
    node_rank: int
    num_nodes: int
    first_rank: int
    num_workers: int
    master_address: str
    master_port: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "AttemptSpec":
        """What `to_json` gave."""
        return cls(**values | {"arguments": tuple(values["arguments"])})
