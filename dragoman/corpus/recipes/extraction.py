"""Pairs out of a downloaded archive."""

import bz2
import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import unescape
from pathlib import Path
from typing import IO, Protocol

from dragoman.corpus.formats.compression import ALWAYS_ALLOWED_BYTES, DEFAULT_MAX_EXPANSION
from dragoman.corpus.recipes.index import Dataset
from dragoman.run.files import write_aside

CHUNK_BYTES = 2**20

_COMPRESSED_ENDINGS = (".gz", ".tgz", ".xz", ".bz2")


class DamagedDownloadError(Exception):
    """A download is not what it should be; the text says why."""


class Stream(Protocol):
    """What texts are read from."""

    def read(self, num_bytes: int, /) -> bytes:
        """At most so many bytes; none at the end."""


# By the first two bytes of a file.
_OPENERS: dict[bytes, Callable[[Path], AbstractContextManager[Stream]]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"\xfd7": lzma.LZMAFile,
    b"BZ": bz2.BZ2File,
}


class _Bounded:
    """A decompressed stream that may not grow beyond all measure: archives of strangers can be bombs."""

    def __init__(self, stream: Stream, max_bytes: int) -> None:
        self._stream = stream
        self._num_bytes_left = max_bytes

    def read(self, num_bytes: int) -> bytes:
        chunk = self._stream.read(num_bytes)
        self._num_bytes_left -= len(chunk)
        if self._num_bytes_left < 0:
            raise DamagedDownloadError(f"it unpacks to more than {DEFAULT_MAX_EXPANSION} times its size")
        return chunk


def open_texts(dataset: Dataset, downloads: Sequence[Path]) -> Iterator[tuple[int, Stream]]:
    """Gives each text of a dataset with its number, in the order of the archive; read one before you ask for the next.

    Once all are given, compressed downloads have been read to their ends, where their checksums are.
    """
    if not dataset.members:
        for number, path in enumerate(downloads):
            with _open_decompressed(path) as stream:
                yield number, stream
    elif zipfile.is_zipfile(downloads[0]):
        yield from _open_zip_members(downloads[0], dataset.members)
    elif downloads[0].suffix == ".zip":
        raise DamagedDownloadError("it is no complete zip archive")
    else:
        yield from _open_tar_members(downloads[0], dataset.members)


@contextmanager
def damage_is_told() -> Iterator[None]:
    """Makes one kind of error of all that reading a broken archive can raise."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError) as problem:
        raise DamagedDownloadError(str(problem)) from None
    except (NotImplementedError, RuntimeError) as problem:  # zip: an unknown method, a password
        raise DamagedDownloadError(str(problem)) from None
    except OSError as problem:
        # gzip and bz2 tell bad data as an OSError without a number; the system's own errors have one.
        if problem.errno is not None:
            raise
        raise DamagedDownloadError(str(problem)) from None


def _max_bytes(path: Path) -> int:
    return max(ALWAYS_ALLOWED_BYTES, DEFAULT_MAX_EXPANSION * path.stat().st_size)


@contextmanager
def _open_decompressed(path: Path) -> Iterator[Stream]:
    """The content of a file that may be compressed, by its first bytes; read to its end afterwards."""
    with path.open("rb") as file:
        opener = _OPENERS.get(file.read(2))
    if opener is None and path.name.endswith(_COMPRESSED_ENDINGS):
        raise DamagedDownloadError("it is not compressed as its name says, perhaps an error page")
    with opener(path) if opener else path.open("rb") as content:
        stream = _Bounded(content, _max_bytes(path))
        yield stream
        while stream.read(CHUNK_BYTES):
            pass


def _open_zip_members(path: Path, patterns: Sequence[str]) -> Iterator[tuple[int, Stream]]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for number, pattern in enumerate(patterns):
            matches = [name for name in names if fnmatchcase(name, pattern)]
            if len(matches) != 1:
                raise _wrong_number(pattern, len(matches))
            with archive.open(matches[0]) as member:
                yield number, _Bounded(member, _max_bytes(path))


def _open_tar_members(path: Path, patterns: Sequence[str]) -> Iterator[tuple[int, Stream]]:
    """One pass over the archive; links and devices in it are passed over."""
    num_found = dict.fromkeys(patterns, 0)
    # "r|" never seeks, which in a compressed file would mean to decompress it again.
    with _open_decompressed(path) as content, tarfile.open(fileobj=content, mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            for number, pattern in enumerate(patterns):
                if member.isfile() and _is_path_match(member.name, pattern):
                    num_found[pattern] += 1
                    stream = archive.extractfile(member)
                    assert stream is not None  # only for what is no file
                    yield number, stream
    for pattern, count in num_found.items():
        if count != 1:
            raise _wrong_number(pattern, count)


def _is_path_match(name: str, pattern: str) -> bool:
    """Like a shell: a star does not reach over a slash."""
    steps, patterns = name.removeprefix("./").split("/"), pattern.split("/")
    return len(steps) == len(patterns) and all(map(fnmatchcase, steps, patterns))


def _wrong_number(pattern: str, count: int) -> DamagedDownloadError:
    return DamagedDownloadError(f"it holds {count} files {pattern!r} where one is expected")


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
