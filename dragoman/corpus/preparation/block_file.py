"""One block of cleaned pairs on disk, sorted into buckets, so that a range of buckets is one contiguous read.

The file: byte offsets of the buckets, pair offsets of the buckets, the number of each pair in its input, then text,
source and target lines in turn. The first three are little-endian int64.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.run.files import write_aside

NUM_BUCKETS = 4096
"""A shard is made of a range of buckets, so this is also the most shards there can be."""

_INTEGER = np.dtype("<i8")


@dataclass
class Slice:
    """The pairs of some buckets of one block."""

    sources: list[str]
    targets: list[str]
    numbers: NDArray[np.int64]


def write_block_file(
    path: Path, sources: Sequence[str], targets: Sequence[str], numbers: NDArray[np.int64], buckets: NDArray[np.int64]
) -> int:
    """Writes the pairs by bucket, in their order within each, and returns the bytes of text."""
    order = np.argsort(buckets, kind="stable")
    lines = [f"{sources[i]}\n{targets[i]}\n".encode() for i in order]
    ends = np.cumsum([0, *map(len, lines)])
    first_pairs = np.searchsorted(buckets[order], np.arange(NUM_BUCKETS + 1))
    with write_aside(path, is_durable=False) as file:
        for integers in (ends[first_pairs], first_pairs, numbers[order]):
            file.write(integers.astype(_INTEGER).tobytes())
        file.write(b"".join(lines))
    return int(ends[-1])


def read_slice(path: Path, first_bucket: int, end_bucket: int) -> Slice:
    """Reads the pairs of buckets first_bucket … end_bucket - 1, and no more than these."""
    with path.open("rb", buffering=0) as file:

        def read_integers(index: int, count: int) -> NDArray[np.int64]:
            content = os.pread(file.fileno(), count * _INTEGER.itemsize, index * _INTEGER.itemsize)
            return np.frombuffer(content, _INTEGER)

        first_byte, end_byte = (int(read_integers(bucket, 1)[0]) for bucket in (first_bucket, end_bucket))
        first_pair, end_pair, num_pairs = (
            int(read_integers(NUM_BUCKETS + 1 + bucket, 1)[0]) for bucket in (first_bucket, end_bucket, NUM_BUCKETS)
        )
        numbers = read_integers(2 * (NUM_BUCKETS + 1) + first_pair, end_pair - first_pair)
        text_begin = (2 * (NUM_BUCKETS + 1) + num_pairs) * _INTEGER.itemsize
        lines = os.pread(file.fileno(), end_byte - first_byte, text_begin + first_byte).decode("utf-8").split("\n")
    return Slice(lines[0:-1:2], lines[1::2], numbers)
