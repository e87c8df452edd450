"""Distinct sentence pairs on demand, and the files of a training corpus whose test sets share nothing with it.

The compositional test set holds combinations of words that the other files never show together,
although they show each word of them in plenty.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

from dragoman.corpus.builtin.phrases import Combination
from dragoman.corpus.builtin.sentence import Sentence
from dragoman.corpus.builtin.sentences import draw_sentence
from dragoman.run.errors import UserError
from dragoman.run.files import write_text

# The grammar can say far more; beyond this, drawing anew what was drawn before would cost too much memory and time.
MAX_PAIRS = 2_000_000
_HELD_OUT_ONE_IN = 20


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ParallelFiles:
    """Two files whose lines translate each other."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class BuiltinCorpus:
    """Where the files of a written corpus are."""

    train: ParallelFiles
    dev: ParallelFiles
    test: ParallelFiles
    test_compositional: ParallelFiles


def generate_pairs(num_pairs: int, seed: int) -> Iterator[SentencePair]:
    """Distinct sentence pairs of all kinds, the same for the same seed."""
    _check_size(num_pairs)
    return (SentencePair(drawn.source, drawn.target) for drawn in islice(_draw_distinct(seed), num_pairs))


def write_builtin_corpus(
    folder: Path, num_train: int = 40_000, num_dev: int = 500, num_test: int = 500, seed: int = 1
) -> BuiltinCorpus:
    """Writes train, dev, test and test-compositional; the last has as many sentences as test."""
    _check_size(num_train + num_dev + 2 * num_test)
    seen_together, held_out = _draw_split(num_train + num_dev + num_test, num_test, seed)
    # dev and test come first, so that a longer train extends a shorter one and leaves them as they are.
    rest = iter(seen_together)
    folder.mkdir(parents=True, exist_ok=True)
    dev = _write_pairs(folder, "dev", list(islice(rest, num_dev)))
    test = _write_pairs(folder, "test", list(islice(rest, num_test)))
    train = _write_pairs(folder, "train", list(rest))
    return BuiltinCorpus(train, dev, test, _write_pairs(folder, "test-compositional", held_out))


@cache
def is_held_out(combination: Combination) -> bool:
    """Whether two lemmas are kept apart in training; a checksum decides, so it never changes between runs."""
    return zlib.crc32(" ".join(combination).encode()) % _HELD_OUT_ONE_IN == 0


def _draw_distinct(seed: int) -> Iterator[Sentence]:
    """Sentences of which neither side has been seen before."""
    random = Random(seed)  # noqa: S311 -- sentences, not secrets
    seen_sources: set[str] = set()
    seen_targets: set[str] = set()
    while True:
        sentence = draw_sentence(random)
        if sentence.source not in seen_sources and sentence.target not in seen_targets:
            seen_sources.add(sentence.source)
            seen_targets.add(sentence.target)
            yield sentence


def _draw_split(num_seen: int, num_held_out: int, seed: int) -> tuple[list[Sentence], list[Sentence]]:
    """Sentences without any held-out combination, and sentences with at least one."""
    seen_together: list[Sentence] = []
    held_out: list[Sentence] = []
    sentences = _draw_distinct(seed)
    while len(seen_together) < num_seen or len(held_out) < num_held_out:
        sentence = next(sentences)
        has_held_out = any(map(is_held_out, sentence.combinations))
        (held_out if has_held_out else seen_together).append(sentence)
    return seen_together[:num_seen], held_out[:num_held_out]


def _check_size(num_pairs: int) -> None:
    if num_pairs > MAX_PAIRS:
        raise UserError(
            f"The built-in corpus gives at most {MAX_PAIRS:,} distinct sentence pairs, "
            f"but {num_pairs:,} were asked for; ask for fewer."
        )


def _write_pairs(folder: Path, name: str, sentences: list[Sentence]) -> ParallelFiles:
    files = ParallelFiles(folder / f"{name}.en", folder / f"{name}.de")
    write_text(files.source, "".join(f"{sentence.source}\n" for sentence in sentences))
    write_text(files.target, "".join(f"{sentence.target}\n" for sentence in sentences))
    return files
