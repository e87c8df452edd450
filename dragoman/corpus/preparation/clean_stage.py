"""Stage 1: every input is read once, in order, in blocks; each block is cleaned and sorted into buckets.

The bucket of a pair follows from its text, so that copies of a pair meet in one shard however far apart they stood;
where copies are wanted, it follows from the pair's place.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.cleaning.account import Account
from dragoman.corpus.cleaning.clean import CleanBlock, Dropped, clean_block
from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.normalisation import find_repeats, near_key
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.preparation.inputs import Input
from dragoman.corpus.preparation.work_dir import Finished, WorkFolder, Workshop, load_sentences
from dragoman.run.files import write_aside, write_json

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


@dataclass(frozen=True)
class CleanTask:
    """One block of one input, to be cleaned."""

    work: WorkFolder
    index: int
    file: str
    what: str
    first_number: int
    sources: Sequence[str]
    targets: Sequence[str]
    rules: Rules
    seed: int

    def place(self, index: int) -> str:
        """Where a pair of the block stands, in words."""
        return f"{self.file}, {self.what} {self.first_number + index}"


class CleanedBlock(Finished):
    """What became of a block."""

    num_read: int
    num_kept: int
    num_text_bytes: int
    dropped: dict[str, Dropped]


@dataclass(frozen=True)
class CleanedText:
    """All training text, cleaned, in block files."""

    num_blocks: int
    num_pairs: int
    num_text_bytes: int


def clean_inputs(
    shop: Workshop, inputs: Sequence[Input], texts: Sequence[ParallelText], account: Account, seed: int
) -> CleanedText:
    """Reads and cleans the training inputs, and adds what was dropped to the account."""
    origins: list[tuple[int, str, str]] = []

    def tasks() -> Iterator[CleanTask]:
        for label, (each, text) in enumerate(zip(inputs, texts, strict=True)):
            for block in text.blocks():
                index = len(origins)
                origins.append((label, each.records[0].path, text.what))
                is_done = shop.folder.cleaned(index, "json").exists()
                yield CleanTask(
                    shop.folder, index, each.records[0].path, text.what, block.first_number,
                    [] if is_done else block.sources, [] if is_done else block.targets, account.rules, seed,
                )  # fmt: skip

    num_kept = num_text_bytes = 0
    shop.progress("reading and cleaning", 0, None)
    for cleaned in shop.engine.map(clean_one_block, tasks()):
        account.add(cleaned.num_read, cleaned.dropped)
        num_kept += cleaned.num_kept
        num_text_bytes += cleaned.num_text_bytes
        shop.progress("reading and cleaning", account.num_read, _expected_pairs(texts))
    write_json(shop.folder.blocks, origins, is_durable=False)
    return CleanedText(len(origins), num_kept, num_text_bytes)


def clean_one_block(task: CleanTask) -> CleanedBlock:
    """A piece of work: cleans a block and writes it sorted into buckets."""
    record_path = task.work.cleaned(task.index, "json")
    if record_path.exists():
        return CleanedBlock.load(record_path)
    block = clean_block(task.sources, task.targets, task.rules, task.place)
    _drop_overlap(block, task)
    _drop_repeats(block, task)
    numbers = task.first_number + np.array(block.indices, dtype=np.int64)
    buckets = _buckets(block, task)
    num_bytes = write_block_file(task.work.cleaned(task.index, "pairs"), block.sources, block.targets, numbers, buckets)
    cleaned = CleanedBlock(
        num_read=len(task.sources), num_kept=len(block.sources), num_text_bytes=num_bytes, dropped=block.dropped
    )
    cleaned.save(record_path)
    return cleaned


def _drop_overlap(block: CleanBlock, task: CleanTask) -> None:
    """Finds pairs that share a sentence with the given dev and test sets; drops them if that filter is on."""
    given = load_sentences(task.work.given_sentences)
    found = [i for i, pair in enumerate(zip(block.sources, block.targets, strict=True)) if given.share(*pair)]
    block.count("overlap", found, task.place)
    if task.rules.overlap:
        block.remove(found)


def _drop_repeats(block: CleanBlock, task: CleanTask) -> None:
    """Drops copies within the block already, so that no shard can overflow with them."""
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
    """How many pairs there will be, judged by the share of all bytes that was read; None before anything was."""
    share = sum(text.num_bytes_read for text in texts) / max(1, sum(text.num_bytes for text in texts))
    num_read = sum(text.num_read for text in texts)
    return max(num_read, round(num_read / share)) if share > 0 else None
