"""Writes the reversal task: sequences of letters and their reversals. A model that learns it has working attention."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from string import ascii_lowercase

from dragoman.run.errors import UsageError
from dragoman.run.files import write_text

MIN_LENGTH = 2
# With at most half of all sequences, drawing distinct ones takes two tries each in the worst case.
_USABLE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ReversalCorpus:
    """Paths of source and target of each split."""

    train: tuple[Path, Path]
    dev: tuple[Path, Path]
    test: tuple[Path, Path]


def write_reversal_corpus(
    folder: Path,
    num_train: int = 10_000,
    num_dev: int = 500,
    num_test: int = 500,
    seed: int = 1,
    max_length: int = 20,
) -> ReversalCorpus:
    """Writes distinct sequences of letters and their reversals; no sequence is in two splits."""
    num_sequences = num_train + num_dev + num_test
    _check_size(num_sequences, max_length)
    sequences = iter(_draw_distinct(num_sequences, seed, max_length))
    folder.mkdir(parents=True, exist_ok=True)
    return ReversalCorpus(
        train=_write_split(folder, "train", list(islice(sequences, num_train))),
        dev=_write_split(folder, "dev", list(islice(sequences, num_dev))),
        test=_write_split(folder, "test", list(islice(sequences, num_test))),
    )


def _draw_distinct(num_sequences: int, seed: int, max_length: int) -> list[str]:
    random = Random(seed)  # noqa: S311 -- a toy, not a secret
    drawn: dict[str, None] = {}  # a set that keeps its order
    while len(drawn) < num_sequences:
        drawn[_draw_letters(random, max_length)] = None
    return list(drawn)


def _draw_letters(random: Random, max_length: int) -> str:
    return "".join(random.choices(ascii_lowercase, k=random.randint(MIN_LENGTH, max_length)))


def _check_size(num_sequences: int, max_length: int) -> None:
    if max_length < MIN_LENGTH:
        raise UsageError(f"max_length is {max_length}, but a sequence to reverse has at least {MIN_LENGTH} letters.")
    num_possible = int(len(ascii_lowercase) ** max_length * _USABLE_SHARE)
    if num_sequences > num_possible:
        raise UsageError(
            f"With max_length {max_length} there are only {num_possible:,} sequences to draw, but {num_sequences:,} "
            "were requested; raise max_length or request fewer."
        )


def _write_split(folder: Path, name: str, sequences: list[str]) -> tuple[Path, Path]:
    source, target = folder / f"{name}.source", folder / f"{name}.target"
    write_text(source, "".join(f"{' '.join(letters)}\n" for letters in sequences))
    write_text(target, "".join(f"{' '.join(reversed(letters))}\n" for letters in sequences))
    return source, target
