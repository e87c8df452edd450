"""Stage 6: completes the corpus with the members of its corpora, pages for people, and a manifest."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import __version__
from dragoman.corpus.cleaning.cleaning_account import CleaningAccount
from dragoman.corpus.preparation.encode_stage import COUNT_DTYPE, EncodedShard, EncodedSide
from dragoman.corpus.preparation.inputs import Input
from dragoman.corpus.preparation.shuffle_stage import LABEL_DTYPE
from dragoman.corpus.preparation.vocabulary_stage import Vocabulary
from dragoman.corpus.preparation.work_folder import ShardsFolder, WorkFolder
from dragoman.corpus.prepared_corpus import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    MEMBER_DTYPE,
    CorpusRecord,
    Manifest,
    PreparedCorpus,
    SideRecord,
    SplitName,
    SplitRecord,
    members_path,
)
from dragoman.corpus.settings import CorpusSettings
from dragoman.corpus.shards import Shards, Side, StoredFile
from dragoman.corpus.statistics import statistics_page
from dragoman.run.files import write_json, write_text, write_then_rename

_CLEANING_PAGE = "cleaning.md"
_STATISTICS_PAGE = "statistics.md"


def describe_split(
    folder: ShardsFolder,
    name: SplitName,
    encoded: Sequence[EncodedShard],
    inputs: Sequence[Input],
    vocabulary: Vocabulary,
    is_held_out: bool,
    num_lines_read: int,
) -> SplitRecord:
    """Adds up the shards of a split."""
    shards = Shards(dtype=vocabulary.dtype, shards=tuple(each.shard for each in encoded))
    return SplitRecord(
        num_pairs=shards.num_pairs,
        num_lines_read=num_lines_read,
        source=_describe_side(folder, name, "source", [each.source for each in encoded], shards.num_source_tokens),
        target=_describe_side(folder, name, "target", [each.target for each in encoded], shards.num_target_tokens),
        longer_length_counts=_add_counts([each.longer_length_counts for each in encoded]),
        is_held_out=is_held_out,
        inputs=() if is_held_out else tuple(record for each in inputs for record in each.records),
        shards=shards,
    )


def _describe_side(
    folder: ShardsFolder, name: SplitName, side: Side, shards: Sequence[EncodedSide], num_tokens: int
) -> SideRecord:
    counts = (np.fromfile(folder.encoded(name, index, f"{side}.counts"), COUNT_DTYPE) for index in range(len(shards)))
    return SideRecord(
        num_bytes=sum(shard.num_bytes for shard in shards),
        num_words=sum(shard.num_words for shard in shards),
        num_tokens=num_tokens,
        num_piece_bytes=sum(shard.num_subword_bytes for shard in shards),
        num_unknown=sum(shard.num_unknown for shard in shards),
        num_pieces_used=int(np.count_nonzero(sum(counts))),
        length_counts=_add_counts([shard.length_counts for shard in shards]),
    )


def _add_counts(counts: Sequence[Sequence[int]]) -> dict[int, int]:
    """Adds lists of counts by index; leaves out zeros."""
    total = np.zeros(max(map(len, counts), default=0), np.int64)
    for each in counts:
        total[: len(each)] += np.array(each, np.int64)
    return {int(length): int(total[length]) for length in np.flatnonzero(total)}


def write_members(work: WorkFolder, num_shards: int, inputs: Sequence[Input]) -> tuple[CorpusRecord, ...]:
    """Writes which training pairs belong to which corpus, if there are several, and describes the corpora."""
    names = np.array([each.corpus_name for each in inputs])
    weights = {each.corpus_name: each.settings.weight for each in inputs if isinstance(each.settings, CorpusSettings)}
    records = []
    for name, weight in weights.items():
        path = members_path(work.corpus, name)
        first = 0
        with write_then_rename(path) as file:
            for index in range(num_shards):
                labels = np.fromfile(work.shards.encoded("train", index, "labels"), LABEL_DTYPE)
                members = np.flatnonzero(names[labels] == name) + first
                file.write(members.astype(MEMBER_DTYPE).tobytes())
                first += len(labels)
            num_pairs = file.tell() // MEMBER_DTYPE.itemsize
        records.append(CorpusRecord(name=name, weight=weight, num_pairs=num_pairs))
    if len(records) == 1:  # then it is the whole split
        path.unlink()
    return tuple(records)


def write_manifest(
    folder: Path, account: CleaningAccount, shard_files: dict[str, StoredFile], **contents: Any
) -> Manifest:
    """Writes the pages for people and, last, the manifest with these contents."""
    write_text(folder / _CLEANING_PAGE, account.markdown())
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        dragoman_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cleaning=account.record(),
        files=shard_files | _describe_other_files(folder, set(shard_files)),
        **contents,
    )
    page = folder / _STATISTICS_PAGE
    write_text(page, statistics_page(PreparedCorpus(folder, manifest)))
    manifest = manifest.model_copy(update={"files": manifest.files | {_STATISTICS_PAGE: StoredFile.describe(page)}})
    write_json(folder / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def _describe_other_files(folder: Path, known: set[str]) -> dict[str, StoredFile]:
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: StoredFile.describe(path) for name, path in paths.items() if name not in known}
