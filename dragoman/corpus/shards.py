"""Sentence pairs as flat arrays on disk, read through memory maps.

A shard has four files, e.g. `00000.source.ids` (little-endian uint16 or uint32, sentences end to end, no EOS) and
`00000.source.offsets` (int64: sentence i is `ids[offsets[i]:offsets[i + 1]]`), and the same two for the target.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from mmap import MADV_DONTNEED, MADV_RANDOM, mmap
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from dragoman.run.errors import UserError
from dragoman.run.files import write_aside

OFFSET_DTYPE = np.dtype("<i8")

Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = get_args(Side)
IdDtype = Literal["<u2", "<u4"]
BatchOfIds = tuple[Sequence[bytes], Sequence[bytes]]
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

    dtype: IdDtype
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
    """Appends sentences to an ids file, and keeps their lengths."""

    def __init__(self, file: IO[bytes], dtype: IdDtype) -> None:
        self._file = file
        self._id_bytes = np.dtype(dtype).itemsize
        self._lengths = [np.zeros(0, np.int64)]

    def append(self, sentences: Sequence[bytes]) -> None:
        num_bytes = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        self._lengths.append(num_bytes // self._id_bytes)
        self._file.write(b"".join(sentences))

    def offsets(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(np.concatenate(self._lengths))])


def pack_ids(sentences: Sequence[Sequence[int]], dtype: IdDtype) -> list[bytes]:
    """The ids of each sentence as they are stored."""
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    packed = np.fromiter(chain.from_iterable(sentences), dtype=dtype, count=int(lengths.sum())).tobytes()
    ends = (np.cumsum(lengths) * np.dtype(dtype).itemsize).tolist()
    return [packed[begin:end] for begin, end in pairwise([0, *ends])]


def id_dtype(vocab_size: int) -> IdDtype:
    """Two bytes an id where they are enough, else four; `vocab_size` is the larger of both sides' sizes."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


def write_shard(folder: Path, index: int, batches: Iterable[BatchOfIds], dtype: IdDtype) -> Shard:
    """Writes the four files of one shard, a batch of packed (sources, targets) after the other."""
    with (
        write_aside(ids_path(folder, index, "source")) as source_file,
        write_aside(ids_path(folder, index, "target")) as target_file,
    ):
        source, target = _SideWriter(source_file, dtype), _SideWriter(target_file, dtype)
        for source_ids, target_ids in batches:
            source.append(source_ids)
            target.append(target_ids)
    source_offsets, target_offsets = source.offsets(), target.offsets()
    _write_offsets(offsets_path(folder, index, "source"), source_offsets)
    _write_offsets(offsets_path(folder, index, "target"), target_offsets)
    return Shard(
        num_pairs=len(source_offsets) - 1,
        num_source_tokens=int(source_offsets[-1]),
        num_target_tokens=int(target_offsets[-1]),
    )


def shard_files(folder: Path, index: int) -> list[Path]:
    """The four files of one shard."""
    return [path(folder, index, side) for side in SIDES for path in (ids_path, offsets_path)]


def _write_offsets(path: Path, offsets: NDArray[np.int64]) -> None:
    with write_aside(path) as file:
        file.write(offsets.astype(OFFSET_DTYPE).tobytes())


@dataclass(frozen=True)
class _Side:
    """One side of one shard; its two files are mapped when it is first read."""

    ids_file: Path
    offsets_file: Path
    dtype: np.dtype[Any]
    num_pairs: int
    num_tokens: int

    @cached_property
    def ids(self) -> Ids:
        ids = map_array(self.ids_file, self.dtype, self.num_tokens)
        # Sentences are read in random order: reading ahead made a first batch take seconds instead of milliseconds.
        _advise(ids, MADV_RANDOM)
        return ids

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        return map_array(self.offsets_file, OFFSET_DTYPE, self.num_pairs + 1)

    def check_sizes(self) -> None:
        check_size(self.ids_file, self.num_tokens * self.dtype.itemsize)
        check_size(self.offsets_file, (self.num_pairs + 1) * OFFSET_DTYPE.itemsize)

    def sentence(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = self.offsets[indices + 1] - self.offsets[indices]
        # Each page touched maps its neighbours: without this, 45 million pairs show as 700 MB of this process.
        _advise(self.offsets, MADV_DONTNEED)
        return lengths


def map_array(path: Path, dtype: np.dtype[Any], num_items: int) -> NDArray[Any]:
    """Maps a file; its pages are shared by all processes that read it, and read when they are touched."""
    if num_items == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype=dtype)
    try:
        return np.memmap(path, dtype=dtype, mode="r", shape=(num_items,))
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read: {problem}.") from None


def _advise(mapped: NDArray[Any], advice: int) -> None:
    """Tells the system how a mapped file is read; its content stays what it is."""
    file: object = mapped.base
    if isinstance(file, mmap):
        file.madvise(advice)


def _side(folder: Path, index: int, side: Side, dtype: str, shard: Shard) -> _Side:
    num_tokens = shard.num_source_tokens if side == "source" else shard.num_target_tokens
    return _Side(
        ids_path(folder, index, side),
        offsets_path(folder, index, side),
        np.dtype(dtype),
        shard.num_pairs,
        num_tokens,
    )


def _all_lengths(sides: Sequence[_Side]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *(np.diff(side.offsets).astype(np.int32) for side in sides)])


class ParallelIds:
    """One split of a prepared corpus; opening it reads nothing but file sizes."""

    def __init__(self, sources: Sequence[_Side], targets: Sequence[_Side]) -> None:
        self._sources = sources
        self._targets = targets
        self._first_pairs = [0, *accumulate(side.num_pairs for side in sources)]

    @classmethod
    def open(cls, folder: Path, shards: Shards, first_index: int = 0) -> "ParallelIds":
        """Opens all shards of a split; a missing or cut-off file is found now and not as a crash later."""
        numbered = list(enumerate(shards.shards, start=first_index))
        sources = [_side(folder, index, "source", shards.dtype, shard) for index, shard in numbered]
        targets = [_side(folder, index, "target", shards.dtype, shard) for index, shard in numbered]
        for side in (*sources, *targets):
            side.check_sizes()
        return cls(sources, targets)

    def __len__(self) -> int:
        return self.num_pairs

    @property
    def num_pairs(self) -> int:
        """The number of sentence pairs."""
        return self._first_pairs[-1]

    @cached_property
    def source_lengths(self) -> NDArray[np.int32]:
        """The number of ids of every source sentence, without EOS; for splits that fit in memory."""
        return _all_lengths(self._sources)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """The number of ids of every target sentence, without EOS; for splits that fit in memory."""
        return _all_lengths(self._targets)

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of source and target ids of some pairs, without EOS; reads no more than it must."""
        shards = self._shards_of(indices)
        source, target = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        for shard in np.unique(shards):
            here = np.flatnonzero(shards == shard)
            in_shard = indices[here] - self._first_pairs[shard]
            source[here] = self._sources[shard].lengths(in_shard)
            target[here] = self._targets[shard].lengths(in_shard)
        return source, target

    def source(self, index: int) -> Ids:
        """The ids of one source sentence, as a view into the file."""
        shard, index_in_shard = self._locate(index)
        return self._sources[shard].sentence(index_in_shard)

    def target(self, index: int) -> Ids:
        """The ids of one target sentence, as a view into the file."""
        shard, index_in_shard = self._locate(index)
        return self._targets[shard].sentence(index_in_shard)

    def _shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.num_pairs):
            raise IndexError(f"pairs {indices.min()} to {indices.max()} of {self.num_pairs}")
        return np.searchsorted(self._first_pairs, indices, side="right") - 1

    def _locate(self, index: int) -> tuple[int, int]:
        """The shard that holds a pair, and the pair's place in it."""
        if not 0 <= index < self.num_pairs:
            raise IndexError(f"pair {index} of {self.num_pairs}")
        shard = bisect_right(self._first_pairs, index) - 1
        return shard, int(index) - self._first_pairs[shard]
