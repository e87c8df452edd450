"""Compressed files and archives, opened as plain bytes within bounds."""

import bz2
import lzma
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any

from dragoman.run.errors import UserError

PIECE_BYTES = 2**20
MAX_ZSTD_WINDOW_BYTES = 2**27
"""What zstd --ultra -22 needs."""

# What xz -9 needs, four times over.
_MAX_XZ_MEMORY_BYTES = 2**28
# A zstd block of 4 bytes can hold 128 KiB, and the library knows no bound for what one call returns: 8 MiB with this.
_ZSTD_FEED_BYTES = 256

# One member's decoder takes bytes and yields content; at the member's end it returns the bytes after it, before None.
Feed = Callable[[bytes], Generator[bytes, None, bytes | None]]


@dataclass(frozen=True)
class Codec:
    """One kind of compression."""

    magics: tuple[bytes, ...]
    open_member: Callable[[], Feed]
    # Standard tools fill up files of these kinds with NUL bytes, and skip them again.
    may_be_padded: bool = False


class DamagedError(Exception):
    """An archive that cannot be decoded further, in the words of the library."""


def read_members(codec: Codec, raw: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the content of one member after another; what stands after a member must be another one."""
    try:
        yield from _decode_members(codec, raw)
    except (OSError, zlib.error, lzma.LZMAError) as problem:
        raise DamagedError(str(problem)) from None


def _decode_members(codec: Codec, raw: Iterator[bytes]) -> Iterator[bytes]:
    feed: Feed | None = None
    for data in raw:
        rest: bytes | None = data
        while rest:
            if feed is None:
                rest = rest.lstrip(b"\0") if codec.may_be_padded else rest
                if not rest:
                    break
                feed = codec.open_member()
            rest = yield from feed(rest)
            if rest is not None:
                feed = None
    if feed is not None:
        raise DamagedError("it ends in the middle")


def _open_gzip_member() -> Feed:
    member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def feed(data: bytes) -> Generator[bytes, None, bytes | None]:
        content = member.decompress(data, PIECE_BYTES)
        yield content
        # A full piece may leave content inside the decoder even if all input is gone.
        while not member.eof and (member.unconsumed_tail or len(content) == PIECE_BYTES):
            content = member.decompress(member.unconsumed_tail, PIECE_BYTES)
            yield content
        return member.unused_data if member.eof else None

    return feed


def _feed_bounded(member: Any) -> Feed:
    """For the decoders of bzip2 and xz, which have the same methods but no common type."""

    def feed(data: bytes) -> Generator[bytes, None, bytes | None]:
        yield member.decompress(data, PIECE_BYTES)
        while not member.eof and not member.needs_input:
            yield member.decompress(b"", PIECE_BYTES)
        return member.unused_data if member.eof else None

    return feed


def _open_zstd_member() -> Feed:
    import zstandard

    member = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompressobj()

    def feed(data: bytes) -> Generator[bytes, None, bytes | None]:
        for start in range(0, len(data), _ZSTD_FEED_BYTES):
            stop = start + _ZSTD_FEED_BYTES
            try:
                content = member.decompress(data[start:stop])
            except zstandard.ZstdError as problem:
                raise DamagedError(str(problem)) from None
            yield content
            if member.eof:
                return member.unused_data + data[stop:]
        return None

    return feed


# All of a bzip2 head is asked for, with the level and the mark of a block or of the end: a text may start with "BZh".
_BZIP2_MAGICS = tuple(b"BZh%d" % level + mark for level in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90"))
# pzstd puts skippable frames first.
_ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"*M\x18" for first in range(0x50, 0x60)))
CODECS = (
    Codec((b"\x1f\x8b",), _open_gzip_member, may_be_padded=True),
    Codec(
        (b"\xfd7zXZ\0",),
        lambda: _feed_bounded(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY_BYTES)),
        may_be_padded=True,
    ),
    Codec(_ZSTD_MAGICS, _open_zstd_member),
    Codec(_BZIP2_MAGICS, lambda: _feed_bounded(bz2.BZ2Decompressor())),
)


CHUNK_BYTES = 2**20
ALWAYS_ALLOWED_BYTES = 64 * 2**20
DEFAULT_MAX_EXPANSION = 200
COMPRESSION_ENDINGS = (".gz", ".xz", ".zst", ".bz2")

_RAW_BYTES = 2**16


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


NoteBytes = Callable[[int], None]
"""Told how many bytes of a file itself (compressed ones, if it is) were read; for showing progress."""


def note_nothing(_num_bytes: int) -> None:
    """For callers that show no progress."""


def read_content(path: Path, max_expansion: int, note_bytes: NoteBytes = note_nothing) -> Iterator[bytes]:
    """Yields the content in pieces, as soon as it comes."""
    with open_input(path) as file:
        head = _read_head(path, file)
        codec = _codec(head)
        raw = _noted(chain([head], _read_pieces(path, file, CHUNK_BYTES if codec is None else _RAW_BYTES)), note_bytes)
        yield from raw if codec is None else _gather(_decompress(path, file, codec, raw, max_expansion))


@contextmanager
def open_seekable(path: Path, max_expansion: int) -> Iterator[IO[bytes]]:
    """Opens the content for reading at any place; what is compressed or a pipe goes through an unnamed file."""
    # A pipe must not be opened twice: its writer would find nobody at the other end in between.
    if path.is_file():
        with open_input(path) as file:
            if _codec(_read_head(path, file)) is None:
                file.seek(0)
                yield file
                return
    with tempfile.TemporaryFile() as copy:
        _copy(path, max_expansion, copy)
        yield copy


def _copy(path: Path, max_expansion: int, copy: IO[bytes]) -> None:
    try:
        copy.writelines(read_content(path, max_expansion))
        copy.seek(0)
    except OSError as problem:
        raise UserError(
            f"{path} cannot be unpacked into {tempfile.gettempdir()}: {problem.strerror}; "
            "unpack it yourself, or set TMPDIR to a folder with room."
        ) from None


def _read_pieces(path: Path, file: BufferedReader, size: int) -> Iterator[bytes]:
    """Yields what one read gives, so that lines typed at a terminal need not wait for a whole chunk."""
    try:
        while piece := file.read1(size):
            yield piece
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None


def _read_head(path: Path, file: BufferedReader) -> bytes:
    """Reads only as far as the bytes may still be the start of an archive: a terminal gives no more than was typed."""
    head = b""
    bytes_one_by_one = _read_pieces(path, file, 1)
    while any(len(head) < len(magic) and magic.startswith(head) for codec in CODECS for magic in codec.magics):
        piece = next(bytes_one_by_one, b"")
        if not piece:
            break
        head += piece
    return head


def _codec(head: bytes) -> Codec | None:
    return next((codec for codec in CODECS if head.startswith(codec.magics)), None)


def _noted(pieces: Iterable[bytes], note_bytes: NoteBytes) -> Iterator[bytes]:
    for piece in pieces:
        note_bytes(len(piece))
        if piece:
            yield piece


def _gather(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Joins small pieces to chunks: what follows costs less for few large ones."""
    held: list[bytes] = []
    num_bytes = 0
    for piece in pieces:
        held.append(piece)
        num_bytes += len(piece)
        if num_bytes >= CHUNK_BYTES:
            yield b"".join(held)
            held, num_bytes = [], 0
    if num_bytes:
        yield b"".join(held)


def _decompress(
    path: Path, file: BufferedReader, codec: Codec, raw: Iterator[bytes], max_expansion: int
) -> Iterator[bytes]:
    """Yields the content of all members, and stops with a UserError at the bound or where the archive is damaged."""
    num_bytes = 0
    budget = _ExpansionBudget(path, _regular_size(file), max_expansion)
    try:
        for content in read_members(codec, map(budget.note_raw, raw)):
            num_bytes += len(content)
            budget.check(num_bytes)
            yield content
    except DamagedError as problem:
        raise UserError(_explain(path, str(problem), num_bytes)) from None


def _explain(path: Path, problem: str, num_bytes: int) -> str:
    # Both libraries that bound their memory say so in words only.
    if "memory" in problem.lower():
        return (
            f"{path} needs too much memory to decompress; compress it again with a window of at most "
            f"{MAX_ZSTD_WINDOW_BYTES // 2**20} MiB, for instance without --long."
        )
    return f"{path} is damaged: {problem} at about byte {num_bytes:,} of its content; copy or download it again."


def _regular_size(file: BufferedReader) -> int | None:
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class _ExpansionBudget:
    """How much content a file may have; for a pipe, whose size nobody knows, by what has come out of it so far."""

    def __init__(self, path: Path, num_file_bytes: int | None, max_expansion: int) -> None:
        self._path, self._max_expansion = path, max_expansion
        self._num_file_bytes = num_file_bytes
        self._num_raw_bytes = 0

    def note_raw(self, piece: bytes) -> bytes:
        self._num_raw_bytes += len(piece)
        return piece

    def check(self, num_bytes: int) -> None:
        num_file_bytes = self._num_raw_bytes if self._num_file_bytes is None else self._num_file_bytes
        check_expansion(self._path, num_bytes, num_file_bytes, self._max_expansion)


def check_expansion(path: Path, num_bytes: int, num_file_bytes: int, max_expansion: int) -> None:
    """Refuses content that is larger than the file's size allows."""
    limit_bytes = max(ALWAYS_ALLOWED_BYTES, max_expansion * num_file_bytes)
    if num_bytes > limit_bytes:
        raise UserError(
            f"{path} holds more than {limit_bytes // 2**20:,} MiB once decompressed, the limit for a file of "
            f"{num_file_bytes:,} bytes (max_expansion = {max_expansion}); if that is right, raise max_expansion."
        )
