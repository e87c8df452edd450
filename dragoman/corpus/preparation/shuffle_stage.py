"""Stage 2: shuffles the whole training text without holding it in memory.

Every pair is in a random bucket, a shard is a range of buckets, and each shard is shuffled in memory: together this is
a random order of all pairs, decided by the seed. Copies of a pair are in one bucket, so they are dropped here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.cleaning.clean import Dropped
from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.cleaning.normalisation import find_repeats
from dragoman.corpus.preparation.clean_stage import NUM_BUCKETS, CleanedText, read_slice
from dragoman.corpus.preparation.work_folder import StageContext, TaskRecord, TextFolder
from dragoman.run.files import read_json, require_free_space, write_then_rename

_ASCII = bytes(range(128))


def characters_of(lines: Sequence[str]) -> set[str]:
    """Returns the set of characters in the lines."""
    text = "".join(lines).encode()
    # Most text is mostly ASCII, which is quicker to look up byte by byte.
    ascii_part = {chr(byte) for byte in _ASCII if byte in text}
    return ascii_part | set(text.translate(None, _ASCII).decode())


SHARD_TEXT_BYTES = 8 * 2**20
"""Mean size of a shard's text. A worker process holds a few times this; small shards balance the load."""
LABEL_DTYPE = np.dtype("<u2")
"""Type of a label: the index of the training input that a pair came from."""


@dataclass(frozen=True)
class ShuffleTask:
    """Gathers and shuffles one shard."""

    folder: TextFolder
    index: int
    first_bucket: int
    end_bucket: int
    num_blocks: int
    rules: Rules
    seed: int


class ShuffledShard(TaskRecord):
    """Counts of one shuffled shard."""

    num_pairs: int
    num_gathered: int
    """Number of pairs before copies were dropped."""
    num_source_bytes: int
    num_target_bytes: int
    alphabet: str
    dropped: dict[str, Dropped]


def shuffle_text(
    context: StageContext, folder: TextFolder, cleaned: CleanedText, rules: Rules, seed: int
) -> list[ShuffledShard]:
    """Makes shuffled shards from the cleaned blocks."""
    shards, num_done = [], 0
    context.progress("shuffling", num_done, cleaned.num_pairs)
    for shard in context.engine.map(_shuffle_one_shard, _tasks(folder, cleaned, rules, seed)):
        shards.append(shard)
        num_done += shard.num_gathered
        context.progress("shuffling", num_done, cleaned.num_pairs)
    return shards


def _tasks(folder: TextFolder, cleaned: CleanedText, rules: Rules, seed: int) -> Iterator[ShuffleTask]:
    num_shards = min(NUM_BUCKETS, max(1, -(-cleaned.num_text_bytes // SHARD_TEXT_BYTES)))
    bounds = [index * NUM_BUCKETS // num_shards for index in range(num_shards + 1)]
    for index, (first_bucket, end_bucket) in enumerate(pairwise(bounds)):
        yield ShuffleTask(folder, index, first_bucket, end_bucket, cleaned.num_blocks, rules, seed)


def _shuffle_one_shard(task: ShuffleTask) -> ShuffledShard:
    """Runs a task: gathers the pairs of a shard, drops copies, shuffles and writes them."""
    record_path = task.folder.shard(task.index, "json")
    if record_path.exists():
        return ShuffledShard.load(record_path)
    require_free_space(task.folder.path)
    sources, targets, origins = _gather(task)
    dropped, is_kept = _find_copies(sources, targets, origins, task)
    kept = np.flatnonzero(is_kept)
    order = np.random.default_rng([task.seed, task.index]).permutation(kept).tolist()
    labels = np.array([label for label, _, _ in _load_origins(task.folder.block_origins)], LABEL_DTYPE)
    _write_bytes(task.folder.shard(task.index, "labels"), labels[origins.blocks[order]].tobytes())
    shard = ShuffledShard(
        num_pairs=len(order),
        num_gathered=len(sources),
        num_source_bytes=_write_lines(task.folder.shard(task.index, "source"), [sources[i] for i in order]),
        num_target_bytes=_write_lines(task.folder.shard(task.index, "target"), [targets[i] for i in order]),
        alphabet="".join(sorted(characters_of(sources) | characters_of(targets))),
        dropped=dropped,
    )
    shard.save(record_path)
    return shard


@dataclass
class _Origins:
    """Block of each gathered pair, and its line number in its input."""

    blocks: NDArray[np.int64]
    numbers: NDArray[np.int64]

    def place(self, index: int, folder: TextFolder) -> str:
        _, file, what = _load_origins(folder.block_origins)[self.blocks[index]]
        return f"{file}, {what} {self.numbers[index]}"


def _gather(task: ShuffleTask) -> tuple[list[str], list[str], _Origins]:
    sources: list[str] = []
    targets: list[str] = []
    blocks, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for block in range(task.num_blocks):
        found = read_slice(task.folder.block(block, "pairs"), task.first_bucket, task.end_bucket)
        sources += found.sources
        targets += found.targets
        blocks.append(np.full(len(found.sources), block))
        numbers.append(found.numbers)
    return sources, targets, _Origins(np.concatenate(blocks), np.concatenate(numbers))


def _find_copies(
    sources: list[str], targets: list[str], origins: _Origins, task: ShuffleTask
) -> tuple[dict[str, Dropped], NDArray[np.bool_]]:
    dropped, is_kept = {}, np.ones(len(sources), bool)
    for name, indices in find_repeats(sources, targets, task.rules).items():
        dropped[name] = Dropped()
        for index in indices:
            dropped[name].count(sources[index], targets[index], index, lambda i: origins.place(i, task.folder))
        is_kept[indices] = False
    return dropped, is_kept


def _write_lines(path: Path, lines: list[str]) -> int:
    text = "".join([f"{line}\n" for line in lines]).encode()
    _write_bytes(path, text)
    return len(text)


def _write_bytes(path: Path, content: bytes) -> None:
    with write_then_rename(path) as file:
        file.write(content)


@lru_cache(maxsize=1)
def _load_origins(path: Path) -> list[tuple[int, str, str]]:
    return [tuple(origin) for origin in read_json(path)]


def read_lines(path: Path) -> list[str]:
    """Reads the lines of a text file of the work folder; only \\n ends a line."""
    return path.read_bytes().decode("utf-8").split("\n")[:-1]
