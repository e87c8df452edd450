"""Stage 4: the tokenizers, trained on a sample of the training text or copied from another corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES
from dragoman.corpus.preparation.shuffle_stage import ShuffledShard, characters_of, read_lines
from dragoman.corpus.preparation.work_folder import (
    SentenceSet,
    ShardsFolder,
    StageContext,
    TaskRecord,
    TextFolder,
    WorkFolder,
)
from dragoman.corpus.prepared_corpus import TokenizerRecord, tokenizer_path
from dragoman.corpus.settings import TokenizerSettings
from dragoman.corpus.shards import SIDES, IdDtype, Side, id_dtype
from dragoman.corpus.tokenizer import (
    Tokenizer,
    TokenizerDesign,
    VocabularyTooLarge,
    VocabularyTooSmall,
    padded_vocab_size,
    train_tokenizer,
)
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import write_then_rename

# SentencePiece needs, measured, 4 bytes per byte of text for BPE and 25 for unigram. This keeps it under 1 GiB.
_MAX_SAMPLE_BYTES = {"bpe": 200_000_000, "unigram": 35_000_000}
_FREQUENT = 15
"""How often half of the subwords must occur in the text, where nobody says how many there should be."""
_SMALLEST_DEFAULT = 512
_MANY_PAIRS = 200_000
"""Text of more pairs has enough of every subword."""
_LINES_AT_ONCE = 4_096
"""Lines whose ids are held while subwords are counted: those of all lines would need hundreds of MB."""


class Vocabulary(TaskRecord):
    """The finished tokenizers of a corpus: one joint tokenizer, or one per side."""

    tokenizer: TokenizerRecord
    messages: list[str]
    """Messages about sizes that were chosen."""

    @property
    def dtype(self) -> IdDtype:
        """Type of the stored ids, the same for both sides."""
        num_subwords = max(self.tokenizer.num_source_pieces, self.tokenizer.num_target_pieces)
        return id_dtype(padded_vocab_size(num_subwords))


@dataclass(frozen=True)
class TokenizerTask:
    """Trains one tokenizer."""

    samples: tuple[Path, ...]
    alphabet: str
    """Every character that must be a subword, even if the sample lacks it."""
    num_pairs: int
    asked: int | None
    design: TokenizerDesign
    name: str
    model: Path


def make_vocabulary(
    context: StageContext,
    work: WorkFolder,
    shards: Sequence[ShuffledShard],
    held_out: SentenceSet,
    extra_alphabet: set[str],
    settings: TokenizerSettings,
    tags: tuple[str, ...],
) -> Vocabulary:
    """Makes the tokenizers of a corpus; `extra_alphabet` holds the characters of dev and test."""
    if work.shards.vocabulary.exists():
        vocabulary = Vocabulary.load(work.shards.vocabulary)
    elif settings.reuse is not None:
        vocabulary = _copy_tokenizers(work.shards, settings.reuse, is_joint=not settings.separate)
    else:
        alphabet = {c for shard in shards for c in shard.alphabet} | extra_alphabet | set("".join(tags))
        vocabulary = _train_tokenizers(context, work, shards, held_out, "".join(sorted(alphabet)), settings, tags)
    vocabulary.save(work.shards.vocabulary, work.shards.corpus)
    for message in vocabulary.messages:
        context.say(message)
    return vocabulary


def _train_tokenizers(
    context: StageContext,
    work: WorkFolder,
    shards: Sequence[ShuffledShard],
    held_out: SentenceSet,
    alphabet: str,
    settings: TokenizerSettings,
    tags: tuple[str, ...],
) -> Vocabulary:
    context.progress("training the tokenizer", 0, None)
    folder, is_joint = work.shards, not settings.separate
    sample_size = _write_samples(work.text, folder, shards, held_out, settings)
    num_pairs = sum(shard.num_pairs for shard in shards)
    # A tab, which text that is not normalised may contain, is the only character SentencePiece makes no subword for.
    symbols = (*tags, "\t") if "\t" in alphabet else tags
    design = TokenizerDesign(settings.kind, settings.byte_fallback, settings.character_coverage, symbols)
    sides: list[tuple[str, tuple[Side, ...]]] = [("joint", SIDES)] if is_joint else [(s, (s,)) for s in SIDES]
    tasks = [
        TokenizerTask(
            tuple(folder.sample(side) for side in samples), alphabet, num_pairs, settings.vocab_size, design, name,
            tokenizer_path(folder.corpus, samples[0], is_joint),
        )
        for name, samples in sides
    ]  # fmt: skip
    messages = [message for found in context.engine.map(_train_one_tokenizer, tasks) for message in found]
    for side in SIDES:
        folder.sample(side).unlink()
    return _describe(folder, is_joint, sample_size, messages)


def _copy_tokenizers(folder: ShardsFolder, origin: Path, is_joint: bool) -> Vocabulary:
    """Copies the tokenizers of a prepared folder, or one model file for both sides."""
    if origin.is_dir():
        paths = [tokenizer_path(origin, side, is_joint) for side in SIDES]
        if not paths[0].exists() and tokenizer_path(origin, "source", not is_joint).exists():
            kind, advice = ("separate", "set separate") if is_joint else ("joint", "do not set separate")
            raise UsageError(f"{origin} has {kind} vocabularies; to reuse them, {advice} under prepare.tokenizer.")
    elif is_joint:
        paths = [origin, origin]
    else:
        raise UsageError(f"{origin} is one model; a separate vocabulary is reused from a prepared folder.")
    for side, path in zip(SIDES, paths, strict=True):
        Tokenizer.load(path).save(tokenizer_path(folder.corpus, side, is_joint))
    return _describe(folder, is_joint, (0, 0), [])


def _describe(folder: ShardsFolder, is_joint: bool, sample_size: tuple[int, int], messages: list[str]) -> Vocabulary:
    source, target = (Tokenizer.load(tokenizer_path(folder.corpus, side, is_joint)) for side in SIDES)
    record = TokenizerRecord(
        is_joint=is_joint,
        num_source_pieces=source.num_subwords,
        num_target_pieces=target.num_subwords,
        num_sample_lines=sample_size[0],
        num_sample_bytes=sample_size[1],
    )
    return Vocabulary(tokenizer=record, messages=messages)


def _write_samples(
    text: TextFolder,
    folder: ShardsFolder,
    shards: Sequence[ShuffledShard],
    held_out: SentenceSet,
    settings: TokenizerSettings,
) -> tuple[int, int]:
    """Writes the first pairs of every shard, in proportion; returns the lines and bytes of the larger sample."""
    share = _sample_share(shards, settings)
    num_lines = 0
    num_bytes = dict.fromkeys(SIDES, 0)
    with (
        write_then_rename(folder.sample("source"), is_durable=False) as source_file,
        write_then_rename(folder.sample("target"), is_durable=False) as target_file,
    ):
        files = {"source": source_file, "target": target_file}
        for index, shard in enumerate(shards):
            texts = [read_lines(text.shard(index, side)) for side in SIDES]
            usable = (pair for pair in zip(*texts, strict=True) if not held_out.has_either(*pair))
            pairs = list(islice(usable, round(share * shard.num_pairs)))
            for place, side in enumerate(SIDES):
                num_bytes[side] += files[side].write("".join([f"{pair[place]}\n" for pair in pairs]).encode())
            num_lines += len(pairs)
    if settings.separate:
        return num_lines, max(num_bytes.values())
    return 2 * num_lines, sum(num_bytes.values())


def _sample_share(shards: Sequence[ShuffledShard], settings: TokenizerSettings) -> float:
    """Fraction of the training text that one tokenizer can be trained on, limited by lines and by bytes."""
    source_bytes = sum(shard.num_source_bytes for shard in shards)
    target_bytes = sum(shard.num_target_bytes for shard in shards)
    num_bytes = max(source_bytes, target_bytes) if settings.separate else source_bytes + target_bytes
    num_lines = sum(shard.num_pairs for shard in shards) * (1 if settings.separate else 2)
    return min(1.0, settings.sample_lines / max(1, num_lines), _MAX_SAMPLE_BYTES[settings.kind] / max(1, num_bytes))


def _train_one_tokenizer(task: TokenizerTask) -> list[str]:
    """Runs a task: trains and writes a tokenizer; returns messages for the user."""
    if task.model.exists():
        return []
    lines = [line for path in task.samples for line in read_lines(path)]
    if not lines:
        raise UserError("There is no text to train a tokenizer on; give more text or a smaller --held-out.")
    if task.design.character_coverage == 1:
        lines += _lines_of_missing_characters(lines, task.alphabet)
    model, messages = _train(lines, task)
    with write_then_rename(task.model) as file:
        file.write(model)
    return messages


def _lines_of_missing_characters(lines: Sequence[str], alphabet: str) -> list[str]:
    """Returns lines with the characters that the sample lacks, so that all text can be decoded unchanged.

    SentencePiece has an option for this (required_chars), but it aborts the process if the text lacks one of them.
    """
    missing = sorted(set(alphabet) - characters_of(lines) - {" "})
    per_line = MAX_LINE_BYTES // 8
    return [" ".join(missing[begin : begin + per_line]) for begin in range(0, len(missing), per_line)]


def default_vocab_size(num_pairs: int) -> int:
    """Chooses 32768 subwords from 1,000,000 pairs, 16384 from 200,000, 8192 from 20,000, 4096 from 2,000, else 2048."""
    for least_pairs, vocab_size in ((1_000_000, 32768), (200_000, 16384), (20_000, 8192), (2_000, 4096)):
        if num_pairs >= least_pairs:
            return vocab_size
    return 2048


def _train(lines: Sequence[str], task: TokenizerTask) -> tuple[bytes, list[str]]:
    """Trains with the size that was asked for, or with a default that fits the text and a message about it."""
    if task.asked is not None:
        return train_tokenizer(lines, task.asked, task.design), []
    default = default_vocab_size(task.num_pairs)
    model = _train_fitting(lines, default, task.design)
    largest = Tokenizer(model).num_subwords
    if task.num_pairs <= _MANY_PAIRS:
        model = _train_frequent(lines, model, task.design)
    num_subwords = Tokenizer(model).num_subwords
    reason = f"chosen for {task.num_pairs:,} training pairs"
    if num_subwords > default:
        reason = f"more than the default of {default}, because the text has many different characters"
    elif num_subwords < largest:
        reason = f"with more, half of them would occur fewer than {_FREQUENT} times in this text"
    elif num_subwords < default:
        reason = f"the most this text gives; the default for {task.num_pairs:,} pairs is {default}"
    return model, [f"The {task.name} vocabulary has {num_subwords} subwords ({reason})."]


def _train_frequent(lines: Sequence[str], model: bytes, design: TokenizerDesign) -> bytes:
    """Halves the vocabulary until half of its subwords are frequent, or until it is small.

    A model learns nothing about subwords it hardly sees. Text without spaces has most of them: whole phrases.
    """
    tokenizer = Tokenizer(model)
    smaller = tokenizer.num_subwords // 2
    if smaller < _SMALLEST_DEFAULT or _median_frequency(tokenizer, lines) >= _FREQUENT:
        return model
    try:
        return _train_frequent(lines, train_tokenizer(lines, smaller, design), design)
    except VocabularyTooSmall:
        return model


def _median_frequency(tokenizer: Tokenizer, lines: Sequence[str]) -> float:
    """Returns how often a subword occurs in the lines, as median over those that do."""
    counts = np.zeros(tokenizer.num_subwords, np.int64)
    for begin in range(0, len(lines), _LINES_AT_ONCE):
        encoded = tokenizer.encode_lines(lines[begin : begin + _LINES_AT_ONCE])
        counts += np.bincount(np.fromiter(chain.from_iterable(encoded), np.int64), minlength=len(counts))
    return float(np.median(counts[counts > 0]))


def _train_fitting(lines: Sequence[str], vocab_size: int, design: TokenizerDesign) -> bytes:
    """Trains with the possible size nearest to `vocab_size`, with room for merges above the characters."""
    try:
        return train_tokenizer(lines, vocab_size, design)
    except VocabularyTooSmall as problem:
        return _train_fitting(lines, 2 * problem.smallest, design)
    except VocabularyTooLarge as problem:
        return train_tokenizer(lines, problem.largest, design)
