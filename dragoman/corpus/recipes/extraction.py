"""From a download to plain text: two files of UTF-8, line by line each other's translation (TMX stays as it is)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import IO

from dragoman.corpus.recipes.archives import CHUNK_BYTES, DamagedDownloadError, Stream, damage_is_told, open_texts
from dragoman.corpus.recipes.index import Dataset
from dragoman.run.files import write_aside

MAX_LINE_BYTES = 2**23
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE)


@dataclass
class Extracted:
    """What was written, and what was done to the text."""

    texts: list[tuple[Path, ...]]
    """Two plain files in the order of the dataset's languages, or single files that hold both sides."""
    num_pairs: int | None = None
    """None where only reading the format would tell."""
    num_repaired_lines: int = 0
    """Lines that were not UTF-8; what could not be read became U+FFFD."""
    num_skipped_rows: int = 0
    """Rows of a table that lack a column."""


def extract(dataset: Dataset, downloads: Sequence[Path], sides: tuple[Path, Path], whole: Path) -> Extracted:
    """Writes the text of a dataset to `sides`, or for TMX to `whole`; DamagedDownloadError if it is not there."""
    with damage_is_told():
        texts = open_texts(dataset, downloads)
        match dataset.format:
            case "tmx":
                return _copy_files(texts, whole)
            case "tsv":
                return _split_columns(texts, dataset.columns, sides)
            case _:
                return _write_sides(texts, sides, is_sgm=dataset.format == "sgm")


def _copy_files(texts: Iterator[tuple[int, Stream]], whole: Path) -> Extracted:
    """Copies each file as it is; from the second on, with a number in its name."""
    extracted = Extracted([])
    for number, stream in texts:
        path = whole.with_name(f"{whole.stem}.{number + 1}{whole.suffix}") if number else whole
        with write_aside(path) as file:
            while chunk := stream.read(CHUNK_BYTES):
                file.write(chunk)
        extracted.texts.append((path,))
    return extracted


def _split_columns(texts: Iterator[tuple[int, Stream]], columns: Sequence[int], sides: tuple[Path, Path]) -> Extracted:
    extracted = Extracted([sides], num_pairs=0)
    with write_aside(sides[0], "w") as first, write_aside(sides[1], "w") as second:
        for _, stream in texts:
            for block in _read_blocks(stream, extracted):
                _write_rows(block, columns, (first, second), extracted)
        if extracted.num_pairs == 0:
            raise DamagedDownloadError("no row of it has the columns that mtdata names")
    return extracted


def _write_rows(block: str, columns: Sequence[int], files: tuple[IO[str], IO[str]], extracted: Extracted) -> None:
    assert extracted.num_pairs is not None
    for line in block[:-1].split("\n"):
        row = line.split("\t")
        if len(row) <= max(columns):
            extracted.num_skipped_rows += 1
            continue
        for file, column in zip(files, columns, strict=True):
            file.write(row[column].strip() + "\n")
        extracted.num_pairs += 1


def _write_sides(texts: Iterator[tuple[int, Stream]], sides: tuple[Path, Path], is_sgm: bool) -> Extracted:
    extracted = Extracted([sides])
    num_lines = [0, 0]
    for number, stream in texts:
        with write_aside(sides[number], "w") as file:
            for block in _read_blocks(stream, extracted):
                text = _segments(block) if is_sgm else block
                num_lines[number] += text.count("\n")
                file.write(text)
    if num_lines[0] != num_lines[1] or num_lines[0] == 0:
        for path in sides:
            path.unlink(missing_ok=True)
        raise DamagedDownloadError(f"its two sides have {num_lines[0]:,} and {num_lines[1]:,} lines")
    extracted.num_pairs = num_lines[0]
    return extracted


def _segments(block: str) -> str:
    """The sentences among lines of SGML, as WMT publishes its test sets: each between <seg> and </seg> on a line."""
    sentences = (" ".join(unescape(text).split()) for text in _SEGMENT.findall(block))
    return "".join(f"{sentence}\n" for sentence in sentences)


def _read_blocks(stream: Stream, extracted: Extracted) -> Iterator[str]:
    """Whole lines, many at a time; the last one gets its newline if it has none."""
    rest = b""
    while chunk := stream.read(CHUNK_BYTES):
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield _decode(lines + newline, extracted)
        if len(rest) > MAX_LINE_BYTES:
            raise DamagedDownloadError(f"it holds a line of more than {MAX_LINE_BYTES:,} bytes")
    if rest:
        yield _decode(rest + b"\n", extracted)


def _decode(block: bytes, extracted: Extracted) -> str:
    try:
        return block.decode()
    except UnicodeDecodeError:
        extracted.num_repaired_lines += sum(not _is_utf8(line) for line in block.split(b"\n"))
        return block.decode(errors="replace")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
