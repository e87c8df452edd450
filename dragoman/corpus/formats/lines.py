"""Strict reading of lines: UTF-8, split at "\\n" and nowhere else, a chunk of whole lines at a time.

A chunk is decoded and split at once; only where something is wrong with it are its lines looked at one by one.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import AnyStr

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, Unreadable, decode_sentence, too_long
from dragoman.corpus.formats.compression import DEFAULT_MAX_EXPANSION, NoteBytes, note_nothing, read_content
from dragoman.run.errors import UserError

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MAX_BYTES_PER_CHARACTER = 4


@dataclass(frozen=True)
class Lines:
    """Consecutive lines; where one cannot be read, an empty text stands for it."""

    texts: list[str]
    faults: dict[int, Unreadable] = field(default_factory=dict)
    """By line number in the file, from 1."""


class LineReader:
    """Reads one file as chunks of lines, and remembers what was peculiar but harmless."""

    def __init__(
        self,
        path: Path,
        max_expansion: int,
        max_line_bytes: int = MAX_LINE_BYTES,
        note_bytes: NoteBytes = note_nothing,
    ) -> None:
        self.path = path
        self.num_lines = 0
        self.has_byte_order_mark = False
        self.has_crlf = False
        self._max_line_bytes = max_line_bytes
        self._pieces = read_content(path, max_expansion, note_bytes)
        self._has_seen_utf8 = False

    def chunks(self) -> Iterator[Lines]:
        """Yields all lines in order; a file without any is a UserError."""
        for whole_lines, num_dropped_bytes in self._whole_lines():
            lines = self._read_at_once(whole_lines) if num_dropped_bytes == 0 else None
            lines = lines or self._read_one_by_one(whole_lines, num_dropped_bytes)
            self.num_lines += len(lines.texts)
            yield lines
        if self.num_lines == 0:
            raise UserError(f"{self.path} is empty; give a file with one sentence a line.")

    def notices(self) -> list[str]:
        """What the user should know about the file, one sentence each."""
        sentences = []
        if self.has_crlf:
            sentences.append(f"{self.path} has Windows line ends (CRLF); they were read as plain line ends.")
        if self.has_byte_order_mark:
            sentences.append(f"{self.path} starts with a byte order mark (BOM); it was left out.")
        return sentences

    def _whole_lines(self) -> Iterator[tuple[bytes, int]]:
        """Yields chunks of whole lines, and how much of the first line was let go because it is too long anyway."""
        longest = self._max_line_bytes + len(b"\r\n")
        carry, num_dropped_bytes = b"", 0
        for piece in self._pieces_without_mark():
            if end := piece.rfind(b"\n") + 1:
                yield carry + piece[:end], num_dropped_bytes
                carry, num_dropped_bytes = piece[end:], 0
            elif len(carry) > longest:
                num_dropped_bytes += len(carry)
                carry = piece
            else:
                carry += piece
        if carry:
            yield carry, num_dropped_bytes

    def _pieces_without_mark(self) -> Iterator[bytes]:
        """Takes a byte order mark off the start, waiting for more only while a mark may still be coming."""
        head = b""
        for piece in self._pieces:
            head += piece
            if head.startswith(_UTF16_MARKS):
                raise UserError(
                    f"{self.path} is UTF-16 text; convert it to UTF-8, for instance with iconv -f UTF-16 -t UTF-8."
                )
            if not any(len(head) < len(mark) and mark.startswith(head) for mark in (codecs.BOM_UTF8, *_UTF16_MARKS)):
                break
        self.has_byte_order_mark = head.startswith(codecs.BOM_UTF8)
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from self._pieces

    def _read_at_once(self, whole_lines: bytes) -> Lines | None:
        """The fast way, or None if a line may be bad."""
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
        """The exact way."""
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
        # One byte is found ten times as fast as two.
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
    """The lines of a text, of which the last may lack its end."""
    lines = text.split(end)
    if not lines[-1]:
        lines.pop()
    return lines


class TextFile:
    """Reads one file line by line, where a bad line is an error at once."""

    def __init__(self, path: Path, max_expansion: int = DEFAULT_MAX_EXPANSION) -> None:
        self.path = path
        self.num_lines = 0
        self._reader = LineReader(path, max_expansion)

    def __iter__(self) -> Iterator[str]:
        for lines in self._reader.chunks():
            for text in lines.texts:
                self.num_lines += 1
                if fault := lines.faults.get(self.num_lines):
                    raise UserError(f"{self.path}, line {self.num_lines} {fault.reason}; {fault.advice}.")
                yield text

    def notices(self) -> list[str]:
        """What the user should know about the file, one sentence each."""
        return self._reader.notices()
