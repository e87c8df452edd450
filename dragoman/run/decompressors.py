"""Decompressors for gzip, bzip2, xz and Zstandard, with one interface and bounded memory."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from typing import Any, Protocol

COMPRESSION_ENDINGS = (".gz", ".xz", ".bz2", ".zst")
# Four times what xz -9 needs, and what zstd --ultra -22 needs.
_MAX_XZ_MEMORY_BYTES = 2**28
MAX_ZSTD_WINDOW_BYTES = 2**27
# A zstd block of 4 bytes can hold 128 KiB, and one call decompresses all it is given: this bounds its result to 8 MiB.
_ZSTD_FEED_BYTES = 256


class DamagedError(Exception):
    """The content cannot be read; the text says why ("it ends too early")."""


class Decompressor(Protocol):
    """Decompresses one member; the interface of `bz2.BZ2Decompressor` and `lzma.LZMADecompressor`."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether everything that was given is decompressed."""

    @property
    def unused_data(self) -> bytes:
        """What follows the end of the member."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Returns the next part of the content."""


class _GzipMember:
    """Gives zlib's decompressor the interface of the other two."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        content = self._member.decompress(self._member.unconsumed_tail + data, max_length)
        # A full result may leave content inside the decompressor even if all input is consumed.
        self.needs_input = not self._member.unconsumed_tail and len(content) < max_length
        return content


class _ZstdMember:
    """Gives zstandard's decompressor the interface of the other two."""

    def __init__(self) -> None:
        import zstandard

        self._member = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompressobj()
        self._error = zstandard.ZstdError
        self._rest = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._rest

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data + self._rest

    def decompress(self, data: bytes, _max_length: int, /) -> bytes:
        self._rest = memoryview(data) if data else self._rest
        content = b""
        while self._rest and not content and not self._member.eof:
            feed, self._rest = self._rest[:_ZSTD_FEED_BYTES], self._rest[_ZSTD_FEED_BYTES:]
            try:
                content = self._member.decompress(feed)
            except self._error as problem:
                raise DamagedError(str(problem)) from None
        return content


@dataclass(frozen=True)
class Codec:
    """One kind of compression."""

    magics: tuple[bytes, ...]
    open_member: Callable[[], Decompressor]
    may_be_padded: bool = False
    """Standard tools fill up files of this kind with NUL bytes, and skip them."""


# The whole header of bzip2, with its level and the mark of a block or of the end: a text may start with "BZh".
_BZIP2_MAGICS = tuple(b"BZh%d" % level + mark for level in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90"))
# pzstd writes skippable frames first.
_ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"*M\x18" for first in range(0x50, 0x60)))
CODECS = (
    Codec((b"\x1f\x8b",), _GzipMember, may_be_padded=True),
    Codec(
        (b"\xfd7zXZ\0",),
        lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY_BYTES),
        may_be_padded=True,
    ),
    Codec(_ZSTD_MAGICS, _ZstdMember),
    Codec(_BZIP2_MAGICS, bz2.BZ2Decompressor),
)


def find_codec(head: bytes) -> Codec | None:
    """Finds the kind of compression by the first bytes of a file; None for a file that is not compressed."""
    return next((codec for codec in CODECS if head.startswith(codec.magics)), None)


class ChunkStream(RawIOBase):
    """Makes a file object of chunks, for libraries that want to read one."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = filter(None, chunks), memoryview(b"")

    def readable(self) -> bool:
        """Returns True, as file objects must."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer with what is left of the current chunk, or with the next one."""
        self._rest = self._rest or memoryview(next(self._chunks, b""))
        num_bytes = min(len(buffer), len(self._rest))
        buffer[:num_bytes], self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return num_bytes
