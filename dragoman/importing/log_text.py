"""The lines of a log that a stranger wrote: any size, any bytes, packed or not; what comes out is plain text."""

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any

import zstandard

from dragoman.run.errors import UserError

BUFFER_BYTES = 2**20
MAX_LINE_BYTES = 2**16
"""Longer lines are cut: no figure stands behind that many characters."""
MAX_LOG_BYTES = 4 * 10**9
"""Unpacked; a small file that unpacks to more is read no further."""
MAX_TEXT_CHARACTERS = 2_000
"""Of one sample sentence or message."""

_MAGIC: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": zstandard.open,
}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|.)?")
# Control characters, halves of surrogate pairs, and marks that turn the direction of text around.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_MPI_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_DAMAGED = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, zstandard.ZstdError)


class _Unpacked(RawIOBase):
    """An archive read in small portions: one large read would lose all of its bytes to damage behind them."""

    def __init__(self, archive: Any) -> None:
        self._archive = archive

    def readable(self) -> bool:
        """As a reader of files wants to know."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer as far as the next portion goes."""
        portion = self._archive.read1(len(buffer))
        buffer[: len(portion)] = portion
        return len(portion)

    def close(self) -> None:
        """Closes the archive, too."""
        self._archive.close()
        super().close()


def read_lines(path: Path) -> Iterator[str]:
    """Every line without its end, terminal escapes and the tags of mpirun; a damaged archive is read as far as it goes.

    A carriage return ends a line too: progress bars write one in front of what a log says.
    """
    num_bytes = 0
    with _open(path) as file:
        while num_bytes < MAX_LOG_BYTES:
            try:
                raw = file.readline(MAX_LINE_BYTES)
            except _DAMAGED:
                return
            if not raw:
                return
            num_bytes += len(raw)
            text = raw.decode("utf-8", errors="replace").rstrip("\r\n")
            for line in text.split("\r") if "\r" in text else (text,):
                yield _without_decoration(line)
            if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                num_bytes += _skip_line(file)


def _open(path: Path) -> IO[bytes]:
    try:
        with path.open("rb") as file:
            head = file.read(8)
        unpack = next((unpack for magic, unpack in _MAGIC.items() if head.startswith(magic)), None)
        # A buffer of our own: those of the archives hand out lines in Python, one by one, which takes twice as long.
        return path.open("rb") if unpack is None else BufferedReader(_Unpacked(unpack(path)), BUFFER_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def _skip_line(file: IO[bytes]) -> int:
    """Reads to the end of a line that is too long; how many bytes that was."""
    num_bytes = 0
    while num_bytes < MAX_LOG_BYTES:
        try:
            rest = file.readline(MAX_LINE_BYTES)
        except _DAMAGED:
            return num_bytes
        num_bytes += len(rest)
        if not rest or rest.endswith(b"\n"):
            return num_bytes
    return num_bytes


def _without_decoration(line: str) -> str:
    if "\x1b" in line:
        line = _ESCAPES.sub("", line)
    if line.startswith("["):
        line = _MPI_TAG.sub("", line, count=1) if _MPI_TAG.match(line) else line
    return line


def clean_text(text: str, max_characters: int = MAX_TEXT_CHARACTERS) -> str:
    """Text of a stranger that can be shown anywhere: no escapes, no control characters, not too long."""
    plain = _UNPRINTABLE.sub("", _ESCAPES.sub("", text[: 4 * max_characters])).strip()
    return plain if len(plain) <= max_characters else plain[: max_characters - 1] + "…"
