"""Decoders of gzip, xz, Zstandard and bzip2: which one a file needs, and its members read in bounded pieces."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

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
