"""Writes an output file, compressed if its name says so (.gz, .xz, .zst, .bz2); it appears when it is complete."""

import bz2
import gzip
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dragoman.run.files import write_then_rename


@contextmanager
def open_output(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing; the same content always gives the same bytes."""
    with write_then_rename(path) as file, _compress(path, file) as content:
        yield content


@contextmanager
def _compress(path: Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    match path.suffix.lower():
        case ".gz":
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield packed  # type: ignore[misc]  # typeshed does not count it as a file
        case ".bz2":
            with bz2.BZ2File(file, "wb") as bzip:
                yield bzip
        case ".xz":
            with lzma.LZMAFile(file, "wb") as xz:
                yield xz
        case ".zst":
            import zstandard

            with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as zst:
                yield zst
        case _:
            yield file
