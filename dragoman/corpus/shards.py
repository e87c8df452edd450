"""Sentence pairs as flat arrays on disk, read through memory maps.

A shard has four files, e.g. `00000.source.ids` (little-endian uint16 or uint32, sentences end to end, no EOS) and
`00000.source.offsets` (int64: sentence i is `ids[offsets[i]:offsets[i + 1]]`), and the same two for the target.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from mmap import MADV_DONTNEED, MADV_RANDOM, mmap
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from dragoman.run.errors import UserError
from dragoman.run.files import sha256, write_then_rename

OFFSET_DTYPE = np.dtype("<i8")

Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = get_args(Side)
IdDtype = Literal["<u2", "<u4"]
Ids = NDArray[np.unsignedinteger[Any]]


class StoredFile(BaseModel):
    """Size and hash of a file of the prepared corpus."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    num_bytes: NonNegativeInt
    sha256: str

    @classmethod
    def describe(cls, path: Path) -> Self:
        """Reads a file that was written."""
        return cls(num_bytes=path.stat().st_size, sha256=sha256(path))


class Shard(BaseModel):
    """Counts of one shard in the manifest; they give the size of each of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    num_pairs: NonNegativeInt
    num_source_tokens: NonNegativeInt
    num_target_tokens: NonNegativeInt


class Shards(BaseModel):
    """All shards of one split, in order, and the type their ids are stored in."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    dtype: IdDtype
    shards: tuple[Shard, ...]

    @property
    def num_pairs(self) -> int:
        """Number of pairs in all shards."""
        return sum(shard.num_pairs for shard in self.shards)

    @property
    def num_source_tokens(self) -> int:
        """Number of source ids in all shards."""
        return sum(shard.num_source_tokens for shard in self.shards)

    @property
    def num_target_tokens(self) -> int:
        """Number of target ids in all shards."""
        return sum(shard.num_target_tokens for shard in self.shards)


def ids_path(folder: Path, shard_index: int, side: Side) -> Path:
    """File with the ids of one side of one shard."""
    return folder / f"{shard_index:05d}.{side}.ids"


def offsets_path(folder: Path, shard_index: int, side: Side) -> Path:
    """File with the sentence boundaries of one side of one shard."""
    return folder / f"{shard_index:05d}.{side}.offsets"


def check_size(path: Path, num_bytes: int) -> None:
    """Raises a UserError unless the file exists and has exactly this size."""
    try:
        found = path.stat().st_size
    except OSError:
        raise UserError(f"{path} is missing or cannot be read; prepare the corpus again.") from None
    if found != num_bytes:
        raise UserError(f"{path} has {found:,} bytes instead of {num_bytes:,}; prepare the corpus again.")


def pack_ids(sentences: Sequence[Sequence[int]], dtype: IdDtype) -> list[bytes]:
    """Packs the ids of each sentence into the bytes that a shard stores."""
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    packed = np.fromiter(chain.from_iterable(sentences), dtype=dtype, count=int(lengths.sum())).tobytes()
    ends = (np.cumsum(lengths) * np.dtype(dtype).itemsize).tolist()
    return [packed[begin:end] for begin, end in pairwise([0, *ends])]


def id_dtype(vocab_size: int) -> IdDtype:
    """Chooses two bytes per id if they are enough, else four; `vocab_size` is the larger of the two sides."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


@dataclass(frozen=True)
class WrittenSide:
    """One side of a shard that was written: its sentences measured, and its two files by name."""

    lengths: NDArray[np.int64]
    """Number of ids of each sentence."""
    id_counts: NDArray[np.int64]
    """How often each id occurs, from 0 to the largest one."""
    files: dict[str, StoredFile]


def write_shard(
    folder: Path, index: int, sources: Sequence[bytes], targets: Sequence[bytes], dtype: IdDtype
) -> tuple[Shard, WrittenSide, WrittenSide]:
    """Writes the four files of one shard from the packed ids of its sentences."""
    source = _write_side(folder, index, "source", sources, dtype)
    target = _write_side(folder, index, "target", targets, dtype)
    shard = Shard(
        num_pairs=len(sources),
        num_source_tokens=int(source.lengths.sum()),
        num_target_tokens=int(target.lengths.sum()),
    )
    return shard, source, target


def _write_side(folder: Path, index: int, side: Side, sentences: Sequence[bytes], dtype: IdDtype) -> WrittenSide:
    packed = b"".join(sentences)
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences)) // np.dtype(dtype).itemsize
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(OFFSET_DTYPE).tobytes()
    contents = {ids_path(folder, index, side): packed, offsets_path(folder, index, side): offsets}
    return WrittenSide(
        lengths,
        np.bincount(np.frombuffer(packed, dtype)),
        {path.name: _write_file(path, content) for path, content in contents.items()},
    )


def _write_file(path: Path, content: bytes) -> StoredFile:
    with write_then_rename(path) as file:
        file.write(content)
    return StoredFile(num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class _MappedSide:
    """One side of one shard; its two files are mapped when they are first read."""

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
        # Each page read maps its neighbours: without this, 45 million pairs show as 700 MB of this process.
        _advise(self.offsets, MADV_DONTNEED)
        return lengths


def map_array(path: Path, dtype: np.dtype[Any], num_items: int) -> NDArray[Any]:
    """Maps a file; its pages are read when they are used and shared by all processes."""
    if num_items == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype=dtype)
    try:
        return np.memmap(path, dtype=dtype, mode="r", shape=(num_items,))
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read: {problem}.") from None


def _advise(mapped: NDArray[Any], advice: int) -> None:
    """Tells the operating system how a mapped file will be read."""
    file: object = mapped.base
    if isinstance(file, mmap):
        file.madvise(advice)


def _open_side(folder: Path, index: int, side: Side, dtype: str, shard: Shard) -> _MappedSide:
    num_tokens = shard.num_source_tokens if side == "source" else shard.num_target_tokens
    return _MappedSide(
        ids_path(folder, index, side),
        offsets_path(folder, index, side),
        np.dtype(dtype),
        shard.num_pairs,
        num_tokens,
    )


class ParallelIds:
    """One split of a prepared corpus; opening it reads only file sizes."""

    def __init__(self, sources: Sequence[_MappedSide], targets: Sequence[_MappedSide]) -> None:
        self._sources = sources
        self._targets = targets
        self._first_pairs = [0, *accumulate(side.num_pairs for side in sources)]

    @classmethod
    def open(cls, folder: Path, shards: Shards) -> "ParallelIds":
        """Opens all shards of a split; a missing or cut-off file is an error here and not a crash later."""
        numbered = list(enumerate(shards.shards))
        sources = [_open_side(folder, index, "source", shards.dtype, shard) for index, shard in numbered]
        targets = [_open_side(folder, index, "target", shards.dtype, shard) for index, shard in numbered]
        for side in (*sources, *targets):
            side.check_sizes()
        return cls(sources, targets)

    def __len__(self) -> int:
        return self.num_pairs

    @property
    def num_pairs(self) -> int:
        """Number of sentence pairs."""
        return self._first_pairs[-1]

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Number of source and of target ids of the given pairs, without EOS; reads only their offsets."""
        shards = self._shards_of(indices)
        source, target = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        for shard in np.unique(shards):
            here = np.flatnonzero(shards == shard)
            in_shard = indices[here] - self._first_pairs[shard]
            source[here] = self._sources[shard].lengths(in_shard)
            target[here] = self._targets[shard].lengths(in_shard)
        return source, target

    def source(self, index: int) -> Ids:
        """Ids of one source sentence, as a view into the file."""
        shard, index_in_shard = self._locate(index)
        return self._sources[shard].sentence(index_in_shard)

    def target(self, index: int) -> Ids:
        """Ids of one target sentence, as a view into the file."""
        shard, index_in_shard = self._locate(index)
        return self._targets[shard].sentence(index_in_shard)

    def _shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.num_pairs):
            raise IndexError(f"pairs {indices.min()} to {indices.max()} of {self.num_pairs}")
        return np.searchsorted(self._first_pairs, indices, side="right") - 1

    def _locate(self, index: int) -> tuple[int, int]:
        """Returns the shard that holds a pair, and the position of the pair in it."""
        if not 0 <= index < self.num_pairs:
            raise IndexError(f"pair {index} of {self.num_pairs}")
        shard = bisect_right(self._first_pairs, index) - 1
        return shard, int(index) - self._first_pairs[shard]
