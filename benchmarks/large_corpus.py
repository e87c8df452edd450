"""Makes a corpus of any size from Europarl: its pairs are repeated, each copy with one word changed per side."""

import lzma
import random
from pathlib import Path

from multi30k import REPOSITORY

from dragoman.run.errors import UserError

PACKED_FOLDER = REPOSITORY.parent / "shared" / "data" / "europarl"
LANGUAGES = ("en", "de")
SHARE_LEFT_ALONE = 0.02
"""Fraction of the copies that are not changed, like repetitions in a real corpus."""
LINES_PER_WRITE = 10_000


def write_large_corpus(folder: Path, num_pairs: int) -> tuple[Path, Path]:
    """Writes train.en and train.de, reproducibly; takes about 5 µs per line."""
    for language in LANGUAGES:
        lines = _read_lines(language)
        randomness = random.Random(language)
        words = [word for line in lines[:50_000] for word in line.split()]
        with (folder / f"train.{language}").open("w", encoding="utf-8", newline="\n") as file:
            for begin in range(0, num_pairs, LINES_PER_WRITE):
                numbers = range(begin, min(begin + LINES_PER_WRITE, num_pairs))
                file.writelines(_copy(lines, number, words, randomness) for number in numbers)
    return folder / "train.en", folder / "train.de"


def _read_lines(language: str) -> list[str]:
    path = PACKED_FOLDER / f"train.{language}.xz"
    if not path.exists():
        raise UserError(f"{path} is missing; this benchmark needs Europarl there.")
    return lzma.open(path, "rt", encoding="utf-8", newline="\n").read().split("\n")[:-1]


def _copy(lines: list[str], number: int, words: list[str], randomness: random.Random) -> str:
    """Returns the line itself in the first round, later a changed copy."""
    repetition, index = divmod(number, len(lines))
    if repetition == 0 or index % round(1 / SHARE_LEFT_ALONE) == 0:
        return lines[index] + "\n"
    parts = lines[index].split(" ")
    parts[int(randomness.random() * len(parts))] = words[int(randomness.random() * len(words))]
    return " ".join(parts) + "\n"
