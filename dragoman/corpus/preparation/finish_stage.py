"""Stage 6, the merge: from what every shard tells to one manifest, and pages for people."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from dragoman import __version__
from dragoman.corpus.cleaning.account import Account
from dragoman.corpus.preparation.encode_stage import COUNT_DTYPE, EncodedShard, EncodedSide
from dragoman.corpus.preparation.inputs import Input
from dragoman.corpus.preparation.shuffle_stage import LABEL_DTYPE
from dragoman.corpus.preparation.vocabulary_stage import Vocabulary
from dragoman.corpus.preparation.work_dir import WorkFolder
from dragoman.corpus.prepared_corpus import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    MEMBER_DTYPE,
    CorpusRecord,
    FileRecord,
    Manifest,
    PreparedCorpus,
    SideRecord,
    SplitName,
    SplitRecord,
    TokenizerRecord,
    members_path,
)
from dragoman.corpus.settings import CorpusSettings, PrepareSettings
from dragoman.corpus.shards import Shards, Side, id_dtype
from dragoman.corpus.statistics import statistics_page
from dragoman.run.files import write_aside, write_json, write_text

CLEANING_PAGE = "cleaning.md"
STATISTICS_PAGE = "statistics.md"


def describe_split(
    work: WorkFolder,
    name: SplitName,
    encoded: Sequence[EncodedShard],
    inputs: Sequence[Input],
    vocabulary: Vocabulary,
    is_held_out: bool,
    num_lines_read: int,
) -> SplitRecord:
    """Adds up the shards of a split."""
    vocab_size = max(vocabulary.source.vocab_size, vocabulary.target.vocab_size)
    shards = Shards(dtype=id_dtype(vocab_size), shards=tuple(each.shard for each in encoded))
    return SplitRecord(
        num_pairs=shards.num_pairs,
        num_lines_read=num_lines_read,
        source=_describe_side(work, name, "source", [each.source for each in encoded], shards.num_source_tokens),
        target=_describe_side(work, name, "target", [each.target for each in encoded], shards.num_target_tokens),
        longer_length_counts=_add_counts([each.longer_length_counts for each in encoded]),
        is_held_out=is_held_out,
        inputs=() if is_held_out else tuple(record for each in inputs for record in each.records),
        shards=shards,
    )


def _describe_side(
    work: WorkFolder, name: SplitName, side: Side, parts: Sequence[EncodedSide], num_tokens: int
) -> SideRecord:
    is_used = np.zeros(0, bool)
    for index in range(len(parts)):
        counts = np.fromfile(work.encoded(name, index, f"{side}.counts"), COUNT_DTYPE) > 0
        is_used = counts if index == 0 else is_used | counts
    return SideRecord(
        num_bytes=sum(part.num_bytes for part in parts),
        num_words=sum(part.num_words for part in parts),
        num_tokens=num_tokens,
        num_piece_bytes=sum(part.num_piece_bytes for part in parts),
        num_unknown=sum(part.num_unknown for part in parts),
        num_pieces_used=int(is_used.sum()),
        length_counts=_add_counts([part.length_counts for part in parts]),
    )


def _add_counts(counts: Sequence[Sequence[int]]) -> dict[int, int]:
    """Adds lists of counts by index; only what occurs is kept."""
    total = np.zeros(max(map(len, counts), default=0), np.int64)
    for part in counts:
        total[: len(part)] += np.array(part, np.int64)
    return {int(length): int(total[length]) for length in np.flatnonzero(total)}


def write_members(work: WorkFolder, num_shards: int, inputs: Sequence[Input]) -> tuple[CorpusRecord, ...]:
    """Writes which training pairs are of which corpus, where there are several, and describes the corpora."""
    names = np.array([each.corpus_name for each in inputs])
    weights = {each.corpus_name: each.settings.weight for each in inputs if isinstance(each.settings, CorpusSettings)}
    records = []
    for name, weight in weights.items():
        path = members_path(work.corpus, name)
        first = 0
        with write_aside(path) as file:
            for index in range(num_shards):
                labels = np.fromfile(work.encoded("train", index, "labels"), LABEL_DTYPE)
                members = np.flatnonzero(names[labels] == name) + first
                file.write(members.astype(MEMBER_DTYPE).tobytes())
                first += len(labels)
            num_pairs = file.tell() // MEMBER_DTYPE.itemsize
        records.append(CorpusRecord(name=name, weight=weight, num_pairs=num_pairs))
    if len(records) == 1:  # then it is the whole split
        path.unlink()
    return tuple(records)


def write_manifest(
    work: WorkFolder,
    key: str,
    settings: PrepareSettings,
    tokenizer: TokenizerRecord,
    corpora: tuple[CorpusRecord, ...],
    account: Account,
    bad_lines: Sequence[str],
    splits: dict[SplitName, SplitRecord],
    shard_files: dict[str, FileRecord],
) -> Manifest:
    """Writes the pages for people and, last, the manifest."""
    write_text(work.corpus / CLEANING_PAGE, account.markdown())
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        dragoman_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        key=key,
        settings=settings.model_dump(mode="json", exclude_none=True),
        tokenizer=tokenizer,
        corpora=corpora,
        cleaning=account.record(),
        bad_lines=tuple(bad_lines),
        splits=splits,
        files=shard_files | _record_other_files(work.corpus, set(shard_files)),
    )
    page = work.corpus / STATISTICS_PAGE
    write_text(page, statistics_page(PreparedCorpus(work.corpus, manifest)))
    manifest = manifest.model_copy(update={"files": manifest.files | {STATISTICS_PAGE: FileRecord.of(page)}})
    write_json(work.corpus / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def _record_other_files(folder: Path, known: set[str]) -> dict[str, FileRecord]:
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: FileRecord.of(path) for name, path in paths.items() if name not in known | {MANIFEST_NAME}}
