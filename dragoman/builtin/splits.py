"""The training, dev and test splits of the built-in corpus."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

from dragoman.builtin import compounds, statements
from dragoman.builtin.adjectives import ADJECTIVES
from dragoman.builtin.adverbials import (
    CITIES,
    FREQUENCIES,
    MANNERS_FITTING,
    NAMES,
    NUMBER_WORDS,
    TIMES,
    TITLED_NAMES,
    WHEREABOUTS,
)
from dragoman.builtin.choices import pick
from dragoman.builtin.nouns import NOUNS
from dragoman.builtin.phrases import Combination
from dragoman.builtin.sentence import Sentence
from dragoman.builtin.verbs import VERBS
from dragoman.run.errors import UserError
from dragoman.run.files import write_text

# Lengths that a small model learns quickly.
MIN_WORDS, MAX_WORDS = 4, 14

_WEIGHTS: dict[Callable[[Random], Sentence], int] = {
    statements.statement: 30,
    statements.description: 10,
    statements.mood: 2,
    statements.profession: 2,
    statements.animal_life: 2,
    statements.resting_place: 3,
    statements.happening: 2,
    statements.yes_no_question: 6,
    statements.adverbial_question: 4,
    statements.goal_question: 1,
    statements.subject_question: 3,
    statements.object_question: 4,
    statements.command: 4,
    compounds.reason_about_subject: 6,
    compounds.reason_about_object: 4,
    compounds.object_taken_up: 3,
    compounds.sequence: 2,
    compounds.condition: 3,
    compounds.report: 4,
    compounds.coordination: 3,
    compounds.relative_on_subject: 6,
    compounds.relative_on_object: 4,
}
_WEIGHTED_KINDS = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))


def draw_sentence(random: Random) -> Sentence:
    """Draws until a sentence has a length within the bounds."""
    while True:
        sentence = pick(random, _WEIGHTED_KINDS)(random)
        if MIN_WORDS <= sentence.source.count(" ") + 1 <= MAX_WORDS:
            return sentence


def list_lemmas() -> dict[str, frozenset[str]]:
    """The English lemmas of each part of speech."""
    manners = {phrase.english for phrases in MANNERS_FITTING.values() for phrase in phrases}
    times = {phrase.english for phrases in TIMES.values() for phrase in phrases}
    adverbs = {phrase.english for phrase in FREQUENCIES + WHEREABOUTS} | manners | times
    return {
        "nouns": frozenset(noun.english for nouns in NOUNS.values() for noun in nouns),
        "verbs": frozenset(verb.lemma for verb in VERBS),
        "adjectives": frozenset(ADJECTIVES),
        "adverbs": frozenset(adverbs),
        "names": frozenset(name.name for name in NAMES + TITLED_NAMES) | frozenset(CITIES),
        "numbers": frozenset(english for english, _ in NUMBER_WORDS),
    }


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
