"""Stage 3: dev and test sets, as given or held out of the training text; no two splits share a sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dragoman.corpus.cleaning.clean import Dropped, clean_block
from dragoman.corpus.cleaning.filters import Rules
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.preparation.inputs import Input
from dragoman.corpus.preparation.shuffle_stage import LABEL_DTYPE, ShuffledShard, read_lines
from dragoman.corpus.preparation.work_folder import Say, SentenceSet, StageContext, TextFolder
from dragoman.corpus.prepared_corpus import SplitWithText
from dragoman.run.errors import UserError

_MAX_HELD_OUT_PAIRS = 1000
_HELD_OUT_SHARE = 0.02


@dataclass
class SmallSplit:
    """A dev or test set, held in memory."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    is_held_out: bool = False
    num_lines_read: int = 0


def read_small_split(
    name: SplitWithText,
    inputs: Sequence[Input],
    texts: Sequence[ParallelText],
    rules: Rules,
    sentences: SentenceSet,
    say: Say,
) -> SmallSplit:
    """Reads a given dev or test set and adds its sentences to `sentences`; reports pairs that cannot be used."""
    split = SmallSplit()
    dropped: dict[str, Dropped] = {}
    for each, text in zip(inputs, texts, strict=True):
        for block in text.blocks():
            place = f"{each.records[0].path}, {text.what}"
            cleaned = clean_block(block.sources, block.targets, rules, partial(_place, place, block.first_number))
            sentences.sources.update(cleaned.sources)
            sentences.targets.update(cleaned.targets)
            split.sources += [with_tag(source, each.settings.tag) for source in cleaned.sources]
            split.targets += cleaned.targets
            split.num_lines_read += len(block.sources)
            for reason, found in cleaned.dropped.items():
                dropped.setdefault(reason, Dropped()).merge(found)
    for reason, found in dropped.items():
        say(f"Left out {found.num_pairs:,} {name} pairs ({reason}), the first at {found.examples[0].place}.")
    if not split.sources:
        raise UserError(f"The {name} files hold no pair with text on both sides ({inputs[0].records[0].path}, ...).")
    return split


def _place(file_and_unit: str, first_number: int, index: int) -> str:
    return f"{file_and_unit} {first_number + index}"


def with_tag(source: str, tag: str | None) -> str:
    """Puts the tag of its corpus before a source sentence."""
    return f"{tag} {source}" if tag else source


def hold_out(
    context: StageContext,
    folder: TextFolder,
    shards: Sequence[ShuffledShard],
    missing: Sequence[SplitWithText],
    asked: int | None,
    given: SentenceSet,
    tags: Sequence[str | None],
) -> tuple[dict[SplitWithText, SmallSplit], SentenceSet]:
    """Takes the missing sets from the beginning of the training text, which is shuffled.

    Also returns their sentences, without tags; training must not see them.
    """
    held_out = SentenceSet()
    if not missing:
        return {}, held_out
    num_pairs = sum(shard.num_pairs for shard in shards)
    size = asked or min(_MAX_HELD_OUT_PAIRS, max(1, int(_HELD_OUT_SHARE * num_pairs)))
    if size * len(missing) >= num_pairs:
        raise UserError(
            f"The text has {num_pairs:,} pairs; holding out {size:,} for {' and '.join(missing)} each leaves none "
            "for training. Give more text or a smaller --held-out."
        )
    pairs = _pairs_with_new_sentences(folder, len(shards), given, held_out)
    splits = {name: _draw(pairs, size, tags) for name in missing}
    plural, each = ("s" if size > 1 else ""), (" each" if len(missing) > 1 else "")
    context.say(f"Held out {size:,} pair{plural} for {' and '.join(missing)}{each}.")
    return splits, held_out


def _pairs_with_new_sentences(
    folder: TextFolder, num_shards: int, given: SentenceSet, held_out: SentenceSet
) -> Iterator[tuple[str, str, int]]:
    """Yields pairs that share no sentence with the given sets or with each other; adds each to `held_out`."""
    for index in range(num_shards):
        labels = np.fromfile(folder.shard(index, "labels"), LABEL_DTYPE).tolist()
        texts = (read_lines(folder.shard(index, side)) for side in ("source", "target"))
        for source, target, label in zip(*texts, labels, strict=True):
            if not (given.has_either(source, target) or held_out.has_either(source, target)):
                held_out.add(source, target)
                yield source, target, label


def _draw(pairs: Iterator[tuple[str, str, int]], size: int, tags: Sequence[str | None]) -> SmallSplit:
    split = SmallSplit(is_held_out=True)
    for source, target, label in pairs:
        split.sources.append(with_tag(source, tags[label]))
        split.targets.append(target)
        if len(split.sources) == size:
            return split
    raise UserError(
        f"The text repeats itself too much to hold out {size:,} pairs with sentences of their own; "
        "give dev and test files or a smaller --held-out."
    )
