"""A shuffle that is computed instead of stored: where any index goes is known without looking at the others.

A Feistel network permutes the numbers of a power of two; those that land outside the wanted size walk on until they
land inside (cycle-walking). Only 64-bit integer arithmetic is used, so every platform and numpy version agrees.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_128

import numpy as np
from numpy.typing import NDArray

MAX_SIZE = 2**62
NUM_ROUNDS = 12
"""Even, so that the two parts of an index end where they began; with 8, orders of five items are not equally likely."""
MULTIPLIERS = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
"""Of MurmurHash3's last step, chosen there for spreading every bit."""

Key = tuple[int | str, ...]
Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class Permutation:
    """The numbers below `size` in an order that depends on the key alone."""

    size: int
    key: Key

    def __post_init__(self) -> None:
        assert 1 <= self.size <= MAX_SIZE, self.size

    def __call__(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where each index goes; time and memory grow with the number of indices asked for, not with the size."""
        places = self._permute_power_of_two(indices.astype(np.uint64))
        outside = np.flatnonzero(places >= np.uint64(self.size))
        # The power of two is less than twice the size, so at most half of those outside stay there each time round.
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
        """A Feistel network: each round can be undone, since it leaves one part of the bits as it is."""
        num_low = self._num_bits // 2
        num_high = self._num_bits - num_low
        high, low = numbers >> np.uint64(num_low), numbers & np.uint64(2**num_low - 1)
        for key in self._round_keys:
            high, low = low, high ^ _hash_to_bits(low, key, num_high)
            num_low, num_high = num_high, num_low
        return (high << np.uint64(num_low)) | low


def _hash_to_bits(numbers: Bits, key: np.uint64, num_bits: int) -> Bits:
    """Well-spread numbers of so many bits; in place where it can be, since memory traffic is what this costs."""
    mixed = numbers ^ key
    for multiplier in MULTIPLIERS:
        mixed ^= mixed >> np.uint64(32)
        mixed *= multiplier
    mixed >>= np.uint64(64 - num_bits)
    return mixed
