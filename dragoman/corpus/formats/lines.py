"""Plain text: lines of one file, or of two files side by side; subwords are joined to words again."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import AnyStr

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, Block, Reading, Unreadable, decode_sentence, too_long
from dragoman.corpus.formats.compression import DEFAULT_MAX_EXPANSION, NoteBytes, note_nothing, read_content
from dragoman.run.errors import UserError

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MAX_BYTES_PER_CHARACTER = 4
MAX_BYTES_WITHOUT_LINE_END = 64 * 2**20
"""A longer line is not skipped like other bad lines: it may have no end."""


def refuse_endless_lines(path: Path, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Passes chunks of a file on; a UserError if no line end comes for too long."""
    num_bytes = 0
    for chunk in chunks:
        yield chunk
        num_after_line_end = len(chunk) - 1 - chunk.rfind(b"\n")
        num_bytes = num_after_line_end if num_after_line_end < len(chunk) else num_bytes + len(chunk)
        if num_bytes > MAX_BYTES_WITHOUT_LINE_END:
            raise UserError(
                f"{path} has more than {MAX_BYTES_WITHOUT_LINE_END // 2**20} MiB without a line end; "
                "give text with one sentence per line."
            )


@dataclass(frozen=True)
class Lines:
    """Consecutive lines; an empty text replaces a line that cannot be read."""

    texts: list[str]
    faults: dict[int, Unreadable] = field(default_factory=dict)
    """Problems by line number in the file, from 1."""


class LineReader:
    """Reads one file as chunks of lines, and remembers harmless irregularities (CRLF, BOM) to report."""

    def __init__(
        self,
        path: Path,
        max_expansion: int,
        max_line_bytes: int = MAX_LINE_BYTES,
        note_bytes: NoteBytes = note_nothing,
        content: Iterator[bytes] | None = None,
    ) -> None:
        """Reads the file, or `content` instead, for instance what somebody types; that may have no lines."""
        self.path = path
        self.num_lines = 0
        self.has_byte_order_mark = False
        self.has_crlf = False
        self._max_line_bytes = max_line_bytes
        self._may_be_empty = content is not None
        content = read_content(path, max_expansion, note_bytes) if content is None else content
        self._content = refuse_endless_lines(path, content)
        self._has_seen_utf8 = False

    def chunks(self) -> Iterator[Lines]:
        """Yields all lines in order; a file without lines is a UserError."""
        for whole_lines, num_dropped_bytes in self._whole_lines():
            lines = self._read_at_once(whole_lines) if num_dropped_bytes == 0 else None
            lines = lines or self._read_one_by_one(whole_lines, num_dropped_bytes)
            self.num_lines += len(lines.texts)
            yield lines
        if self.num_lines == 0 and not self._may_be_empty:
            raise UserError(f"{self.path} is empty; give a file with one sentence per line.")

    def notices(self) -> list[str]:
        """Returns messages about the file for the user."""
        messages = []
        if self.has_crlf:
            messages.append(f"{self.path} has Windows line ends (CRLF); they were read as plain line ends.")
        if self.has_byte_order_mark:
            messages.append(f"{self.path} starts with a byte order mark (BOM); it was left out.")
        return messages

    def _whole_lines(self) -> Iterator[tuple[bytes, int]]:
        """Yields chunks of whole lines, and how many bytes of the first line were dropped because it is too long."""
        longest = self._max_line_bytes + len(b"\r\n")
        carry, num_dropped_bytes = b"", 0
        for chunk in self._content_without_mark():
            if end := chunk.rfind(b"\n") + 1:
                yield carry + chunk[:end], num_dropped_bytes
                carry, num_dropped_bytes = chunk[end:], 0
            elif len(carry) > longest:
                num_dropped_bytes += len(carry)
                carry = chunk
            else:
                carry += chunk
        if carry:
            yield carry, num_dropped_bytes

    def _content_without_mark(self) -> Iterator[bytes]:
        """Removes a byte order mark from the start; waits for more bytes only while they may complete a mark."""
        head = b""
        for chunk in self._content:
            head += chunk
            if head.startswith(_UTF16_MARKS):
                raise UserError(
                    f"{self.path} is UTF-16 text; convert it to UTF-8, for instance with iconv -f UTF-16 -t UTF-8."
                )
            if not any(len(head) < len(mark) and mark.startswith(head) for mark in (codecs.BOM_UTF8, *_UTF16_MARKS)):
                break
        self.has_byte_order_mark = head.startswith(codecs.BOM_UTF8)
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from self._content

    def _read_at_once(self, whole_lines: bytes) -> Lines | None:
        """Returns the lines, or None if one of them may be bad; the fast path."""
        if b"\0" in whole_lines:
            return None
        try:
            text = self._with_plain_ends(whole_lines).decode("utf-8")
        except UnicodeDecodeError:
            return None
        texts = _split(text, "\n")
        is_ascii = text.isascii()
        max_characters = self._max_line_bytes // (1 if is_ascii else _MAX_BYTES_PER_CHARACTER)
        if max(map(len, texts), default=0) > max_characters:
            return None
        self._has_seen_utf8 |= not is_ascii
        return Lines(texts)

    def _read_one_by_one(self, whole_lines: bytes, num_dropped_bytes: int) -> Lines:
        """Decodes each line; the slow path, which finds the bad lines."""
        lines = Lines([])
        for content in _split(self._with_plain_ends(whole_lines), b"\n"):
            try:
                lines.texts.append(self._decode(content, num_dropped_bytes))
            except Unreadable as fault:
                lines.texts.append("")
                lines.faults[self.num_lines + len(lines.texts)] = fault
            num_dropped_bytes = 0
        return lines

    def _with_plain_ends(self, whole_lines: bytes) -> bytes:
        # Searching for one byte is 10 times as fast as for two.
        if b"\r" not in whole_lines or b"\r\n" not in whole_lines:
            return whole_lines
        self.has_crlf = True
        return whole_lines.replace(b"\r\n", b"\n")

    def _decode(self, content: bytes, num_dropped_bytes: int) -> str:
        num_bytes = num_dropped_bytes + len(content)
        if num_bytes > self._max_line_bytes:
            what = "a sentence" if self._max_line_bytes == MAX_LINE_BYTES else "a line"
            raise too_long(num_bytes, self._max_line_bytes, what)
        text = decode_sentence(content, is_after_utf8=self._has_seen_utf8)
        self._has_seen_utf8 |= not text.isascii()
        return text


def _split(text: AnyStr, end: AnyStr) -> list[AnyStr]:
    """Splits text into lines; the last one may lack its line end."""
    lines = text.split(end)
    if not lines[-1]:
        lines.pop()
    return lines


class TextFile:
    """Reads one file line by line; the first bad line is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = 0
        self._reader = LineReader(path, DEFAULT_MAX_EXPANSION)

    def __iter__(self) -> Iterator[str]:
        for lines in self._reader.chunks():
            for text in lines.texts:
                self.num_lines += 1
                if fault := lines.faults.get(self.num_lines):
                    raise UserError(f"{self.path}, line {self.num_lines} {fault.reason}; {fault.advice}.")
                yield text

    def notices(self) -> list[str]:
        """Returns messages about the file for the user."""
        return self._reader.notices()


class _Side:
    """The lines of one file, which can be taken in any number."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self.reader = LineReader(path, reading.max_expansion, note_bytes=reading.note_bytes)
        self.faults: dict[int, Unreadable] = {}
        self._chunks = self.reader.chunks()
        self._texts: list[str] = []

    def fill(self) -> int:
        """Reads lines if none are held, and returns how many are held."""
        if not self._texts and (lines := next(self._chunks, None)) is not None:
            self._texts = lines.texts
            self.faults |= lines.faults
        return len(self._texts)

    def take(self, num_lines: int) -> list[str]:
        """Removes and returns held lines."""
        taken, self._texts = self._texts[:num_lines], self._texts[num_lines:]
        return taken

    def count_all(self) -> int:
        """Reads to the end, and returns the number of lines of the file."""
        for _ in self._chunks:
            pass
        return self.reader.num_lines


class PlainReader:
    """Reads two plain files side by side."""

    what = "line"

    def __init__(self, source: Path, target: Path, reading: Reading) -> None:
        self._source, self._target = _Side(source, reading), _Side(target, reading)
        self._add_bad_line = reading.add_bad_line

    def runs(self) -> Iterator[Block]:
        """Yields runs of pairs without a bad line between them."""
        next_number = 1
        while num_lines := min(self._source.fill(), self._target.fill()):
            yield from self._between_bad_lines(
                Block(next_number, self._source.take(num_lines), self._target.take(num_lines))
            )
            next_number += num_lines
        self._check_equal_lengths()

    def notices(self) -> list[str]:
        """Returns messages about the files for the user."""
        return self._source.reader.notices() + self._target.reader.notices()

    def _between_bad_lines(self, run: Block) -> Iterator[Block]:
        start, stop = 0, len(run.sources)
        for number in self._take_bad_numbers(run.first_number + stop):
            index = number - run.first_number
            yield Block(run.first_number + start, run.sources[start:index], run.targets[start:index])
            start = index + 1
        yield Block(run.first_number + start, run.sources[start:], run.targets[start:]) if start else run

    def _take_bad_numbers(self, stop_number: int) -> Iterator[int]:
        """Reports bad lines before a number; a pair that is bad on both sides counts once, for its source."""
        faults = self._target.faults | self._source.faults
        for number in sorted(number for number in faults if number < stop_number):
            side = self._source if number in self._source.faults else self._target
            self._source.faults.pop(number, None)
            self._target.faults.pop(number, None)
            self._add_bad_line(side.reader.path, number, faults[number])
            yield number

    def _check_equal_lengths(self) -> None:
        num_source, num_target = self._source.count_all(), self._target.count_all()
        if num_source != num_target:
            raise UserError(
                f"{self._source.reader.path} has {num_source:,} lines but {self._target.reader.path} has "
                f"{num_target:,}; line N of one must be the translation of line N of the other."
            )
