"""Writes the training, dev and test splits of the built-in corpus."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

from dragoman.builtin import sentences
from dragoman.builtin.choices import pick
from dragoman.builtin.clauses import Sentence
from dragoman.builtin.phrases import Combination
from dragoman.run.errors import UserError
from dragoman.run.files import write_text

# Lengths that a small model learns quickly.
MIN_WORDS, MAX_WORDS = 4, 14

_WEIGHTS: dict[Callable[[Random], Sentence], int] = {
    sentences.statement: 30,
    sentences.description: 10,
    sentences.mood: 2,
    sentences.profession: 2,
    sentences.animal_life: 2,
    sentences.resting_place: 3,
    sentences.happening: 2,
    sentences.yes_no_question: 6,
    sentences.adverbial_question: 4,
    sentences.goal_question: 1,
    sentences.subject_question: 3,
    sentences.object_question: 4,
    sentences.command: 4,
    sentences.reason_about_subject: 6,
    sentences.reason_about_object: 4,
    sentences.object_taken_up: 3,
    sentences.sequence: 2,
    sentences.condition: 3,
    sentences.report: 4,
    sentences.coordination: 3,
    sentences.relative_on_subject: 6,
    sentences.relative_on_object: 4,
}
_WEIGHTED_KINDS = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))


def draw_sentence(random: Random) -> Sentence:
    """Draws sentences until one has an allowed length."""
    while True:
        sentence = pick(random, _WEIGHTED_KINDS)(random)
        if MIN_WORDS <= sentence.source.count(" ") + 1 <= MAX_WORDS:
            return sentence


# The grammar has far more sentences, but drawing distinct ones would take too much memory and time.
MAX_PAIRS = 2_000_000
_HELD_OUT_ONE_IN = 20


@dataclass(frozen=True, slots=True)
class ParallelFiles:
    """Two files whose lines translate each other."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class BuiltinCorpus:
    """Paths of the files of a written corpus."""

    train: ParallelFiles
    dev: ParallelFiles
    test: ParallelFiles
    test_compositional: ParallelFiles


def write_builtin_corpus(
    folder: Path, num_train: int = 40_000, num_dev: int = 500, num_test: int = 500, seed: int = 1
) -> BuiltinCorpus:
    """Writes train, dev, test and test-compositional, which has as many sentences as test."""
    _check_size(num_train + num_dev + 2 * num_test)
    folder.mkdir(parents=True, exist_ok=True)  # first: it may fail, and drawing takes seconds
    usual, held_out = _draw_split(num_train + num_dev + num_test, num_test, seed)
    # dev and test come first, so that they do not change with the size of train.
    rest = iter(usual)
    dev = _write_pairs(folder, "dev", list(islice(rest, num_dev)))
    test = _write_pairs(folder, "test", list(islice(rest, num_test)))
    train = _write_pairs(folder, "train", list(rest))
    return BuiltinCorpus(train, dev, test, _write_pairs(folder, "test-compositional", held_out))


@cache
def is_held_out(combination: Combination) -> bool:
    """Whether two lemmas never occur together in training; a checksum decides, so it is the same in all runs."""
    return zlib.crc32(" ".join(combination).encode()) % _HELD_OUT_ONE_IN == 0


def draw_distinct(seed: int) -> Iterator[Sentence]:
    """Yields sentences that are new on both sides, the same ones for the same seed."""
    random = Random(seed)  # noqa: S311 -- sentences, not secrets
    seen_sources: set[str] = set()
    seen_targets: set[str] = set()
    while True:
        sentence = draw_sentence(random)
        if sentence.source not in seen_sources and sentence.target not in seen_targets:
            seen_sources.add(sentence.source)
            seen_targets.add(sentence.target)
            yield sentence


def _draw_split(num_usual: int, num_held_out: int, seed: int) -> tuple[list[Sentence], list[Sentence]]:
    """Draws sentences without a held-out combination, and sentences with at least one."""
    usual: list[Sentence] = []
    held_out: list[Sentence] = []
    drawn = draw_distinct(seed)
    while len(usual) < num_usual or len(held_out) < num_held_out:
        sentence = next(drawn)
        has_held_out = any(map(is_held_out, sentence.combinations))
        (held_out if has_held_out else usual).append(sentence)
    return usual[:num_usual], held_out[:num_held_out]


def _check_size(num_pairs: int) -> None:
    if num_pairs > MAX_PAIRS:
        raise UserError(
            f"The built-in corpus has at most {MAX_PAIRS:,} distinct sentence pairs, "
            f"but {num_pairs:,} were requested; request fewer."
        )


def _write_pairs(folder: Path, name: str, pairs: list[Sentence]) -> ParallelFiles:
    files = ParallelFiles(folder / f"{name}.en", folder / f"{name}.de")
    write_text(files.source, "".join(f"{pair.source}\n" for pair in pairs))
    write_text(files.target, "".join(f"{pair.target}\n" for pair in pairs))
    return files
