"""Reads the lines of log files, compressed or not and with any bytes, and the numbers and times in them."""

import bz2
import gzip
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any, TypeGuard

import zstandard

from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.records import LARGEST_NUMBER

_BUFFER_BYTES = 2**20
MAX_LINE_BYTES = 2**16
"""Longer lines are cut: all figures of a log line come before this."""
MAX_LOG_BYTES = 4 * 10**9
"""Limit of the decompressed size: a small archive can expand to any size."""
MAX_TEXT_CHARACTERS = 2_000
"""Longest sample or message that is kept."""
_MAX_COUNT_DIGITS = 15

NUMBER = r"[-+]?(?:\d{1,25}(?:\.\d{0,25})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
"""Pattern of a number that float() accepts; to be compiled with re.ASCII."""
COUNT = r"\d[\d,]{0,18}"
"""Pattern of a number that parse_count() accepts, e.g. 60,880,896; to be compiled with re.ASCII."""

_MAGIC: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": zstandard.open,
}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|.)?")
# Control characters, single surrogates, and marks that reverse the direction of text.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_MPI_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_DAMAGED = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, zstandard.ZstdError)


class _Unpacked(RawIOBase):
    """Reads an archive in small chunks: damage in a large chunk would lose all of its bytes."""

    def __init__(self, archive: Any) -> None:
        self._archive = archive

    def readable(self) -> bool:
        """Returns True, as BufferedReader asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer with the next chunk."""
        chunk = self._archive.read1(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        """Closes the archive too."""
        self._archive.close()
        super().close()


def read_lines(path: Path) -> Iterator[str]:
    """Yields every line without its end, terminal escapes and tags of mpirun; a damaged archive up to the damage.

    A carriage return ends a line too: progress bars write one before the next message.
    """
    num_bytes, is_rest_of_line = 0, False
    with _open(path) as file, suppress(*_DAMAGED):
        while num_bytes < MAX_LOG_BYTES and (raw := file.readline(MAX_LINE_BYTES)):
            num_bytes += len(raw)
            if not is_rest_of_line:
                text = raw.decode("utf-8", errors="replace").rstrip("\r\n")
                for line in text.split("\r") if "\r" in text else (text,):
                    yield _without_decoration(line)
            is_rest_of_line = not raw.endswith(b"\n")


def _open(path: Path) -> IO[bytes]:
    try:
        with path.open("rb") as file:
            head = file.read(8)
        unpack = next((unpack for magic, unpack in _MAGIC.items() if head.startswith(magic)), None)
        # Twice as fast as the archive's own readline(), which is written in Python.
        return path.open("rb") if unpack is None else BufferedReader(_Unpacked(unpack(path)), _BUFFER_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None


def _without_decoration(line: str) -> str:
    if "\x1b" in line:
        line = _ESCAPES.sub("", line)
    if line.startswith("[") and (tag := _MPI_TAG.match(line)):
        line = line[tag.end() :]
    return line


def clean_text(text: str, max_characters: int = MAX_TEXT_CHARACTERS) -> str:
    """Makes text of a log safe to show anywhere: no escapes, no control characters, not too long."""
    plain = _UNPRINTABLE.sub("", _ESCAPES.sub("", text[: 4 * max_characters])).strip()
    return plain if len(plain) <= max_characters else plain[: max_characters - 1] + "…"


def parse_number(text: str) -> float | None:
    """Returns the number, which may be nan or inf; None if the whole text is not one number."""
    try:
        return float(text)
    except ValueError:
        return None


def parse_count(text: str) -> int | None:
    """Returns a whole number without a sign, which may have commas as in 60,880,896; None for any other text."""
    digits = text.replace(",", "")
    is_count = len(digits) <= _MAX_COUNT_DIGITS and digits.isascii() and digits.isdigit()
    return int(digits) if is_count else None


def is_usable(value: float | None) -> TypeGuard[float]:
    """Whether a number may become a fact: logs also hold infinite and absurdly large ones."""
    return value is not None and math.isfinite(value) and abs(value) <= LARGEST_NUMBER


def parse_time(stamp: str) -> float | None:
    """Returns seconds since 1970 for a text that begins with "2021-01-01 12:00:00" or "2021-01-01 12:00:00,123".

    Logs write local time without a time zone: it is taken as UTC.
    """
    if len(stamp) < 19 or stamp[4] != "-" or stamp[13] != ":":
        return None
    try:
        seconds = datetime.fromisoformat(stamp[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    milliseconds = parse_count(stamp[20:23]) if stamp[19:20] == "," else None
    return seconds + (milliseconds or 0) / 1000


def loss_of_perplexity(perplexity: float | None) -> float | None:
    """Returns the loss in nats per token, nan for nan; None for what cannot be a perplexity."""
    return None if perplexity is None or perplexity <= 0 else math.log(perplexity)


class LogClock:
    """Computes seconds per step from the times of two log lines."""

    def __init__(self) -> None:
        self.log_every = 0
        """Steps between the last two log lines."""
        self._previous: tuple[int, float] | None = None

    def seconds_per_step(self, step: int, now: float | None) -> float | None:
        """Returns the mean since the previous line; None if either line has no time, or the run went back."""
        previous, self._previous = self._previous, None if now is None else (step, now)
        if now is None or previous is None or step <= previous[0] or now <= previous[1]:
            return None
        self.log_every = step - previous[0]
        return (now - previous[1]) / self.log_every

    def restart(self) -> None:
        """Forgets the previous line: the run began again."""
        self._previous = None
