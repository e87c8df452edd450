"""`dragoman prepare`: from plain text files to a prepared corpus, which exists whole or not at all.

Read, hold out dev and test where none were given, keep training text apart from them, shuffle once, train the
tokenizers on training text only, encode, write shards, write the manifest, rename the folder into place.
"""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import numpy as np

from dragoman import __version__
from dragoman.corpus.prepared import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    DroppedRecord,
    FileRecord,
    InputRecord,
    Manifest,
    PreparedCorpus,
    SettingsRecord,
    SplitName,
    SplitRecord,
    SplitWithText,
    text_path,
    tokenizer_path,
)
from dragoman.corpus.shards import write_split
from dragoman.corpus.text import Pair, PairReader, open_input
from dragoman.corpus.tokenizer import Tokenizer, VocabularyTooLarge, VocabularyTooSmall, train_tokenizer
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import fsync_folder, write_json, write_text

MAX_HELD_OUT_PAIRS = 1000
HELD_OUT_SHARE = 0.02
MAX_TOKENIZER_LINES = 1_000_000
PAIRS_PER_PROGRESS = 10_000
SPLIT_NAMES: tuple[SplitName, ...] = get_args(SplitName)
SPLITS_WITH_TEXT: tuple[SplitWithText, ...] = get_args(SplitWithText)

Say = Callable[[str], None]
# (what is being done, pairs done, pairs in all if known)
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class PrepareRequest:
    """What to prepare, and where to."""

    source_files: Sequence[Path]
    target_files: Sequence[Path]
    out: Path
    dev_source: Sequence[Path] = ()
    dev_target: Sequence[Path] = ()
    test_source: Sequence[Path] = ()
    test_target: Sequence[Path] = ()
    vocab_size: int | None = None
    """The number of pieces of each tokenizer; None chooses by the size of the text (`default_vocab_size`)."""
    separate: bool = False
    """One tokenizer for each language instead of a joint one."""
    seed: int = 1
    held_out: int | None = None
    """Pairs to hold out for each of dev and test that is not given; None takes 2 %, but 1 to 1000."""

    @property
    def settings(self) -> SettingsRecord:
        """What the result depends on, besides the text."""
        return SettingsRecord(
            vocab_size=self.vocab_size, separate=self.separate, seed=self.seed, held_out=self.held_out
        )

    def files(self, split: SplitName) -> tuple[Sequence[Path], Sequence[Path]]:
        """The source and target files given for a split, perhaps none."""
        match split:
            case "train":
                return self.source_files, self.target_files
            case "dev":
                return self.dev_source, self.dev_target
            case "test":
                return self.test_source, self.test_target


@dataclass
class _Split:
    """The text of one split, and the reader it came from."""

    pairs: list[Pair]
    reader: PairReader
    is_held_out: bool = False


@dataclass
class _Sentences:
    """The sentences of dev and test, which training must not see on either side."""

    sources: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)

    def add(self, pair: Pair) -> None:
        self.sources.add(pair.source)
        self.targets.add(pair.target)

    def share(self, pair: Pair) -> bool:
        return pair.source in self.sources or pair.target in self.targets


def _show_no_progress(_stage: str, _num_done: int, _num_total: int | None) -> None:
    """For callers that need no progress."""


def prepare_corpus(request: PrepareRequest, say: Say, progress: Progress = _show_no_progress) -> PreparedCorpus:
    """Prepares a corpus, or opens the one at `request.out` if it has the same text and settings."""
    _check_request(request)
    if os.path.lexists(request.out) and not _is_empty_folder(request.out):
        return _reuse(request, say)
    _mention_leftovers(request.out, say)
    splits, dropped = _build_splits(request, say, progress)
    tokenizers = _train_tokenizers(splits["train"].pairs, request, say, progress)
    with _written_aside(request.out) as folder:
        manifest = _write_corpus(folder, request, splits, dropped, tokenizers, progress)
    return PreparedCorpus(request.out, manifest)


def _check_request(request: PrepareRequest) -> None:
    if not request.source_files:
        raise UsageError("No training text was given; name at least one source file and one target file.")
    for name, value in (("--vocab-size", request.vocab_size), ("--held-out", request.held_out)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1.")
    if request.seed < 0:
        raise UsageError(f"--seed is {request.seed}; it must not be negative.")


# --- an output folder that already exists


def _reuse(request: PrepareRequest, say: Say) -> PreparedCorpus:
    """Opens a finished preparation of the same text with the same settings; anything else is in the way."""
    advice = "Choose another --out, or remove it first."
    try:
        corpus = PreparedCorpus.open(request.out)
    except UserError as problem:
        raise UserError(f"{request.out} exists already and cannot be used: {problem} {advice}") from None
    if corpus.manifest.settings != request.settings:
        raise UserError(f"{request.out} was prepared with other settings. {advice}")
    for name, split in corpus.manifest.splits.items():
        recorded = [[file.sha256 for file in files] for files in (split.source_files, split.target_files)]
        if recorded != [[_hash_input(path) for path in paths] for paths in request.files(name)]:
            raise UserError(f"{request.out} was prepared from other {name} text. {advice}")
    say(f"{request.out} is already prepared from the same text with the same settings; it is used as it is.")
    return corpus


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _hash_input(path: Path) -> str:
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mention_leftovers(out: Path, say: Say) -> None:
    """Names what a killed preparation left; it is not deleted, for another one may be at work in it."""
    for leftover in sorted(out.parent.glob(f".{out.name}.*.partial")):
        say(f"{leftover} is left over from a preparation that is still running or was killed; if killed, delete it.")


# --- text to splits


def _build_splits(
    request: PrepareRequest, say: Say, progress: Progress
) -> tuple[dict[SplitName, _Split], DroppedRecord]:
    """Reads all text and makes train, dev and test of it, with no sentence of dev or test in train."""
    # All readers first: a wrong number of files is told before the first file is read for minutes.
    readers = {name: PairReader(*request.files(name)) for name in SPLIT_NAMES}
    splits: dict[SplitName, _Split] = {
        name: _read_split(name, reader, say, progress) for name, reader in readers.items() if reader.sources
    }
    hold_out_random, shuffle_random = np.random.default_rng(request.seed).spawn(2)
    num_given = len(splits["train"].pairs)
    _hold_out(splits, request.held_out, hold_out_random, say)
    num_held_out = sum(len(split.pairs) for split in splits.values() if split.is_held_out)
    training = _without_overlap(splits)
    num_overlapping = num_given - num_held_out - len(training)
    if num_overlapping:
        say(f"Left out {num_overlapping:,} training pairs that share a sentence with dev or test.")
    if not training:
        raise UserError("Every training pair shares a sentence with dev or test, so none is left; give more text.")
    splits["train"].pairs = [training[index] for index in shuffle_random.permutation(len(training)).tolist()]
    return splits, _count_dropped(list(readers.values()), num_overlapping)


def _read_split(name: SplitName, reader: PairReader, say: Say, progress: Progress) -> _Split:
    pairs = []
    for pair in reader:
        pairs.append(pair)
        if len(pairs) % PAIRS_PER_PROGRESS == 0:
            progress(f"reading {name}", len(pairs), None)
    for sentence in reader.notices():
        say(sentence)
    if not pairs:
        raise UserError(f"The {name} files hold no pair with text on both sides ({reader.sources[0].path}, ...).")
    return _Split(pairs, reader)


def _hold_out(splits: dict[SplitName, _Split], asked: int | None, random: np.random.Generator, say: Say) -> None:
    """Draws dev and test from the training pairs where they were not given; `_without_overlap` then removes them."""
    missing = [name for name in SPLITS_WITH_TEXT if name not in splits]
    if not missing:
        return
    train = splits["train"]
    num_pairs = len(train.pairs)
    size = asked or min(MAX_HELD_OUT_PAIRS, max(1, int(HELD_OUT_SHARE * num_pairs)))
    if size * len(missing) >= num_pairs:
        raise UserError(
            f"The text has {num_pairs:,} pairs; holding out {size:,} for {' and '.join(missing)} each leaves none "
            "for training. Give more text or a smaller --held-out."
        )
    taken = _sentences_of(splits)
    candidates = (train.pairs[index] for index in random.permutation(num_pairs).tolist())
    for name in missing:
        splits[name] = _Split(_draw(candidates, size, taken), train.reader, is_held_out=True)
    plural, each = ("s" if size > 1 else ""), (" each" if len(missing) > 1 else "")
    say(f"Held out {size:,} pair{plural} for {' and '.join(missing)}{each}.")


def _sentences_of(splits: dict[SplitName, _Split]) -> _Sentences:
    """All sentences of dev and test, as far as these exist."""
    sentences = _Sentences()
    for name in SPLITS_WITH_TEXT:
        for pair in splits[name].pairs if name in splits else []:
            sentences.add(pair)
    return sentences


def _draw(candidates: Iterator[Pair], size: int, taken: _Sentences) -> list[Pair]:
    """Takes the next pairs whose sentences are not taken yet, so dev and test share none with each other."""
    chosen: list[Pair] = []
    while len(chosen) < size:
        pair = next(candidates, None)
        if pair is None:
            raise UserError(
                f"The text repeats itself too much to hold out {size:,} pairs with sentences of their own; "
                "give dev and test files or a smaller --held-out."
            )
        if not taken.share(pair):
            taken.add(pair)
            chosen.append(pair)
    return chosen


def _without_overlap(splits: dict[SplitName, _Split]) -> list[Pair]:
    """The training pairs that share neither side with dev or test."""
    kept_apart = _sentences_of(splits)
    return [pair for pair in splits["train"].pairs if not kept_apart.share(pair)]


def _count_dropped(readers: Sequence[PairReader], num_overlapping: int) -> DroppedRecord:
    return DroppedRecord(
        blank=sum(reader.blank.num_pairs for reader in readers),
        reserved_character=sum(reader.reserved.num_pairs for reader in readers),
        overlap=num_overlapping,
    )


# --- training text to tokenizers


def default_vocab_size(num_pairs: int) -> int:
    """32768 pieces from 1,000,000 pairs on, 16384 from 200,000, 8192 from 20,000, 4096 from 2,000, else 2048."""
    for least_pairs, vocab_size in ((1_000_000, 32768), (200_000, 16384), (20_000, 8192), (2_000, 4096)):
        if num_pairs >= least_pairs:
            return vocab_size
    return 2048


def _train_tokenizers(
    pairs: Sequence[Pair], request: PrepareRequest, say: Say, progress: Progress
) -> tuple[Tokenizer, Tokenizer]:
    """The source and target tokenizers, one and the same if joint; the text is training text only."""
    progress("training the tokenizer", 0, None)
    if not request.separate:
        # The pairs are shuffled, so the first ones are a seeded sample.
        sample = pairs[: MAX_TOKENIZER_LINES // 2]
        joint = _train_one([line for pair in sample for line in pair], len(pairs), request.vocab_size, "joint", say)
        return joint, joint
    sources, targets = zip(*pairs[:MAX_TOKENIZER_LINES], strict=True)
    return (
        _train_one(sources, len(pairs), request.vocab_size, "source", say),
        _train_one(targets, len(pairs), request.vocab_size, "target", say),
    )


def _train_one(lines: Sequence[str], num_pairs: int, asked: int | None, name: str, say: Say) -> Tokenizer:
    """Trains with the size asked for, or with one that fits the text."""
    if asked is not None:
        return Tokenizer(train_tokenizer(lines, asked))
    wished = default_vocab_size(num_pairs)
    tokenizer = Tokenizer(_train_fitting(lines, wished))
    reason = f"chosen for {num_pairs:,} training pairs"
    if tokenizer.num_pieces < wished:
        reason = f"the most this text gives; {wished} would suit {num_pairs:,} pairs"
    elif tokenizer.num_pieces > wished:
        reason = f"more than the usual {wished}, because the text has many different characters"
    say(f"The {name} vocabulary has {tokenizer.num_pieces} pieces ({reason}).")
    return tokenizer


def _train_fitting(lines: Sequence[str], vocab_size: int) -> bytes:
    """Trains with the possible size nearest to the one wished for, with room for merges above the characters."""
    try:
        return train_tokenizer(lines, vocab_size)
    except VocabularyTooSmall as problem:
        return _train_fitting(lines, 2 * problem.smallest)
    except VocabularyTooLarge as problem:
        return train_tokenizer(lines, problem.largest)


# --- splits and tokenizers to files


@contextmanager
def _written_aside(out: Path) -> Iterator[Path]:
    """Gives a folder beside `out` that becomes `out` if the block succeeds, and is removed if it does not."""
    aside = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        aside.mkdir(parents=True)
        yield aside
        fsync_folder(aside)
        aside.rename(out)
        fsync_folder(out.parent)
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"There is no space left for {out}; free some and prepare again.") from problem
        raise UserError(f"{out} cannot be written: {problem.strerror or problem}.") from problem
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_corpus(
    folder: Path,
    request: PrepareRequest,
    splits: dict[SplitName, _Split],
    dropped: DroppedRecord,
    tokenizers: tuple[Tokenizer, Tokenizer],
    progress: Progress,
) -> Manifest:
    """Writes everything into the folder, the manifest last."""
    source_tokenizer, target_tokenizer = tokenizers
    source_tokenizer.save(tokenizer_path(folder, "source", is_joint=not request.separate))
    if request.separate:
        target_tokenizer.save(tokenizer_path(folder, "target", is_joint=False))
    for name in SPLITS_WITH_TEXT:
        _write_lines(text_path(folder, name, "source"), [pair.source for pair in splits[name].pairs])
        _write_lines(text_path(folder, name, "target"), [pair.target for pair in splits[name].pairs])
    records = {name: _write_ids(folder, name, splits[name], tokenizers, progress) for name in SPLIT_NAMES}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        dragoman_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=request.settings,
        num_source_pieces=source_tokenizer.num_pieces,
        num_target_pieces=target_tokenizer.num_pieces,
        dropped=dropped,
        splits=records,
        files=_record_files(folder),
    )
    write_json(folder / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


def _write_ids(
    folder: Path, name: SplitName, split: _Split, tokenizers: tuple[Tokenizer, Tokenizer], progress: Progress
) -> SplitRecord:
    """Encodes and writes one split, and records it."""
    vocab_size = max(tokenizer.vocab_size for tokenizer in tokenizers)
    shards = write_split(folder / name, _encode(name, split.pairs, tokenizers, progress), vocab_size)
    reader = split.reader
    return SplitRecord(
        num_pairs=len(split.pairs),
        num_lines_read=reader.num_lines,
        num_source_bytes=sum(len(pair.source.encode()) for pair in split.pairs),
        num_target_bytes=sum(len(pair.target.encode()) for pair in split.pairs),
        num_source_tokens=shards.num_source_tokens,
        num_target_tokens=shards.num_target_tokens,
        is_held_out=split.is_held_out,
        source_files=() if split.is_held_out else tuple(map(InputRecord.of, reader.sources)),
        target_files=() if split.is_held_out else tuple(map(InputRecord.of, reader.targets)),
        shards=shards,
    )


def _encode(
    name: SplitName, pairs: Sequence[Pair], tokenizers: tuple[Tokenizer, Tokenizer], progress: Progress
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the ids of each pair, encoding many at a time on all cores."""
    source_tokenizer, target_tokenizer = tokenizers
    for start in range(0, len(pairs), PAIRS_PER_PROGRESS):
        batch = pairs[start : start + PAIRS_PER_PROGRESS]
        source_ids = source_tokenizer.encode_lines([pair.source for pair in batch], num_threads=-1)
        target_ids = target_tokenizer.encode_lines([pair.target for pair in batch], num_threads=-1)
        yield from zip(source_ids, target_ids, strict=True)
        progress(f"encoding {name}", start + len(batch), len(pairs))


def _record_files(folder: Path) -> dict[str, FileRecord]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): FileRecord.of(path) for path in paths}
