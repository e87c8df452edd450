"""Sentence pairs as flat arrays on disk, read through memory maps.

A shard has four files, e.g. `00000.source.ids` (little-endian uint16 or uint32, sentences end to end, no EOS) and
`00000.source.offsets` (int64: sentence i is `ids[offsets[i]:offsets[i + 1]]`), and the same two for the target.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from dragoman.run.errors import UserError
from dragoman.run.files import fsync_folder, write_aside

PAIRS_PER_SHARD = 1_000_000
OFFSET_DTYPE = np.dtype("<i8")
NUM_IDS_BUFFERED = 1_000_000

Side = Literal["source", "target"]
PairOfIds = tuple[Sequence[int], Sequence[int]]
Ids = NDArray[np.unsignedinteger[Any]]


class Shard(BaseModel):
    """What the manifest knows about one shard: enough to tell the right size of each of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_pairs: NonNegativeInt
    num_source_tokens: NonNegativeInt
    num_target_tokens: NonNegativeInt


class Shards(BaseModel):
    """All shards of one split, in order, and the type their ids are stored in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Literal["<u2", "<u4"]
    shards: tuple[Shard, ...]

    @property
    def num_pairs(self) -> int:
        """The number of pairs in all shards."""
        return sum(shard.num_pairs for shard in self.shards)

    @property
    def num_source_tokens(self) -> int:
        """The number of source ids in all shards."""
        return sum(shard.num_source_tokens for shard in self.shards)

    @property
    def num_target_tokens(self) -> int:
        """The number of target ids in all shards."""
        return sum(shard.num_target_tokens for shard in self.shards)


def ids_path(folder: Path, shard_index: int, side: Side) -> Path:
    """Where the ids of one side of one shard are stored."""
    return folder / f"{shard_index:05d}.{side}.ids"


def offsets_path(folder: Path, shard_index: int, side: Side) -> Path:
    """Where the sentence boundaries of one side of one shard are stored."""
    return folder / f"{shard_index:05d}.{side}.offsets"


def check_size(path: Path, num_bytes: int) -> None:
    """Raises a UserError unless the file exists and has exactly this size."""
    try:
        found = path.stat().st_size
    except OSError:
        raise UserError(f"{path} is missing or cannot be read; prepare the corpus again.") from None
    if found != num_bytes:
        raise UserError(f"{path} has {found:,} bytes instead of {num_bytes:,}; prepare the corpus again.")


class _SideWriter:
    """Appends sentences to an ids file through a buffer, and keeps their lengths."""

    def __init__(self, file: IO[bytes], dtype: str) -> None:
        self._file = file
        self._dtype = dtype
        self._buffer: list[int] = []
        self._lengths: list[int] = []

    def append(self, ids: Sequence[int]) -> None:
        self._lengths.append(len(ids))
        self._buffer.extend(ids)
        if len(self._buffer) >= NUM_IDS_BUFFERED:
            self.flush()

    def flush(self) -> None:
        self._file.write(np.array(self._buffer, dtype=self._dtype).tobytes())
        self._buffer.clear()

    def offsets(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self._lengths, dtype=OFFSET_DTYPE)])


def _write_shard(folder: Path, index: int, pairs: Iterable[PairOfIds], dtype: str) -> Shard:
    """Writes the four files of one shard."""
    with (
        write_aside(ids_path(folder, index, "source")) as source_file,
        write_aside(ids_path(folder, index, "target")) as target_file,
    ):
        source, target = _SideWriter(source_file, dtype), _SideWriter(target_file, dtype)
        for source_ids, target_ids in pairs:
            source.append(source_ids)
            target.append(target_ids)
        source.flush()
        target.flush()
    source_offsets, target_offsets = source.offsets(), target.offsets()
    _write_offsets(offsets_path(folder, index, "source"), source_offsets)
    _write_offsets(offsets_path(folder, index, "target"), target_offsets)
    return Shard(
        num_pairs=len(source_offsets) - 1,
        num_source_tokens=int(source_offsets[-1]),
        num_target_tokens=int(target_offsets[-1]),
    )


def _write_offsets(path: Path, offsets: NDArray[np.int64]) -> None:
    with write_aside(path) as file:
        file.write(offsets.astype(OFFSET_DTYPE).tobytes())


def write_split(
    folder: Path,
    pairs: Iterable[PairOfIds],
    vocab_size: int,
    pairs_per_shard: int = PAIRS_PER_SHARD,
) -> Shards:
    """Writes (source ids, target ids) pairs, holding no more than one buffer of them in memory.

    `vocab_size` is the larger of both sides' sizes; it decides between two and four bytes an id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype: Literal["<u2", "<u4"] = "<u2" if vocab_size <= 2**16 else "<u4"
    shards = [
        _write_shard(folder, index, shard_pairs, dtype)
        for index, shard_pairs in enumerate(_cut_into_shards(iter(pairs), pairs_per_shard))
    ]
    fsync_folder(folder)
    return Shards(dtype=dtype, shards=tuple(shards))


def _cut_into_shards(pairs: Iterator[PairOfIds], pairs_per_shard: int) -> Iterator[Iterator[PairOfIds]]:
    """Yields one iterator a shard, each to be used up before the next; none for no pairs at all."""
    for first in pairs:
        yield chain([first], islice(pairs, pairs_per_shard - 1))


@dataclass(frozen=True)
class _MappedSide:
    """One side of one shard, as memory maps."""

    ids: Ids
    offsets: NDArray[np.int64]

    def sentence(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


def _map_array(path: Path, dtype: np.dtype[Any], num_items: int) -> NDArray[Any]:
    """Maps a file after checking its size, so that a cut-off file is found now and not as a crash later."""
    check_size(path, num_items * dtype.itemsize)
    if num_items == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype=dtype)
    try:
        return np.memmap(path, dtype=dtype, mode="r")
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None


def _map_side(folder: Path, index: int, side: Side, dtype: np.dtype[Any], shard: Shard) -> _MappedSide:
    num_tokens = shard.num_source_tokens if side == "source" else shard.num_target_tokens
    return _MappedSide(
        ids=_map_array(ids_path(folder, index, side), dtype, num_tokens),
        offsets=_map_array(offsets_path(folder, index, side), OFFSET_DTYPE, shard.num_pairs + 1),
    )


def _lengths(sides: Sequence[_MappedSide]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *(np.diff(side.offsets).astype(np.int32) for side in sides)])


class ParallelIds:
    """One split of a prepared corpus; opening it reads nothing but file sizes."""

    def __init__(self, sources: Sequence[_MappedSide], targets: Sequence[_MappedSide]) -> None:
        self._sources = sources
        self._targets = targets
        self._first_pairs = [0, *accumulate(len(side.offsets) - 1 for side in sources)]

    @classmethod
    def open(cls, folder: Path, shards: Shards) -> "ParallelIds":
        """Maps all shards of a split; a missing or cut-off file is a UserError that names it."""
        dtype = np.dtype(shards.dtype)
        numbered = list(enumerate(shards.shards))
        return cls(
            [_map_side(folder, index, "source", dtype, shard) for index, shard in numbered],
            [_map_side(folder, index, "target", dtype, shard) for index, shard in numbered],
        )

    def __len__(self) -> int:
        return self.num_pairs

    @property
    def num_pairs(self) -> int:
        """The number of sentence pairs."""
        return self._first_pairs[-1]

    @cached_property
    def source_lengths(self) -> NDArray[np.int32]:
        """The number of ids of every source sentence, without EOS."""
        return _lengths(self._sources)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """The number of ids of every target sentence, without EOS."""
        return _lengths(self._targets)

    def source(self, index: int) -> Ids:
        """The ids of one source sentence, as a view into the file."""
        shard, index_in_shard = self._locate(index)
        return self._sources[shard].sentence(index_in_shard)

    def target(self, index: int) -> Ids:
        """The ids of one target sentence, as a view into the file."""
        shard, index_in_shard = self._locate(index)
        return self._targets[shard].sentence(index_in_shard)

    def _locate(self, index: int) -> tuple[int, int]:
        """The shard that holds a pair, and the pair's place in it."""
        if not 0 <= index < self.num_pairs:
            raise IndexError(f"pair {index} of {self.num_pairs}")
        shard = bisect_right(self._first_pairs, index) - 1
        return shard, int(index) - self._first_pairs[shard]
