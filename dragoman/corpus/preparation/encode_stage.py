"""Stage 5: text to ids, shard by shard, with everything about them that a manifest tells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from dragoman.corpus.cleaning.clean import Dropped
from dragoman.corpus.preparation.hold_out_stage import with_tag
from dragoman.corpus.preparation.shuffle_stage import LABEL_DTYPE, read_lines
from dragoman.corpus.preparation.work_dir import Finished, WorkFolder, load_sentences
from dragoman.corpus.prepared_corpus import FileRecord, SplitName
from dragoman.corpus.shards import (
    BatchOfIds,
    IdDtype,
    ParallelIds,
    Shard,
    Shards,
    Side,
    ids_path,
    shard_files,
    write_shard,
)
from dragoman.corpus.tokenizer import UNK_ID, Tokenizer, WordEncoder
from dragoman.run.files import write_aside

PAIRS_PER_BATCH = 4096
COUNT_DTYPE = np.dtype("<i8")


@dataclass(frozen=True)
class EncodeTask:
    """One shard of text, to be encoded."""

    work: WorkFolder
    split: SplitName
    index: int
    source_text: Path
    target_text: Path
    labels: Path | None
    """The input of each pair; None for dev and test, whose text has its tags already."""
    tags: tuple[str | None, ...]
    tokenizers: tuple[Path, Path]
    dtype: IdDtype


class EncodedSide(BaseModel):
    """One side of a shard, measured."""

    num_bytes: int
    num_words: int
    num_piece_bytes: int
    num_unknown: int
    length_counts: list[int]
    """Sentences by their number of pieces, from 0 on."""


class EncodedShard(Finished):
    """What the manifest needs to know about one shard."""

    shard: Shard
    source: EncodedSide
    target: EncodedSide
    longer_length_counts: list[int]
    held_out: Dropped
    """Pairs left out because they share a sentence with a set that was held out, its own pairs included."""
    files: dict[str, FileRecord]


def encode_one_shard(task: EncodeTask) -> EncodedShard:
    """A piece of work: encodes a shard, writes its ids, and measures it."""
    record_path = task.work.encoded(task.split, task.index, "json")
    if record_path.exists():
        return EncodedShard.load(record_path)
    sources, targets, held_out = _read_text(task)
    encoders = _load_encoder(task.tokenizers[0], task.dtype), _load_encoder(task.tokenizers[1], task.dtype)
    folder = task.work.corpus / task.split
    shard = write_shard(folder, task.index, _encode(sources, targets, encoders), task.dtype)
    ids = ParallelIds.open(folder, Shards(dtype=task.dtype, shards=(shard,)), first_index=task.index)
    encoded = EncodedShard(
        shard=shard,
        source=_measure(task, "source", sources, ids.source_lengths, encoders[0].tokenizer),
        target=_measure(task, "target", targets, ids.target_lengths, encoders[1].tokenizer),
        longer_length_counts=np.bincount(np.maximum(ids.source_lengths, ids.target_lengths)).tolist(),
        held_out=held_out,
        files={
            path.relative_to(task.work.corpus).as_posix(): FileRecord.of(path)
            for path in shard_files(folder, task.index)
        },
    )
    encoded.save(record_path)
    return encoded


def _read_text(task: EncodeTask) -> tuple[list[str], list[str], Dropped]:
    """The text of the shard, with tags, and without what shares a sentence with the sets that were held out."""
    sources, targets, held_out = read_lines(task.source_text), read_lines(task.target_text), Dropped()
    if task.labels is None:
        return sources, targets, held_out
    labels = np.fromfile(task.labels, LABEL_DTYPE)
    apart = load_sentences(task.work.held_out_sentences)
    is_kept = np.ones(len(sources), bool)
    for index, pair in enumerate(zip(sources, targets, strict=True)):
        if apart.share(*pair):
            is_kept[index] = False
            if apart.share_both(*pair):
                held_out.num_pairs += 1
            else:
                held_out.count(*pair, index, lambda _: "training text")
    kept = np.flatnonzero(is_kept).tolist()
    with write_aside(task.work.encoded(task.split, task.index, "labels"), is_durable=False) as file:
        file.write(labels[kept].tobytes())
    tags = [task.tags[label] for label in labels[kept].tolist()]
    tagged = [with_tag(sources[i], tag) for i, tag in zip(kept, tags, strict=True)]
    return tagged, [targets[i] for i in kept], held_out


def _encode(
    sources: Sequence[str], targets: Sequence[str], encoders: tuple[WordEncoder, WordEncoder]
) -> Iterator[BatchOfIds]:
    encoders[0].check(sources)
    encoders[1].check(targets)
    for begin in range(0, len(sources), PAIRS_PER_BATCH):
        batch = slice(begin, begin + PAIRS_PER_BATCH)
        yield encoders[0].encode(sources[batch]), encoders[1].encode(targets[batch])


def _measure(
    task: EncodeTask, side: Side, lines: Sequence[str], lengths: NDArray[np.int32], tokenizer: Tokenizer
) -> EncodedSide:
    ids = np.fromfile(ids_path(task.work.corpus / task.split, task.index, side), task.dtype)
    counts = np.bincount(ids, minlength=tokenizer.num_pieces)
    with write_aside(task.work.encoded(task.split, task.index, f"{side}.counts"), is_durable=False) as file:
        file.write(counts.astype(COUNT_DTYPE).tobytes())
    text = "\n".join(lines)
    return EncodedSide(
        num_bytes=len(text.encode()) + min(1, len(lines)),
        num_words=text.count(" ") + sum(map(bool, lines)),
        # A blank or a line end after every piece, and a line end on its own where a line has no piece.
        num_piece_bytes=int(counts @ tokenizer.piece_bytes) + len(ids) + int((lengths == 0).sum()),
        num_unknown=int(counts[UNK_ID]),
        length_counts=np.bincount(lengths).tolist(),
    )


@lru_cache(maxsize=2)
def _load_encoder(path: Path, dtype: IdDtype) -> WordEncoder:
    """Kept from shard to shard with all the words it has learned."""
    return WordEncoder(Tokenizer.load(path), dtype)
