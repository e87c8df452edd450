"""A shuffle that is computed instead of stored: the place of any index follows from the key alone.

A Feistel network permutes the numbers below a power of two; a result outside the wanted size is permuted again until
it is inside (cycle-walking). It uses only 64-bit integer arithmetic, so every platform and numpy version agrees.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_128

import numpy as np
from numpy.typing import NDArray

MAX_SIZE = 2**62
NUM_ROUNDS = 12
"""Even, so that the two halves of an index end where they began. With 8 rounds, orders of five items were biased."""
_MULTIPLIERS = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
"""Multipliers of the last step of MurmurHash3, where they were chosen to spread every bit."""

Key = tuple[int | str, ...]
Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class Permutation:
    """Permutation of the numbers below `size` that depends only on the key."""

    size: int
    key: Key

    def __post_init__(self) -> None:
        assert 1 <= self.size <= MAX_SIZE, self.size

    def __call__(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Maps each index to its place; time and memory grow with the number of indices, not with `size`."""
        places = self._permute_power_of_two(indices.astype(np.uint64))
        outside = np.flatnonzero(places >= np.uint64(self.size))
        # The power of two is less than twice the size, so at most half of them are outside again each time.
        while len(outside):
            walked = self._permute_power_of_two(places[outside])
            places[outside] = walked
            outside = outside[walked >= np.uint64(self.size)]
        return places.astype(np.int64)

    @cached_property
    def _num_bits(self) -> int:
        return max(2, (self.size - 1).bit_length())

    @cached_property
    def _round_keys(self) -> list[np.uint64]:
        digest = shake_128(repr(self.key).encode()).digest(8 * NUM_ROUNDS)
        return [np.uint64(word) for word in np.frombuffer(digest, dtype="<u8")]

    def _permute_power_of_two(self, numbers: Bits) -> Bits:
        """Applies the Feistel network; each round is invertible because it leaves half of the bits unchanged."""
        num_low = self._num_bits // 2
        num_high = self._num_bits - num_low
        high, low = numbers >> np.uint64(num_low), numbers & np.uint64(2**num_low - 1)
        for key in self._round_keys:
            high, low = low, high ^ _hash_to_bits(low, key, num_high)
            num_low, num_high = num_high, num_low
        return (high << np.uint64(num_low)) | low


def _hash_to_bits(numbers: Bits, key: np.uint64, num_bits: int) -> Bits:
    """Hashes numbers to `num_bits` bits; works in place, because memory traffic dominates the cost."""
    mixed = numbers ^ key
    for multiplier in _MULTIPLIERS:
        mixed ^= mixed >> np.uint64(32)
        mixed *= multiplier
    mixed >>= np.uint64(64 - num_bits)
    return mixed
