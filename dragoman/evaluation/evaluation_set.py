"""What translations are judged on: sources and one or more references, from files, a prepared corpus or sacreBLEU."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.lines import TextFile
from dragoman.evaluation.scores import References
from dragoman.run.decompressors import COMPRESSION_ENDINGS
from dragoman.run.errors import UserError

Say = Callable[[str], None]
NamedLines = tuple[object, list[str]]
"""Lines, and the file or other place they are from."""


@dataclass(frozen=True)
class EvaluationSet:
    """Text to translate with its references, line by line."""

    name: str
    sources: list[str] | None
    """Normalised as training text is; None where only finished translations are judged."""
    references: References
    """As in the files: sacreBLEU's own command gives the same scores for them."""
    languages: str | None = None
    """For instance "en-de", where the set itself says it."""

    @property
    def num_sentences(self) -> int:
        """Number of lines."""
        return len(self.references[0])

    @property
    def references_by_line(self) -> list[list[str]]:
        """The references of each line, at least one."""
        return [[each for each in line if each is not None] for line in zip(*self.references, strict=True)]

    def require_lines_of(self, path: object, lines: Sequence[str]) -> None:
        """Refuses translations that cannot be of this set."""
        _require_same_length((self.name, self.references[0]), (path, lines))


def read_files(source: Path | None, references: Sequence[Path], say: Say) -> EvaluationSet:
    """Reads a test set of the user; all files must have the same number of lines."""
    sources = None if source is None else (source, [normalise(line) for line in read_lines(source, say)])
    columns = [(path, column) for path in references for column in _read_references(path, say)]
    return build_set(str(source or references[0]), sources, columns, say)


def read_sacrebleu_set(name: str, languages: str | None, say: Say) -> EvaluationSet:
    """Reads a test set that sacreBLEU has downloaded before."""
    from dragoman.evaluation.sacrebleu_data import find_files

    pair, source, references = find_files(name, languages)
    return replace(read_files(source, references, say), name=f"{name} ({pair})", languages=pair)


def build_set(name: str, sources: NamedLines | None, references: Sequence[NamedLines], say: Say) -> EvaluationSet:
    """Checks that sources and references belong together, and that every line has a reference."""
    texts = [sources, *references] if sources else [*references]
    for other in texts[1:]:
        _require_same_length(texts[0], other)
    rows = list(zip(*(lines for _, lines in references), strict=True))
    for number, row in enumerate(rows, 1):
        has_source = sources is None or bool(sources[1][number - 1])
        if has_source and not any(map(str.strip, row)):
            raise UserError(
                f"{references[0][0]}, line {number:,} is empty: this line has no reference. "
                "Add one, or take the line out of all files."
            )
    kept = [_without_missing(row) for row in rows]
    if num_missing := sum(each is None for row in kept for each in row):
        say(f"{num_missing:,} of the references are empty: those sentences are scored with fewer references.")
    return EvaluationSet(name, sources and sources[1], list(zip(*kept, strict=True)))


def _without_missing(row: Sequence[str]) -> Sequence[str | None]:
    """Replaces the empty references of a line by None, unless all are empty."""
    return [each if each.strip() else None for each in row] if any(map(str.strip, row)) else row


def _require_same_length(one: tuple[object, Sequence[object]], other: tuple[object, Sequence[object]]) -> None:
    """Refuses texts whose lines cannot belong together."""
    if len(one[1]) != len(other[1]):
        raise UserError(
            f"{one[0]} has {len(one[1]):,} lines but {other[0]} has {len(other[1]):,}: "
            "line N of one must belong to line N of the other."
        )


def read_lines(path: Path, say: Say) -> list[str]:
    """Reads the lines of a file without white space at their ends, and reports what is unusual about it."""
    file = TextFile(path)
    lines = [line.rstrip() for line in file]
    for notice in file.notices():
        say(notice)
    return lines


def _read_references(path: Path, say: Say) -> list[list[str]]:
    """Reads one set of references, or one per column of a .tsv file."""
    name = path.name.lower()
    for ending in COMPRESSION_ENDINGS:
        name = name.removesuffix(ending)
    columns = _read_columns(path) if name.endswith(".tsv") else [read_lines(path, say)]
    num_decomposed = sum(not unicodedata.is_normalized("NFC", line) for lines in columns for line in lines)
    if num_decomposed:
        say(
            f"{num_decomposed:,} references of {path} are not in Unicode's composed form (NFC), which models write: "
            "their accented letters count as wrong, as they do for the command sacrebleu."
        )
    return columns


def _read_columns(path: Path) -> list[list[str]]:
    rows = [line.split("\t") for line in TextFile(path)]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise UserError(
                f"{path}, line {number:,} has {len(row)} columns but line 1 has {len(rows[0])}; "
                "a table of references has as many on every line, and they may be empty."
            )
    return [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
