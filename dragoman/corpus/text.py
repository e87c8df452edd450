"""Strict reading of plain parallel text: UTF-8, one sentence a line, lines split at "\\n" and nowhere else.

What is wrong is named with its file, line and byte; what is harmless (BOM, CRLF, blank lines) is remembered and told.
"""

import codecs
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path
from typing import IO, NamedTuple

from dragoman.run.errors import UsageError, UserError

MAX_LINE_BYTES = 65_536
# The longest raw line that can still be within the limit.
_READ_LIMIT_BYTES = len(codecs.BOM_UTF8) + MAX_LINE_BYTES + len(b"\r\n")

# SentencePiece uses these two for a space and for the unknown: a line that holds one would not come back as it was.
RESERVED_CHARACTERS = "▁▅"
_RESERVED = re.compile(f"[{RESERVED_CHARACTERS}]")
_BLANKS = re.compile(r"[ \t]+")


def normalise(line: str) -> str:
    """Strips a line's ends and makes one space of each run of ASCII spaces and tabs; nothing else is changed."""
    return _BLANKS.sub(" ", line.strip())


def open_input(path: Path) -> BufferedReader:
    """Opens a file the user named; if that fails, the UserError says why in one sentence."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give the text file itself.") from None
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None


def _num_bytes_to_line_end(file: IO[bytes]) -> int:
    """Reads the rest of an over-long line piece by piece, so that it never stands in memory as a whole."""
    num_bytes = 0
    while piece := file.readline(_READ_LIMIT_BYTES):
        num_bytes += len(piece.rstrip(b"\r\n"))
        if piece.endswith(b"\n"):
            break
    return num_bytes


class TextFile:
    """Reads one file line by line; once it is read to the end, it knows the file's size, hash and peculiarities."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = 0
        self.num_bytes = 0
        self.has_byte_order_mark = False
        self.has_crlf = False
        # Hashed in passing, because a pipe can be read only once.
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes read so far."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[str]:
        with open_input(self.path) as file:
            while raw := file.readline(_READ_LIMIT_BYTES):
                self._hash.update(raw)
                self.num_bytes += len(raw)
                content = self._without_marks(raw)
                if content is None:
                    break
                self.num_lines += 1
                self._check_length(raw, content, file)
                yield self._decode(content)
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

    def _without_marks(self, raw: bytes) -> bytes | None:
        """Drops the line end and the file's BOM, or returns None if a BOM is all there is."""
        if self.num_lines == 0 and raw.startswith(codecs.BOM_UTF8):
            self.has_byte_order_mark = True
            raw = raw.removeprefix(codecs.BOM_UTF8)
            if not raw:
                return None
        if raw.endswith(b"\r\n"):
            self.has_crlf = True
            return raw[:-2]
        return raw.removesuffix(b"\n")

    def _check_length(self, raw: bytes, content: bytes, file: IO[bytes]) -> None:
        if len(content) <= MAX_LINE_BYTES:
            return
        num_bytes = len(content) + (0 if raw.endswith(b"\n") else _num_bytes_to_line_end(file))
        raise UserError(
            f"{self.path}, line {self.num_lines} has {num_bytes:,} bytes, more than the {MAX_LINE_BYTES:,} a sentence "
            "may have; split it into sentences, one a line, or delete it."
        )

    def _decode(self, content: bytes) -> str:
        """Decodes one line strictly; byte offsets in messages count from 0 at the start of the line."""
        if (offset := content.find(b"\0")) >= 0:
            raise UserError(
                f"{self.path}, line {self.num_lines} has a NUL byte (0x00) at byte offset {offset}; "
                "the file is damaged or no plain text (UTF-16 text must be converted to UTF-8)."
            )
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise UserError(
                f"{self.path}, line {self.num_lines} is not UTF-8 at byte offset {problem.start} of the line "
                f"(0x{content[problem.start]:02x}); convert the file to UTF-8 or correct the line."
            ) from None


class Pair(NamedTuple):
    """A sentence and its translation, normalised."""

    source: str
    target: str


@dataclass
class Dropped:
    """How many pairs were left out for one reason, and where the first of them stands."""

    num_pairs: int = 0
    first_path: Path | None = None
    first_line: int | None = None

    def add(self, file: TextFile) -> None:
        """Counts a pair because of the line that was just read from `file`."""
        if self.num_pairs == 0:
            self.first_path, self.first_line = file.path, file.num_lines
        self.num_pairs += 1

    def notice(self, what: str) -> list[str]:
        """One sentence for the user, or none if nothing was dropped."""
        if self.num_pairs == 0:
            return []
        noun = "pair" if self.num_pairs == 1 else "pairs"
        first = f"the first at {self.first_path}, line {self.first_line}"
        return [f"Left out {self.num_pairs:,} {noun} {what}, {first}."]


class PairReader:
    """Reads pairs from source and target files that belong together in order, and counts what it leaves out."""

    def __init__(self, source_paths: Sequence[Path], target_paths: Sequence[Path]) -> None:
        if len(source_paths) != len(target_paths):
            raise UsageError(
                f"There are {len(source_paths)} source files and {len(target_paths)} target files; "
                "give one target file for each source file, in the same order."
            )
        self.sources = [TextFile(path) for path in source_paths]
        self.targets = [TextFile(path) for path in target_paths]
        self.blank = Dropped()
        self.reserved = Dropped()

    @property
    def num_lines(self) -> int:
        """The number of lines read from each side so far."""
        return sum(file.num_lines for file in self.sources)

    def __iter__(self) -> Iterator[Pair]:
        for source_file, target_file in zip(self.sources, self.targets, strict=True):
            for source_line, target_line in _read_side_by_side(source_file, target_file):
                pair = Pair(normalise(source_line), normalise(target_line))
                if not self._is_dropped(pair, source_file, target_file):
                    yield pair

    def notices(self) -> list[str]:
        """What the user should know about all that was read, one sentence each."""
        sentences = [sentence for file in (*self.sources, *self.targets) for sentence in file.notices()]
        sentences += self.blank.notice("with an empty side")
        return sentences + self.reserved.notice(
            "that hold ▁ (U+2581) or ▅ (U+2585), which the tokenizer keeps for itself"
        )

    def _is_dropped(self, pair: Pair, source_file: TextFile, target_file: TextFile) -> bool:
        for line, file in ((pair.source, source_file), (pair.target, target_file)):
            if not line:
                self.blank.add(file)
                return True
            if _RESERVED.search(line):
                self.reserved.add(file)
                return True
        return False


def _read_side_by_side(source: TextFile, target: TextFile) -> Iterator[tuple[str, str]]:
    """Yields lines that stand side by side; unequal numbers of lines are told with both counts."""
    for source_line, target_line in zip_longest(source, target):
        # The longer file is read to its end, so that its count is known.
        if source_line is not None and target_line is not None:
            yield source_line, target_line
    if source.num_lines != target.num_lines:
        raise UserError(
            f"{source.path} has {source.num_lines:,} lines but {target.path} has {target.num_lines:,}; "
            "line N of one must be the translation of line N of the other."
        )
