"""Stage 5: encodes the text shard by shard, and measures it on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from dragoman.corpus.cleaning.clean import Dropped
from dragoman.corpus.preparation.hold_out_stage import with_tag
from dragoman.corpus.preparation.shuffle_stage import LABEL_DTYPE, read_lines
from dragoman.corpus.preparation.work_folder import ShardsFolder, TaskRecord, load_sentences
from dragoman.corpus.prepared_corpus import SplitName
from dragoman.corpus.shards import IdDtype, Shard, Side, StoredFile, WrittenSide, write_shard
from dragoman.corpus.tokenizer import UNK_ID, Tokenizer, WordEncoder
from dragoman.run.files import have_sizes, require_free_space, write_then_rename

LINES_PER_CALL = 4096
COUNT_DTYPE = np.dtype("<i8")


@dataclass(frozen=True)
class EncodeTask:
    """Encodes one shard of text."""

    folder: ShardsFolder
    split: SplitName
    index: int
    source_text: Path
    target_text: Path
    labels: Path | None
    """File with the input of each pair; None for dev and test, whose text already has its tags."""
    tags: tuple[str | None, ...]
    tokenizers: tuple[Path, Path]
    dtype: IdDtype


class EncodedSide(BaseModel):
    """Measurements of one side of a shard."""

    num_bytes: int
    num_words: int
    num_subword_bytes: int
    num_unknown: int
    length_counts: list[int]
    """Number of sentences by number of subwords, from 0."""


class EncodedShard(TaskRecord):
    """Measurements of one shard, for the manifest."""

    shard: Shard
    source: EncodedSide
    target: EncodedSide
    longer_length_counts: list[int]
    held_out: Dropped
    """Pairs left out because they share a sentence with a held-out set, the pairs of the set included."""
    files: dict[str, StoredFile]


def encode_one_shard(task: EncodeTask) -> EncodedShard:
    """Runs a task: encodes a shard, writes its ids, and measures it."""
    record_path = task.folder.encoded(task.split, task.index, "json")
    if record_path.exists() and _is_complete(finished := EncodedShard.load(record_path), task.folder.corpus):
        return finished
    require_free_space(task.folder.path)
    sources, targets, held_out = _read_text(task)
    source_encoder, target_encoder = (_load_encoder(path, task.dtype) for path in task.tokenizers)
    shard, source, target = write_shard(
        task.folder.corpus / task.split,
        task.index,
        _encode(sources, source_encoder),
        _encode(targets, target_encoder),
        task.dtype,
    )
    encoded = EncodedShard(
        shard=shard,
        source=_measure(task, "source", sources, source, source_encoder.tokenizer),
        target=_measure(task, "target", targets, target, target_encoder.tokenizer),
        longer_length_counts=np.bincount(np.maximum(source.lengths, target.lengths)).tolist(),
        held_out=held_out,
        files={f"{task.split}/{name}": file for name, file in (source.files | target.files).items()},
    )
    encoded.save(record_path, task.folder.corpus / task.split)
    return encoded


def _is_complete(shard: EncodedShard, corpus: Path) -> bool:
    return have_sizes({corpus / name: file.num_bytes for name, file in shard.files.items()})


def _read_text(task: EncodeTask) -> tuple[list[str], list[str], Dropped]:
    """Reads the text of the shard, adds tags, and drops pairs that share a sentence with the held-out sets."""
    sources, targets, dropped = read_lines(task.source_text), read_lines(task.target_text), Dropped()
    if task.labels is None:
        return sources, targets, dropped
    labels = np.fromfile(task.labels, LABEL_DTYPE)
    held_out = load_sentences(task.folder.held_out_sentences)
    is_kept = np.ones(len(sources), bool)
    for index, pair in enumerate(zip(sources, targets, strict=True)):
        if held_out.has_either(*pair):
            is_kept[index] = False
            if held_out.has_both(*pair):
                dropped.num_pairs += 1
            else:
                dropped.count(*pair, index, lambda _: "training text")
    kept = np.flatnonzero(is_kept).tolist()
    with write_then_rename(task.folder.encoded(task.split, task.index, "labels")) as file:
        file.write(labels[kept].tobytes())
    tags = [task.tags[label] for label in labels[kept].tolist()]
    tagged = [with_tag(sources[i], tag) for i, tag in zip(kept, tags, strict=True)]
    return tagged, [targets[i] for i in kept], dropped


def _encode(lines: Sequence[str], encoder: WordEncoder) -> list[bytes]:
    encoder.check(lines)
    encoded: list[bytes] = []
    for begin in range(0, len(lines), LINES_PER_CALL):
        encoded += encoder.encode(lines[begin : begin + LINES_PER_CALL])
    return encoded


def _measure(
    task: EncodeTask, side: Side, lines: Sequence[str], written: WrittenSide, tokenizer: Tokenizer
) -> EncodedSide:
    counts: NDArray[np.int64] = np.zeros(tokenizer.num_subwords, COUNT_DTYPE)
    counts[: len(written.id_counts)] = written.id_counts
    with write_then_rename(task.folder.encoded(task.split, task.index, f"{side}.counts")) as file:
        file.write(counts.tobytes())
    text = "\n".join(lines)
    return EncodedSide(
        num_bytes=len(text.encode()) + min(1, len(lines)),
        num_words=text.count(" ") + sum(map(bool, lines)),
        # A blank or a line end after every subword, and a line end of its own for a line without subwords.
        num_subword_bytes=int(counts @ tokenizer.subword_bytes + counts.sum() + (written.lengths == 0).sum()),
        num_unknown=int(counts[UNK_ID]),
        length_counts=np.bincount(written.lengths).tolist(),
    )


@lru_cache(maxsize=2)
def _load_encoder(path: Path, dtype: IdDtype) -> WordEncoder:
    """Loads an encoder once per process, so that it remembers words from shard to shard."""
    return WordEncoder(Tokenizer.load(path), dtype)
