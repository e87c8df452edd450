"""Stage 4: the tokenizers, trained on a sample of the training text or taken over from elsewhere."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES
from dragoman.corpus.preparation.shuffle_stage import ShuffledShard, characters_of, read_lines
from dragoman.corpus.preparation.work_dir import Sentences, WorkFolder, Workshop
from dragoman.corpus.prepared_corpus import TokenizerRecord, tokenizer_path
from dragoman.corpus.settings import TokenizerSettings
from dragoman.corpus.shards import SIDES, Side
from dragoman.corpus.tokenizer import (
    Tokenizer,
    TokenizerDesign,
    VocabularyTooLarge,
    VocabularyTooSmall,
    train_tokenizer,
)
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import write_aside

# Memory SentencePiece takes, measured: 4 bytes a byte of text for BPE, 25 for unigram. This keeps it under 1 GiB.
MAX_SAMPLE_BYTES = {"bpe": 200_000_000, "unigram": 35_000_000}


@dataclass(frozen=True)
class Vocabulary:
    """The two tokenizers, one and the same if joint, and where they came from."""

    source: Tokenizer
    target: Tokenizer
    record: TokenizerRecord


@dataclass(frozen=True)
class TokenizerTask:
    """One tokenizer, to be trained."""

    samples: tuple[Path, ...]
    alphabet: str
    """Every character that must get a piece, whether the sample has it or not."""
    num_pairs: int
    asked: int | None
    design: TokenizerDesign
    name: str
    model: Path


def make_vocabulary(
    shop: Workshop,
    shards: Sequence[ShuffledShard],
    apart: Sentences,
    extra_alphabet: set[str],
    settings: TokenizerSettings,
    tags: tuple[str, ...],
) -> Vocabulary:
    """The tokenizers of a corpus; `extra_alphabet` is that of dev and test, so that these come back whole too."""
    is_joint = not settings.separate
    if settings.reuse is not None:
        return _reuse(shop.folder, settings.reuse, is_joint)
    shop.progress("training the tokenizer", 0, None)
    sampled = _write_samples(shop.folder, shards, apart, settings)
    alphabet = "".join(sorted({c for shard in shards for c in shard.alphabet} | extra_alphabet | set("".join(tags))))
    num_pairs = sum(shard.num_pairs for shard in shards)
    # A tab, which text that is not normalised may have, is the one character SentencePiece makes no piece of by itself.
    symbols = (*tags, "\t") if "\t" in alphabet else tags
    design = TokenizerDesign(settings.kind, settings.byte_fallback, settings.character_coverage, symbols)
    sides: list[tuple[str, tuple[Side, ...]]] = [("joint", SIDES)] if is_joint else [(s, (s,)) for s in SIDES]
    tasks = [
        TokenizerTask(
            tuple(shop.folder.sample(side) for side in samples), alphabet, num_pairs, settings.vocab_size, design, name,
            tokenizer_path(shop.folder.corpus, samples[0], is_joint),
        )
        for name, samples in sides
    ]  # fmt: skip
    for sentences in shop.engine.map(train_one_tokenizer, tasks):
        for sentence in sentences:
            shop.say(sentence)
    return _load(shop.folder, is_joint, sampled)


def _load(work: WorkFolder, is_joint: bool, sampled: tuple[int, int]) -> Vocabulary:
    source = Tokenizer.load(tokenizer_path(work.corpus, "source", is_joint))
    target = source if is_joint else Tokenizer.load(tokenizer_path(work.corpus, "target", is_joint))
    record = TokenizerRecord(
        is_joint=is_joint,
        num_source_pieces=source.num_pieces,
        num_target_pieces=target.num_pieces,
        num_sample_lines=sampled[0],
        num_sample_bytes=sampled[1],
    )
    return Vocabulary(source, target, record)


def _reuse(work: WorkFolder, origin: Path, is_joint: bool) -> Vocabulary:
    """Takes over the tokenizers of a prepared folder, or one model file for both sides."""
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
        Tokenizer.load(path)  # refused here, with its own name, if it is damaged or foreign
        shutil.copyfile(path, tokenizer_path(work.corpus, side, is_joint))
    return _load(work, is_joint, (0, 0))


def _write_samples(
    work: WorkFolder, shards: Sequence[ShuffledShard], apart: Sentences, settings: TokenizerSettings
) -> tuple[int, int]:
    """Writes the first pairs of every shard, in proportion; returns the lines and bytes of the larger sample."""
    share = _sample_share(shards, settings)
    num_lines = 0
    num_bytes = dict.fromkeys(SIDES, 0)
    with (
        write_aside(work.sample("source"), is_durable=False) as source_file,
        write_aside(work.sample("target"), is_durable=False) as target_file,
    ):
        files = {"source": source_file, "target": target_file}
        for index, shard in enumerate(shards):
            texts = [read_lines(work.shuffled(index, side)) for side in SIDES]
            usable = (pair for pair in zip(*texts, strict=True) if not apart.share(*pair))
            pairs = list(islice(usable, round(share * shard.num_pairs)))
            for place, side in enumerate(SIDES):
                num_bytes[side] += files[side].write("".join([f"{pair[place]}\n" for pair in pairs]).encode())
            num_lines += len(pairs)
    if settings.separate:
        return num_lines, max(num_bytes.values())
    return 2 * num_lines, sum(num_bytes.values())


def _sample_share(shards: Sequence[ShuffledShard], settings: TokenizerSettings) -> float:
    """The share of the training text that one tokenizer can be trained on, by its lines and by its bytes."""
    source_bytes = sum(shard.num_source_bytes for shard in shards)
    target_bytes = sum(shard.num_target_bytes for shard in shards)
    num_bytes = max(source_bytes, target_bytes) if settings.separate else source_bytes + target_bytes
    num_lines = sum(shard.num_pairs for shard in shards) * (1 if settings.separate else 2)
    return min(1.0, settings.sample_lines / max(1, num_lines), MAX_SAMPLE_BYTES[settings.kind] / max(1, num_bytes))


def train_one_tokenizer(task: TokenizerTask) -> list[str]:
    """A piece of work: trains and writes a tokenizer; returns what the user should know."""
    if task.model.exists():
        return []
    lines = [line for path in task.samples for line in read_lines(path)]
    if not lines:
        raise UserError("There is no text to train a tokenizer on; give more text or a smaller --held-out.")
    if task.design.character_coverage == 1:
        lines += _lines_of_missing_characters(lines, task.alphabet)
    model, sentences = _train(lines, task)
    with write_aside(task.model) as file:
        file.write(model)
    return sentences


def _lines_of_missing_characters(lines: Sequence[str], alphabet: str) -> list[str]:
    """Lines that hold the characters the sample lacks, so that all text comes back as it was.

    SentencePiece has an option for this (required_chars), but ends the process when the text lacks one of them.
    """
    missing = sorted(set(alphabet) - characters_of(lines) - {" "})
    per_line = MAX_LINE_BYTES // 8
    return [" ".join(missing[begin : begin + per_line]) for begin in range(0, len(missing), per_line)]


def default_vocab_size(num_pairs: int) -> int:
    """32768 pieces from 1,000,000 pairs on, 16384 from 200,000, 8192 from 20,000, 4096 from 2,000, else 2048."""
    for least_pairs, vocab_size in ((1_000_000, 32768), (200_000, 16384), (20_000, 8192), (2_000, 4096)):
        if num_pairs >= least_pairs:
            return vocab_size
    return 2048


def _train(lines: Sequence[str], task: TokenizerTask) -> tuple[bytes, list[str]]:
    """Trains with the size asked for, or with one that fits the text, and says which."""
    if task.asked is not None:
        return train_tokenizer(lines, task.asked, task.design), []
    wished = default_vocab_size(task.num_pairs)
    model = _train_fitting(lines, wished, task.design)
    num_pieces = Tokenizer(model).num_pieces
    reason = f"chosen for {task.num_pairs:,} training pairs"
    if num_pieces < wished:
        reason = f"the most this text gives; {wished} would suit {task.num_pairs:,} pairs"
    elif num_pieces > wished:
        reason = f"more than the usual {wished}, because the text has many different characters"
    return model, [f"The {task.name} vocabulary has {num_pieces} pieces ({reason})."]


def _train_fitting(lines: Sequence[str], vocab_size: int, design: TokenizerDesign) -> bytes:
    """Trains with the possible size nearest to the one wished for, with room for merges above the characters."""
    try:
        return train_tokenizer(lines, vocab_size, design)
    except VocabularyTooSmall as problem:
        return _train_fitting(lines, 2 * problem.smallest, design)
    except VocabularyTooLarge as problem:
        return train_tokenizer(lines, problem.largest, design)
