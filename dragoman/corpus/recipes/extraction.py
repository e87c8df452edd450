"""Extracts sentence pairs from downloaded files and archives."""

import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from html import unescape
from io import BufferedReader
from pathlib import Path
from typing import IO

from dragoman.corpus.formats.compression import (
    CHUNK_BYTES,
    DEFAULT_MAX_EXPANSION,
    ContentReader,
    TooLargeError,
    check_expansion,
    note_nothing,
)
from dragoman.corpus.recipes.index import Dataset
from dragoman.run.decompressors import COMPRESSION_ENDINGS, ChunkStream, DamagedError
from dragoman.run.files import write_then_rename

MAX_LINE_BYTES = 2**23
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE)


@dataclass
class Extracted:
    """The files that were written, and what was changed in the text."""

    texts: list[tuple[Path, ...]]
    """Two plain files in the order of the dataset's languages, or single files that hold both sides."""
    num_pairs: int | None = None
    """None if the format must be read to count them."""
    num_repaired_lines: int = 0
    """Lines that were not UTF-8; U+FFFD replaces the bytes that could not be read."""
    num_skipped_rows: int = 0
    """Rows of a table that lack a column."""


def extract(dataset: Dataset, downloads: Sequence[Path], sides: tuple[Path, Path], whole: Path) -> Extracted:
    """Writes the text of a dataset to `sides`, or for TMX to `whole`; DamagedError if it cannot be read."""
    with _any_damage_as_damaged_error():
        texts = _open_texts(dataset, downloads)
        match dataset.format:
            case "tmx":
                return _copy_files(texts, whole)
            case "tsv":
                return _split_columns(texts, dataset.columns, sides)
            case _:
                return _write_sides(texts, sides, is_sgm=dataset.format == "sgm")


@contextmanager
def _any_damage_as_damaged_error() -> Iterator[None]:
    """Turns every error that a broken archive can cause into a DamagedError."""
    try:
        yield
    except TooLargeError as problem:
        raise DamagedError(f"it {problem}") from None
    # zipfile raises NotImplementedError for an unknown method, and RuntimeError for a password.
    except (
        EOFError,
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
        tarfile.TarError,
        NotImplementedError,
        RuntimeError,
    ) as problem:
        raise DamagedError(str(problem)) from None
    except OSError as problem:
        # zipfile reports bad bzip2 data as an OSError without a number; errors of the system have one.
        if problem.errno is not None:
            raise
        raise DamagedError(str(problem)) from None


Text = tuple[int, Iterable[bytes]]
"""The number of a text in its dataset, and its content in chunks."""


def _open_texts(dataset: Dataset, downloads: Sequence[Path]) -> Iterator[Text]:
    """Yields the texts of a dataset in the order of the archive; each must be read before the next one is taken.

    When all were taken, compressed downloads were read to their ends, where their checksums are.
    """
    if not dataset.members:
        for number, path in enumerate(downloads):
            with _open_content(path) as content:
                yield number, content
    elif zipfile.is_zipfile(downloads[0]):
        yield from _open_zip_members(downloads[0], dataset.members)
    elif downloads[0].suffix == ".zip":
        raise DamagedError("it is not a complete zip archive")
    else:
        yield from _open_tar_members(downloads[0], dataset.members)


@contextmanager
def _open_content(path: Path) -> Iterator[Iterator[bytes]]:
    """Opens a file that may be compressed, and reads what is left of it afterwards."""
    with path.open("rb") as file:
        reader = ContentReader(path, file, DEFAULT_MAX_EXPANSION, note_nothing)
        if not reader.is_compressed and path.name.endswith((*COMPRESSION_ENDINGS, ".tgz")):
            raise DamagedError("it is not compressed as its name says; it may be an error page")
        content = iter(reader)
        yield content
        for _ in content:
            pass


def _open_zip_members(path: Path, patterns: Sequence[str]) -> Iterator[Text]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for number, pattern in enumerate(patterns):
            matches = [name for name in names if fnmatchcase(name, pattern)]
            if len(matches) != 1:
                raise _wrong_number(pattern, len(matches))
            num_compressed_bytes = min(archive.getinfo(matches[0]).compress_size, path.stat().st_size)
            with archive.open(matches[0]) as member:
                yield number, _limited_chunks(member, num_compressed_bytes)


def _limited_chunks(member: IO[bytes], num_compressed_bytes: int) -> Iterator[bytes]:
    num_bytes = 0
    for chunk in _chunks(member):
        num_bytes += len(chunk)
        check_expansion(num_bytes, num_compressed_bytes, DEFAULT_MAX_EXPANSION)
        yield chunk


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(partial(file.read, CHUNK_BYTES), b"")


def _open_tar_members(path: Path, patterns: Sequence[str]) -> Iterator[Text]:
    """Yields members in one pass over the archive; links and devices are skipped."""
    num_found = dict.fromkeys(patterns, 0)
    with _open_content(path) as content:
        file = BufferedReader(ChunkStream(content))
        # "r|" never seeks, which in a compressed file would mean to decompress it again.
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                for number, pattern in enumerate(patterns):
                    if member.isfile() and _is_path_match(member.name, pattern):
                        num_found[pattern] += 1
                        stream = archive.extractfile(member)
                        assert stream is not None, "a member that is a file has content"
                        yield number, _chunks(stream)
    for pattern, count in num_found.items():
        if count != 1:
            raise _wrong_number(pattern, count)


def _is_path_match(name: str, pattern: str) -> bool:
    """Whether a path matches; as in a shell, a star does not match a slash."""
    steps, patterns = name.removeprefix("./").split("/"), pattern.split("/")
    return len(steps) == len(patterns) and all(map(fnmatchcase, steps, patterns))


def _wrong_number(pattern: str, count: int) -> DamagedError:
    return DamagedError(f"it holds {count} files {pattern!r} where one is expected")


def _copy_files(texts: Iterator[Text], whole: Path) -> Extracted:
    """Copies each file unchanged; the second and later ones get a number in their names."""
    extracted = Extracted([])
    for number, content in texts:
        path = whole.with_name(f"{whole.stem}.{number + 1}{whole.suffix}") if number else whole
        with write_then_rename(path) as file:
            file.writelines(content)
        extracted.texts.append((path,))
    return extracted


def _split_columns(texts: Iterator[Text], columns: Sequence[int], sides: tuple[Path, Path]) -> Extracted:
    extracted = Extracted([sides], num_pairs=0)
    with write_then_rename(sides[0], "w") as first, write_then_rename(sides[1], "w") as second:
        for _, content in texts:
            for block in _read_blocks(content, extracted):
                _write_rows(block, columns, (first, second), extracted)
        if extracted.num_pairs == 0:
            raise DamagedError("none of its rows has the columns that mtdata names")
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


def _write_sides(texts: Iterator[Text], sides: tuple[Path, Path], is_sgm: bool) -> Extracted:
    extracted = Extracted([sides])
    num_lines = [0, 0]
    for number, content in texts:
        with write_then_rename(sides[number], "w") as file:
            for block in _read_blocks(content, extracted):
                text = _segments(block) if is_sgm else block
                num_lines[number] += text.count("\n")
                file.write(text)
    if num_lines[0] != num_lines[1] or num_lines[0] == 0:
        for path in sides:
            path.unlink(missing_ok=True)
        raise DamagedError(f"its two sides have {num_lines[0]:,} and {num_lines[1]:,} lines")
    extracted.num_pairs = num_lines[0]
    return extracted


def _segments(block: str) -> str:
    """Returns the sentences of SGML as WMT publishes its test sets: each between <seg> and </seg> on one line."""
    sentences = (" ".join(unescape(text).split()) for text in _SEGMENT.findall(block))
    return "".join(f"{sentence}\n" for sentence in sentences)


def _read_blocks(content: Iterable[bytes], extracted: Extracted) -> Iterator[str]:
    """Yields whole lines, many at a time; the last one gets its newline if it has none."""
    rest = b""
    for chunk in content:
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield _decode(lines + newline, extracted)
        if len(rest) > MAX_LINE_BYTES:
            raise DamagedError(f"it holds a line of more than {MAX_LINE_BYTES:,} bytes")
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
