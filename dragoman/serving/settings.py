"""Settings of a server: where it listens, who may use it, and how much."""

from dataclasses import dataclass

_BYTES_PER_CHARACTER = 12
"""JSON may write a character outside the basic plane as two escapes of six bytes."""
_BYTES_BESIDE_TEXT = 64 * 1024


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server."""

    api_key: str | None = None
    """Translating needs this key; None: it needs none."""
    is_local: bool = True
    """Whether only programs of this machine reach the server."""
    max_characters: int = 50_000
    """Most characters of all texts of a request."""
    max_texts: int = 1_000
    max_alternatives: int = 10
    max_waiting: int = 2_000
    """Requests are refused while this many lines wait."""
    max_seconds: float = 60.0
    """Longest time for a request to arrive, and then to be translated."""
    num_threads: int = 1
    """Threads that compute translations."""

    @property
    def num_batches_at_once(self) -> int:
        """Batches in work: one more than compute, whose lines are cut and joined meanwhile, so that no core waits."""
        return self.num_threads + 1

    @property
    def max_body_bytes(self) -> int:
        """Largest body that can hold a text of the largest size."""
        return self.max_characters * _BYTES_PER_CHARACTER + _BYTES_BESIDE_TEXT
