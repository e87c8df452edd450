"""`dragoman prepare`: makes a prepared corpus from raw parallel text of any size, completely or not at all.

Read `_Preparation.run` from top to bottom for the stages: clean in blocks, shuffle into shards, hold out dev and test,
train the tokenizers, encode, finish. Blocks and shards are independent tasks (`engine.py`) that write files, so no
process holds the whole text, and finished work is found again (`work_folder.py`).
"""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dragoman.corpus.cleaning.clean import Dropped
from dragoman.corpus.cleaning.cleaning_account import CleaningAccount
from dragoman.corpus.cleaning.filters import Rules, resolve_rules
from dragoman.corpus.formats.blocks import BadLine, BadLines
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.preparation.clean_stage import clean_inputs, merge_dropped
from dragoman.corpus.preparation.encode_stage import EncodedShard, EncodeTask, encode_one_shard
from dragoman.corpus.preparation.engine import EngineName, Interrupted, open_engine
from dragoman.corpus.preparation.finish_stage import describe_split, write_manifest, write_members
from dragoman.corpus.preparation.hold_out_stage import SmallSplit, hold_out, read_small_split
from dragoman.corpus.preparation.inputs import Input, open_inputs, stage_keys, with_given_names
from dragoman.corpus.preparation.shuffle_stage import LABEL_DTYPE, ShuffledShard, characters_of, shuffle_text
from dragoman.corpus.preparation.vocabulary_stage import Vocabulary, make_vocabulary
from dragoman.corpus.preparation.work_folder import (
    Progress,
    Say,
    SentenceSet,
    StageContext,
    TaskRecord,
    TextFolder,
    WorkFolder,
    keep_finished_stages,
    link_tree,
    open_work_folder,
    publish,
    remove_work,
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
from dragoman.corpus.shards import SIDES
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import have_sizes, write_text
from dragoman.run.interruption import signals_as_keyboard_interrupt

__all__ = ["Progress", "Say", "prepare_corpus"]

MAX_BAD_LINES_SHOWN = 10


def _show_no_progress(_stage: str, _num_done: int, _num_total: int | None) -> None:
    """Ignores progress."""


def prepare_corpus(
    settings: PrepareSettings,
    out: Path,
    say: Say,
    progress: Progress = _show_no_progress,
    engine: EngineName = "local",
    num_processes: int | None = None,
    keep_work: bool = False,
) -> PreparedCorpus:
    """Prepares a corpus, or opens the one at `out` if it was made from the same text with the same settings.

    Work that an earlier preparation left in the folder of `out` is used; `keep_work` leaves the finished stages there.
    """
    try:
        with signals_as_keyboard_interrupt(), open_inputs(settings, out, say) as inputs:
            rules = resolve_rules(settings)
            keys = stage_keys(settings, rules, inputs)
            if os.path.lexists(out) and not _is_empty_folder(out):
                return _reuse(out, keys.corpus, inputs, say)
            num_bytes = sum(record.num_bytes for each in inputs for record in each.records)
            with open_work_folder(out, keys) as work, open_engine(engine, num_processes, num_bytes) as workers:
                context = StageContext(workers, say, progress)
                manifest = _Preparation(settings, rules, inputs, keys.corpus, work, context).run()
                publish(work, out)
                # The published files have a second name there: kept, damage of the one would damage the other.
                shutil.rmtree(work.shards.path)
                if keep_work and (kept := keep_finished_stages(work)):
                    say(f"The cleaned text is kept in {kept} for the next preparation; delete it to free the space.")
                remove_work(work)
    except OSError as problem:
        raise _explain_failure(problem, out) from problem
    except KeyboardInterrupt:
        raise Interrupted("Stopped; run the same command again to continue where it stopped.") from None
    return PreparedCorpus(out, manifest)


# --- an output folder that already exists


def _reuse(out: Path, key: str, inputs: Sequence[Input], say: Say) -> PreparedCorpus:
    """Opens a finished preparation of the same text with the same settings; refuses anything else."""
    advice = "Remove it first, or choose another folder."
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
    place = f" ({problem.filename})" if problem.filename else ""
    return UserError(f"{out} cannot be written: {describe_os_error(problem)}{place}.")


# --- the stages


class TrainingText(TaskRecord):
    """Result of the first two stages: the training text, cleaned and shuffled."""

    num_read: int
    dropped: dict[str, Dropped]
    notices: list[str]
    bad_lines: list[BadLine]
    shards: list[ShuffledShard]


def _load_text(folder: TextFolder) -> TrainingText | None:
    """Loads finished text; None if there is none, or if a file of it was damaged, e.g. by a power failure."""
    if not folder.record.exists():
        return None
    text = TrainingText.load(folder.record)
    sizes = {}
    for index, shard in enumerate(text.shards):
        sizes[folder.shard(index, "source")] = shard.num_source_bytes
        sizes[folder.shard(index, "target")] = shard.num_target_bytes
        sizes[folder.shard(index, "labels")] = shard.num_pairs * LABEL_DTYPE.itemsize
    if have_sizes(sizes):
        return text
    shutil.rmtree(folder.path)
    folder.make()
    return None


@dataclass
class _Preparation:
    """One preparation; each stage uses what an earlier preparation left in the work folder."""

    settings: PrepareSettings
    rules: Rules
    inputs: Sequence[Input]
    key: str
    work: WorkFolder
    context: StageContext
    bad_lines: BadLines = field(init=False)

    def __post_init__(self) -> None:
        self.bad_lines = BadLines(self.settings.skip_bad_lines)

    def run(self) -> Manifest:
        """Runs all stages, from raw text to the manifest."""
        given = SentenceSet()
        small = {name: self._read_small_split(name, given) for name in SPLITS_WITH_TEXT if _of(name, self.inputs)}
        text = self._clean_and_shuffle(given)
        held_out, held_out_sentences = self._hold_out(text, small, given)
        small |= held_out
        vocabulary = self._make_vocabulary(text, held_out_sentences, small)
        encoded = self._encode(text, vocabulary)

        account = CleaningAccount(self.rules)
        account.add(text.num_read, text.dropped)
        num_held_out = sum(len(split.sources) for split in held_out.values())
        account.add(0, {"held_out": _pairs_beside_held_out(encoded["train"], num_held_out)})
        if not any(each.shard.num_pairs for each in encoded["train"]):
            raise UserError("Every training pair shares a sentence with dev or test, so none is left; give more text.")
        return self._finish(encoded, small, vocabulary, account)

    def _read_small_split(self, name: SplitWithText, sentences: SentenceSet) -> SmallSplit:
        """Reads a given dev or test set; the filters for training text do not apply to it."""
        inputs = _of(name, self.inputs)
        rules = Rules(empty=True, normalise=self.rules.normalise)
        return read_small_split(name, inputs, self._open_texts(inputs), rules, sentences, self.context.say)

    def _open_texts(self, inputs: Sequence[Input]) -> list[ParallelText]:
        limit = self.settings.max_expansion
        return [ParallelText(each.settings, self.rules.languages, self.bad_lines, limit) for each in inputs]

    def _clean_and_shuffle(self, given: SentenceSet) -> TrainingText:
        folder = self.work.text
        if text := _load_text(folder):
            self.context.say("Using the text that an earlier preparation cleaned and shuffled with the same settings.")
            for line in text.bad_lines:
                self.bad_lines.add(line.path, line.number, line.reason, what=line.what)
        else:
            given.save(folder.given_sentences)
            text = self._make_text()
            text.save(folder.record, folder.shuffled)
            shutil.rmtree(folder.blocks)
        for notice in (*text.notices, *self._describe_bad_lines()):
            self.context.say(notice)
        return text

    def _make_text(self) -> TrainingText:
        folder, seed, num_bad_before = self.work.text, self.settings.seed, len(self.bad_lines.records)
        training = _of("train", self.inputs)
        texts = self._open_texts(training)
        cleaned = clean_inputs(self.context, folder, training, texts, self.rules, seed)
        if not cleaned.num_pairs:
            account = CleaningAccount(self.rules)
            account.add(cleaned.num_read, cleaned.dropped)
            raise UserError(account.why_nothing_is_left())
        shards = shuffle_text(self.context, folder, cleaned, self.rules, seed)
        for shard in shards:
            merge_dropped(cleaned.dropped, shard.dropped)
        return TrainingText(
            num_read=cleaned.num_read,
            dropped=cleaned.dropped,
            notices=[with_given_names(notice, self.inputs) for text in texts for notice in text.notices()],
            bad_lines=[self._with_given_name(line) for line in self.bad_lines.records[num_bad_before:]],
            shards=shards,
        )

    def _with_given_name(self, line: BadLine) -> BadLine:
        return replace(line, path=Path(with_given_names(str(line.path), self.inputs)))

    def _bad_line_messages(self) -> list[str]:
        return [with_given_names(line.message, self.inputs) for line in self.bad_lines.records]

    def _describe_bad_lines(self) -> list[str]:
        skipped = [f"Skipped: {message}" for message in self._bad_line_messages()]
        if len(skipped) > MAX_BAD_LINES_SHOWN:
            return [*skipped[:MAX_BAD_LINES_SHOWN], f"Skipped {len(skipped):,} lines in all; manifest.json lists them."]
        return skipped

    def _hold_out(
        self, text: TrainingText, small: dict[SplitWithText, SmallSplit], given: SentenceSet
    ) -> tuple[dict[SplitWithText, SmallSplit], SentenceSet]:
        missing = [name for name in SPLITS_WITH_TEXT if name not in small]
        splits, sentences = hold_out(
            self.context, self.work.text, text.shards, missing, self.settings.held_out, given, self._training_tags()
        )
        sentences.save(self.work.shards.held_out_sentences)
        for name, split in (small | splits).items():
            for side, lines in zip(SIDES, (split.sources, split.targets), strict=True):
                write_text(text_path(self.work.shards.corpus, name, side), "".join(f"{line}\n" for line in lines))
        return splits, sentences

    def _make_vocabulary(
        self, text: TrainingText, held_out: SentenceSet, small: dict[SplitWithText, SmallSplit]
    ) -> Vocabulary:
        alphabet: set[str] = set()
        for split in small.values():
            alphabet |= characters_of(split.sources) | characters_of(split.targets)
        tags = tuple(dict.fromkeys(each.settings.tag for each in self.inputs if each.settings.tag))
        tokenizer = self.settings.tokenizer
        return make_vocabulary(self.context, self.work, text.shards, held_out, alphabet, tokenizer, tags)

    def _training_tags(self) -> tuple[str | None, ...]:
        """Tag of each training input, in the order of the labels of pairs."""
        return tuple(each.settings.tag for each in _of("train", self.inputs))

    def _encode(self, text: TrainingText, vocabulary: Vocabulary) -> dict[SplitName, list[EncodedShard]]:
        encoded: dict[SplitName, list[EncodedShard]] = {"train": [], "dev": [], "test": []}
        tasks = list(self._encode_tasks(len(text.shards), vocabulary))
        num_total = sum(shard.num_pairs for shard in text.shards)
        num_done = 0
        self.context.progress("encoding", num_done, num_total)
        for task, shard in zip(tasks, self.context.engine.map(encode_one_shard, tasks), strict=True):
            encoded[task.split].append(shard)
            num_done += shard.shard.num_pairs
            self.context.progress("encoding", min(num_done, num_total), num_total)
        return encoded

    def _encode_tasks(self, num_shards: int, vocabulary: Vocabulary) -> Iterator[EncodeTask]:
        text, folder, is_joint = self.work.text, self.work.shards, vocabulary.tokenizer.is_joint
        tokenizers = (
            tokenizer_path(folder.corpus, "source", is_joint),
            tokenizer_path(folder.corpus, "target", is_joint),
        )
        for index in range(num_shards):
            files = text.shard(index, "source"), text.shard(index, "target"), text.shard(index, "labels")
            yield EncodeTask(folder, "train", index, *files, self._training_tags(), tokenizers, vocabulary.dtype)
        for name in SPLITS_WITH_TEXT:
            texts = text_path(folder.corpus, name, "source"), text_path(folder.corpus, name, "target")
            yield EncodeTask(folder, name, 0, *texts, None, (), tokenizers, vocabulary.dtype)

    def _finish(
        self,
        encoded: dict[SplitName, list[EncodedShard]],
        small: dict[SplitWithText, SmallSplit],
        vocabulary: Vocabulary,
        account: CleaningAccount,
    ) -> Manifest:
        splits: dict[SplitName, SplitRecord] = {}
        for name, shards in encoded.items():
            split = None if name == "train" else small[name]
            is_held_out = split is not None and split.is_held_out
            num_read = account.num_read if split is None or is_held_out else split.num_lines_read
            inputs = _of(name, self.inputs)
            splits[name] = describe_split(self.work.shards, name, shards, inputs, vocabulary, is_held_out, num_read)
        link_tree(self.work.shards.corpus, self.work.corpus)
        corpora = write_members(self.work, len(encoded["train"]), _of("train", self.inputs))
        return write_manifest(
            self.work.corpus,
            account,
            {name: file for shards in encoded.values() for each in shards for name, file in each.files.items()},
            key=self.key,
            settings=self.settings.model_dump(mode="json", exclude_none=True),
            tokenizer=vocabulary.tokenizer,
            corpora=corpora,
            bad_lines=tuple(self._bad_line_messages()),
            splits=splits,
        )


def _pairs_beside_held_out(shards: Sequence[EncodedShard], num_held_out: int) -> Dropped:
    """Counts training pairs dropped because they share a sentence with a held-out set, without the set's own pairs."""
    total = Dropped()
    for shard in shards:
        total.merge(shard.held_out)
    total.num_pairs -= num_held_out
    return total
