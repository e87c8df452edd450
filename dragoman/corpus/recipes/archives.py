"""Texts inside downloads, read as streams: nothing is ever unpacked, so no name in an archive can lead anywhere.

mtdata unpacks whole tar files into its cache with extractall; we read only the files that are asked for.
"""

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from dragoman.corpus.formats.compression import ALWAYS_ALLOWED_BYTES, DEFAULT_MAX_EXPANSION
from dragoman.corpus.recipes.index import Dataset

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
