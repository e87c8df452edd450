"""Stage 1: reads every input once, in blocks; each block is cleaned and its pairs are sorted into buckets.

The bucket of a pair is a hash of its text, so all copies of a pair meet in one shard; if duplicates are kept, it is a
hash of the pair's position.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.cleaning.clean import CleanBlock, Dropped, clean_block
from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.normalisation import find_repeats, near_key
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.preparation.inputs import Input
from dragoman.corpus.preparation.work_folder import StageContext, TaskRecord, TextFolder, load_sentences
from dragoman.run.files import require_free_space, write_json, write_then_rename

NUM_BUCKETS = 4096
"""A shard is made from a range of buckets, so there are at most this many shards."""

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
    """Writes the pairs sorted by bucket (stable) and returns the number of bytes of text."""
    order = np.argsort(buckets, kind="stable")
    lines = [f"{sources[i]}\n{targets[i]}\n".encode() for i in order]
    ends = np.cumsum([0, *map(len, lines)])
    first_pairs = np.searchsorted(buckets[order], np.arange(NUM_BUCKETS + 1))
    with write_then_rename(path) as file:
        for integers in (ends[first_pairs], first_pairs, numbers[order]):
            file.write(integers.astype(_INTEGER).tobytes())
        file.write(b"".join(lines))
    return int(ends[-1])


def read_slice(path: Path, first_bucket: int, end_bucket: int) -> Slice:
    """Reads only the pairs of buckets first_bucket to end_bucket - 1."""
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


@dataclass(frozen=True)
class CleanTask:
    """Cleans one block of one input."""

    folder: TextFolder
    index: int
    file: str
    what: str
    first_number: int
    sources: Sequence[str]
    targets: Sequence[str]
    rules: Rules
    seed: int

    def place(self, index: int) -> str:
        """File and line number of a pair of the block."""
        return f"{self.file}, {self.what} {self.first_number + index}"


class CleanedBlock(TaskRecord):
    """Counts of one cleaned block."""

    num_read: int
    num_kept: int
    num_text_bytes: int
    dropped: dict[str, Dropped]


@dataclass
class CleanedText:
    """Counts of all training text after cleaning."""

    num_blocks: int = 0
    num_read: int = 0
    num_pairs: int = 0
    num_text_bytes: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def add(self, block: CleanedBlock) -> None:
        """Adds the counts of the next block."""
        self.num_blocks += 1
        self.num_read += block.num_read
        self.num_pairs += block.num_kept
        self.num_text_bytes += block.num_text_bytes
        merge_dropped(self.dropped, block.dropped)


def merge_dropped(total: dict[str, Dropped], more: Mapping[str, Dropped]) -> None:
    """Adds dropped pairs by filter."""
    for name, dropped in more.items():
        total.setdefault(name, Dropped()).merge(dropped)


def clean_inputs(
    context: StageContext,
    folder: TextFolder,
    inputs: Sequence[Input],
    texts: Sequence[ParallelText],
    rules: Rules,
    seed: int,
) -> CleanedText:
    """Reads and cleans the training inputs."""
    origins: list[tuple[int, str, str]] = []

    def tasks() -> Iterator[CleanTask]:
        for label, (each, text) in enumerate(zip(inputs, texts, strict=True)):
            for block in text.blocks():
                index = len(origins)
                origins.append((label, each.records[0].path, text.what))
                is_done = folder.block(index, "json").exists()
                yield CleanTask(
                    folder, index, each.records[0].path, text.what, block.first_number,
                    [] if is_done else block.sources, [] if is_done else block.targets, rules, seed,
                )  # fmt: skip

    cleaned = CleanedText()
    context.progress("reading and cleaning", 0, None)
    for block in context.engine.map(_clean_one_block, tasks()):
        cleaned.add(block)
        context.progress("reading and cleaning", cleaned.num_read, _expected_pairs(texts))
    write_json(folder.block_origins, origins, is_durable=False)
    return cleaned


def _clean_one_block(task: CleanTask) -> CleanedBlock:
    """Runs a task: cleans a block and writes it sorted into buckets."""
    record_path = task.folder.block(task.index, "json")
    if record_path.exists():
        return CleanedBlock.load(record_path)
    require_free_space(task.folder.path)
    block = clean_block(task.sources, task.targets, task.rules, task.place)
    _drop_overlap(block, task)
    _drop_repeats(block, task)
    numbers = task.first_number + np.array(block.indices, dtype=np.int64)
    buckets = _buckets(block, task)
    num_bytes = write_block_file(task.folder.block(task.index, "pairs"), block.sources, block.targets, numbers, buckets)
    cleaned = CleanedBlock(
        num_read=len(task.sources), num_kept=len(block.sources), num_text_bytes=num_bytes, dropped=block.dropped
    )
    cleaned.save(record_path)
    return cleaned


def _drop_overlap(block: CleanBlock, task: CleanTask) -> None:
    """Counts pairs that share a sentence with the given dev and test sets; drops them if that filter is on."""
    given = load_sentences(task.folder.given_sentences)
    found = [i for i, pair in enumerate(zip(block.sources, block.targets, strict=True)) if given.has_either(*pair)]
    block.count("overlap", found, task.place)
    if task.rules.overlap:
        block.remove(found)


def _drop_repeats(block: CleanBlock, task: CleanTask) -> None:
    """Drops copies within the block, so that no shard grows too large with them."""
    found = find_repeats(block.sources, block.targets, task.rules)
    for name, indices in found.items():
        block.count(name, indices, task.place)
    block.remove([*found["duplicates"], *found["near_duplicates"]])


def _buckets(block: CleanBlock, task: CleanTask) -> NDArray[np.int64]:
    key = task.seed.to_bytes(8, "little")
    digests = (hashlib.blake2b(text.encode(), digest_size=8, key=key).digest() for text in _bucket_texts(block, task))
    numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    return (numbers % NUM_BUCKETS).astype(np.int64)


def _bucket_texts(block: CleanBlock, task: CleanTask) -> Iterable[str]:
    if task.rules.near_duplicates:
        return map(near_key, block.sources, block.targets)
    if task.rules.duplicates:
        return (f"{source}\n{target}" for source, target in zip(block.sources, block.targets, strict=True))
    return (f"{task.index} {i}" for i in range(len(block.sources)))


def _expected_pairs(texts: Sequence[ParallelText]) -> int | None:
    """Estimates the number of pairs from the fraction of bytes read so far; None before the first byte."""
    share = sum(text.num_bytes_read for text in texts) / max(1, sum(text.num_bytes for text in texts))
    num_read = sum(text.num_read for text in texts)
    return max(num_read, round(num_read / share)) if share > 0 else None
