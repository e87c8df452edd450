"""Reads the lines of log files, compressed or not and with any bytes, and the numbers and times in them."""

import codecs
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TypeGuard

from dragoman.importing.files.notebooks import MAX_NOTEBOOK_BYTES, is_notebook, output_of
from dragoman.importing.files.unpacking import PackedFile
from dragoman.run.records import LARGEST_NUMBER

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

_HEAD_BYTES = 4_096
_MIN_NUL_SHARE = 0.3
"""UTF-16 without a mark is known by its NUL bytes: one in each character of ASCII."""
_MIN_NUL_SHARE_WITH_MARK = 0.05

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|.)?")
# Control characters, single surrogates, and marks that reverse the direction of text.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_MPI_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_DATE_OF_CONTAINER = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_TAGS = (
    re.compile(rf"{_DATE_OF_CONTAINER} (?:(?:stdout|stderr) [FP] )?", re.ASCII),
    re.compile(rf"\[[a-z]{{1,20}} {_DATE_OF_CONTAINER}\] ", re.ASCII),
    re.compile(r" {0,4}\d{1,5}: ", re.ASCII),
    re.compile(r"[\w.-]{1,80}[-_]\d{1,4} {1,40}\| ", re.ASCII),
)
"""What docker, Kubernetes and build servers, srun --label and docker compose put before each line."""
_TAGGED_LINES = 200
_TAGGED_SHARE = 0.5
"""Share of the first lines with the same kind of tag from which it is one: no trainer writes so many such lines."""
_FEWEST_TAGGED_LINES = 3


class LogText:
    """Iterates over the lines of a file without their ends, terminal escapes and the tags of what ran the program.

    The file may be packed; a damaged archive is read up to the damage. A carriage return ends a line too: progress
    bars write nothing else. Of a notebook, the lines are what its cells printed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = PackedFile(path)
        self._is_too_long = False

    @property
    def is_cut(self) -> bool:
        """Whether the end is missing; known once all lines were read."""
        return self._file.is_cut or self._is_too_long

    def __iter__(self) -> Iterator[str]:
        lines = self._tagged_lines()
        head = list(islice(lines, _TAGGED_LINES))
        tag = _find_tag(head)
        for line in chain(head, lines):
            yield tag.sub("", line, count=1) if tag is not None and tag.match(line) else line

    def _tagged_lines(self) -> Iterator[str]:
        rest = b""
        for chunk in _printed(_to_utf8(self._bounded())):
            lines, rest = _split_lines(rest + chunk)
            yield from map(_without_decoration, lines)
        # The last line of a cut archive is left out: its last number may be cut too.
        if (last := rest.rstrip(b"\r")) and not self.is_cut:
            yield _without_decoration(last.decode("utf-8", errors="replace")[:MAX_LINE_BYTES])

    def _bounded(self) -> Iterator[bytes]:
        num_left = MAX_LOG_BYTES
        for chunk in self._file:
            yield chunk[:num_left]
            num_left -= len(chunk)
            if num_left <= 0:
                self._is_too_long = True
                return


def read_lines(path: Path) -> Iterator[str]:
    """Yields every line of a log; see LogText."""
    return iter(LogText(path))


def _to_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Removes the mark at the start of UTF-8, and turns UTF-16 into UTF-8."""
    head = next(chunks, b"")
    encoding = _utf16_of(head[:_HEAD_BYTES])
    if encoding is None:
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for chunk in chain([head], chunks):
        # PowerShell writes the mark again where it appends to a file.
        yield decoder.decode(chunk).replace("\ufeff", "").encode("utf-8", errors="replace")


def _printed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Replaces a notebook by its output; any other text, and a notebook that was cut off, stays as it is."""
    head = next(chunks, b"")
    if not is_notebook(head):
        yield head
        yield from chunks
        return
    document = bytearray(head)
    for chunk in chunks:
        document += chunk
        if len(document) > MAX_NOTEBOOK_BYTES:
            break
    output = output_of(bytes(document)) if len(document) <= MAX_NOTEBOOK_BYTES else None
    yield bytes(document) if output is None else output
    yield from chunks


def _utf16_of(head: bytes) -> str | None:
    """Returns the byte order of UTF-16; None for any other text."""
    has_mark = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    least = _MIN_NUL_SHARE_WITH_MARK if has_mark else _MIN_NUL_SHARE
    first, second = head[::2], head[1::2]
    nuls_in_first, nuls_in_second = (half.count(0) / max(1, len(half)) for half in (first, second))
    if max(nuls_in_first, nuls_in_second) < least or len(head) < 4:
        return None
    if min(nuls_in_first, nuls_in_second) > max(nuls_in_first, nuls_in_second) / 4:
        return None
    return "utf-16-le" if nuls_in_second > nuls_in_first else "utf-16-be"


def _split_lines(block: bytes) -> tuple[list[str], bytes]:
    """Returns the whole lines of a block, and its rest."""
    # A carriage return at the end may belong to a line feed that follows.
    block, held = (block[:-1], b"\r") if block.endswith(b"\r") else (block, b"")
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines, end, rest = block.rpartition(b"\n")
    whole = lines.decode("utf-8", errors="replace").split("\n") if end else []
    return [line[:MAX_LINE_BYTES] for line in whole], rest[:MAX_LINE_BYTES] + held


def _without_decoration(line: str) -> str:
    if "\x1b" in line:
        line = _ESCAPES.sub("", line)
    if line.startswith("[") and (tag := _MPI_TAG.match(line)):
        line = line[tag.end() :]
    return line


def _find_tag(head: list[str]) -> re.Pattern[str] | None:
    """Returns the pattern of the tag with which most lines begin; None where they have none."""
    written = [line for line in head if line.strip()]
    counts = {tag: sum(tag.match(line) is not None for line in written) for tag in _TAGS}
    tag = max(counts, key=counts.__getitem__)
    return tag if counts[tag] >= max(_FEWEST_TAGGED_LINES, _TAGGED_SHARE * len(written)) else None


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
