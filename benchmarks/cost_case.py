"""What one step of cost_exponents.py has to do."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Case:
    """Sizes of a step; preset `small` apart from them."""

    vocabulary: int = 8_000
    length: int = 16
    """Tokens of each sentence."""
    depth: int = 3
    """Layers of the encoder, and of the decoder."""
    workers: int = 1
    sentences: int = 64
    """Pairs of a step, over all workers."""
    slices: int = 4
    """Virtual workers."""

    def to_json(self) -> str:
        """Returns the case as an argument of this program."""
        return json.dumps(asdict(self))
