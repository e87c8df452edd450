"""`dragoman prepare`: from raw parallel text of any size to a prepared corpus, which exists whole or not at all.

The stages, from top to bottom of `_Preparation.run`: read and clean in blocks, shuffle into shards, set dev and test
apart, train the tokenizers, encode, merge. Blocks and shards are independent pieces of work (`preparation/engine.py`)
whose results are files, so an interrupted preparation continues where it stopped, and none holds the whole text.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.corpus.cleaning.account import Account
from dragoman.corpus.cleaning.clean import Dropped
from dragoman.corpus.cleaning.filters import Rules, resolve_rules
from dragoman.corpus.formats.blocks import BadLines
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.preparation.clean_stage import clean_inputs
from dragoman.corpus.preparation.encode_stage import EncodedShard, EncodeTask, encode_one_shard
from dragoman.corpus.preparation.engine import EngineName, open_engine
from dragoman.corpus.preparation.finish_stage import describe_split, write_manifest, write_members
from dragoman.corpus.preparation.hold_out_stage import SmallSplit, hold_out, read_small_split
from dragoman.corpus.preparation.inputs import Input, open_inputs, preparation_key, under_given_names
from dragoman.corpus.preparation.shuffle_stage import ShuffledShard, characters_of, shuffle_text
from dragoman.corpus.preparation.vocabulary_stage import Vocabulary, make_vocabulary
from dragoman.corpus.preparation.work_dir import (
    Progress,
    Say,
    Sentences,
    Workshop,
    open_work_folder,
    other_leftovers,
    publish,
)
from dragoman.corpus.prepared_corpus import (
    SPLITS_WITH_TEXT,
    Manifest,
    PreparedCorpus,
    SplitName,
    SplitRecord,
    SplitWithText,
    text_path,
    tokenizer_path,
)
from dragoman.corpus.settings import PrepareSettings
from dragoman.corpus.shards import id_dtype
from dragoman.run.errors import UserError
from dragoman.run.files import write_text

__all__ = ["Progress", "Say", "prepare_corpus"]

MAX_BAD_LINES_TOLD = 10


def show_no_progress(_stage: str, _num_done: int, _num_total: int | None) -> None:
    """For callers that need no progress."""


def prepare_corpus(
    settings: PrepareSettings,
    out: Path,
    say: Say,
    progress: Progress = show_no_progress,
    engine: EngineName = "local",
    num_processes: int | None = None,
) -> PreparedCorpus:
    """Prepares a corpus, continues to, or opens the one at `out` if it has the same text and settings."""
    rules = resolve_rules(settings)
    with open_inputs(settings, beside=out.parent) as inputs:
        key = preparation_key(settings, inputs)
        if os.path.lexists(out) and not _is_empty_folder(out):
            return _reuse(out, key, inputs, say)
        for leftover in other_leftovers(out, key):
            say(f"{leftover} is left over from another preparation; if that is not at work any more, delete it.")
        num_bytes = sum(record.num_bytes for each in inputs for record in each.records)
        try:
            with open_work_folder(out, key) as folder, open_engine(engine, num_processes, num_bytes) as workers:
                shop = Workshop(folder, workers, say, progress)
                manifest = _Preparation(settings, rules, inputs, key, shop).run()
                publish(folder, out)
        except OSError as problem:
            raise _explain_failure(problem, out) from problem
    return PreparedCorpus(out, manifest)


# --- an output folder that already exists


def _reuse(out: Path, key: str, inputs: Sequence[Input], say: Say) -> PreparedCorpus:
    """Opens a finished preparation of the same text with the same settings; anything else is in the way."""
    advice = "Choose another --out, or remove it first."
    try:
        corpus = PreparedCorpus.open(out)
    except UserError as problem:
        raise UserError(f"{out} exists already and cannot be used: {problem} {advice}") from None
    if corpus.manifest.key == key:
        say(f"{out} is already prepared from the same text with the same settings; it is used as it is.")
        return corpus
    for name, split in corpus.manifest.splits.items():
        given = [record.sha256 for each in _of(name, inputs) for record in each.records]
        if [record.sha256 for record in split.inputs] != given:
            raise UserError(f"{out} was prepared from other {name} text. {advice}")
    raise UserError(f"{out} was prepared with other settings. {advice}")


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _of(split: SplitName, inputs: Sequence[Input]) -> list[Input]:
    return [each for each in inputs if each.split == split]


def _explain_failure(problem: OSError, out: Path) -> UserError:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"There is no space left for {out}; free some and run the same command again to continue.")
    return UserError(f"{out} cannot be written: {problem.strerror or problem}.")


# --- the stages


@dataclass
class _Preparation:
    """One preparation. What a stage did before an interruption, it finds again in the work folder."""

    settings: PrepareSettings
    rules: Rules
    inputs: Sequence[Input]
    key: str
    shop: Workshop
    bad_lines: BadLines = field(init=False)

    def __post_init__(self) -> None:
        self.bad_lines = BadLines(self.settings.skip_bad_lines)

    def run(self) -> Manifest:
        """All stages, from raw text to the manifest."""
        given = Sentences()
        small = {name: self._read_small_split(name, given) for name in SPLITS_WITH_TEXT if _of(name, self.inputs)}
        given.save(self.shop.folder.given_sentences)

        account = Account(self.rules)
        shards = self._clean_and_shuffle(account)
        held_out, apart = self._hold_out(shards, small, given)
        small |= held_out
        for name, split in small.items():
            self._write_text(name, split)

        vocabulary = self._make_vocabulary(shards, apart, small)
        encoded = self._encode(shards, vocabulary)
        num_held_out = sum(len(split.sources) for split in held_out.values())
        account.add(0, {"held_out": _pairs_beside_held_out(encoded["train"], num_held_out)})
        if not any(part.shard.num_pairs for part in encoded["train"]):
            raise UserError("Every training pair shares a sentence with dev or test, so none is left; give more text.")
        return self._finish(encoded, small, vocabulary, account)

    def _read_small_split(self, name: SplitWithText, sentences: Sentences) -> SmallSplit:
        """A given dev or test set: everything in it that can be used, whatever the filters say of training text."""
        inputs = _of(name, self.inputs)
        rules = Rules(empty=True, normalise=self.rules.normalise)
        return read_small_split(name, inputs, self._open_texts(inputs), rules, sentences, self.shop.say)

    def _open_texts(self, inputs: Sequence[Input]) -> list[ParallelText]:
        limit = self.settings.max_expansion
        return [ParallelText(each.settings, self.rules.languages, self.bad_lines, limit) for each in inputs]

    def _clean_and_shuffle(self, account: Account) -> list[ShuffledShard]:
        training = _of("train", self.inputs)
        texts = self._open_texts(training)
        cleaned = clean_inputs(self.shop, training, texts, account, self.settings.seed)
        for sentence in (*(notice for text in texts for notice in text.notices()), *self._tell_bad_lines()):
            self.shop.say(under_given_names(sentence, self.inputs))
        if not cleaned.num_pairs:
            raise UserError(account.why_nothing_is_left())
        return shuffle_text(self.shop, cleaned, account, self.settings.seed)

    def _tell_bad_lines(self) -> list[str]:
        skipped = [f"Skipped: {record.sentence}" for record in self.bad_lines.records]
        if len(skipped) > MAX_BAD_LINES_TOLD:
            return [*skipped[:MAX_BAD_LINES_TOLD], f"Skipped {len(skipped):,} lines in all; manifest.json lists them."]
        return skipped

    def _hold_out(
        self, shards: Sequence[ShuffledShard], small: dict[SplitWithText, SmallSplit], given: Sentences
    ) -> tuple[dict[SplitWithText, SmallSplit], Sentences]:
        missing = [name for name in SPLITS_WITH_TEXT if name not in small]
        held_out, apart = hold_out(self.shop, shards, missing, self.settings.held_out, given, self._training_tags())
        apart.save(self.shop.folder.held_out_sentences)
        return held_out, apart

    def _write_text(self, name: SplitWithText, split: SmallSplit) -> None:
        folder = self.shop.folder.corpus
        write_text(text_path(folder, name, "source"), "".join(f"{line}\n" for line in split.sources))
        write_text(text_path(folder, name, "target"), "".join(f"{line}\n" for line in split.targets))

    def _make_vocabulary(
        self, shards: Sequence[ShuffledShard], apart: Sentences, small: dict[SplitWithText, SmallSplit]
    ) -> Vocabulary:
        alphabet: set[str] = set()
        for split in small.values():
            alphabet |= characters_of(split.sources) | characters_of(split.targets)
        tags = tuple(dict.fromkeys(each.settings.tag for each in self.inputs if each.settings.tag))
        return make_vocabulary(self.shop, shards, apart, alphabet, self.settings.tokenizer, tags)

    def _training_tags(self) -> tuple[str | None, ...]:
        """The tag of each training input, by the label its pairs carry."""
        return tuple(each.settings.tag for each in _of("train", self.inputs))

    def _encode(self, shards: Sequence[ShuffledShard], vocabulary: Vocabulary) -> dict[SplitName, list[EncodedShard]]:
        encoded: dict[SplitName, list[EncodedShard]] = {"train": [], "dev": [], "test": []}
        tasks = list(self._encode_tasks(len(shards), vocabulary))
        num_total = sum(shard.num_pairs for shard in shards)
        num_done = 0
        self.shop.progress("encoding", num_done, num_total)
        for task, part in zip(tasks, self.shop.engine.map(encode_one_shard, tasks), strict=True):
            encoded[task.split].append(part)
            num_done += part.shard.num_pairs
            self.shop.progress("encoding", min(num_done, num_total), num_total)
        return encoded

    def _encode_tasks(self, num_shards: int, vocabulary: Vocabulary) -> Iterator[EncodeTask]:
        folder, is_joint = self.shop.folder, vocabulary.record.is_joint
        tokenizers = (
            tokenizer_path(folder.corpus, "source", is_joint),
            tokenizer_path(folder.corpus, "target", is_joint),
        )
        dtype = id_dtype(max(vocabulary.source.vocab_size, vocabulary.target.vocab_size))
        for index in range(num_shards):
            texts = folder.shuffled(index, "source"), folder.shuffled(index, "target")
            labels = folder.shuffled(index, "labels")
            yield EncodeTask(folder, "train", index, *texts, labels, self._training_tags(), tokenizers, dtype)
        for name in SPLITS_WITH_TEXT:
            texts = text_path(folder.corpus, name, "source"), text_path(folder.corpus, name, "target")
            yield EncodeTask(folder, name, 0, *texts, None, (), tokenizers, dtype)

    def _finish(
        self,
        encoded: dict[SplitName, list[EncodedShard]],
        small: dict[SplitWithText, SmallSplit],
        vocabulary: Vocabulary,
        account: Account,
    ) -> Manifest:
        splits: dict[SplitName, SplitRecord] = {}
        for name, parts in encoded.items():
            split = None if name == "train" else small[name]
            is_held_out = split is not None and split.is_held_out
            num_read = account.num_read if split is None or is_held_out else split.num_lines_read
            inputs = _of(name, self.inputs)
            splits[name] = describe_split(self.shop.folder, name, parts, inputs, vocabulary, is_held_out, num_read)
        corpora = write_members(self.shop.folder, len(encoded["train"]), _of("train", self.inputs))
        return write_manifest(
            self.shop.folder,
            self.key,
            self.settings,
            vocabulary.record,
            corpora,
            account,
            [under_given_names(record.sentence, self.inputs) for record in self.bad_lines.records],
            splits,
            {name: record for parts in encoded.values() for part in parts for name, record in part.files.items()},
        )


def _pairs_beside_held_out(parts: Sequence[EncodedShard], num_held_out: int) -> Dropped:
    """Training pairs left out because they share a sentence with a held-out set, without the pairs of the set."""
    total = Dropped()
    for part in parts:
        total.merge(part.held_out)
    total.num_pairs -= num_held_out
    return total
