"""Reads files that may be compressed (gzip, bzip2, xz, Zstandard) up to their end or the first damage."""

import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dragoman.run.decompressors import Codec, DamagedError, find_codec
from dragoman.run.errors import UserError, describe_os_error

CHUNK_BYTES = 2**16
ALWAYS_ALLOWED_BYTES = 64 * 2**20
MAX_EXPANSION = 200
"""A log becomes 5 to 50 times as large; what expands further was made to fill memory or time."""
_RAW_BYTES = 2**14
_DAMAGED = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, DamagedError)


def check_expansion(path: Path, num_bytes: int, num_packed_bytes: int) -> None:
    """Refuses content that is much larger than its packed bytes."""
    limit = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * num_packed_bytes)
    if num_bytes > limit:
        raise UserError(
            f"{path} expands to more than {limit // 2**20:,} MiB from {num_packed_bytes:,} bytes: unpack it yourself "
            "if you trust it."
        )


class PackedFile:
    """Iterates over the content of a file in chunks, unpacked if it is packed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_cut = False
        """Whether the end is missing: the file is cut off or damaged; known once everything was read."""

    def __iter__(self) -> Iterator[bytes]:
        with _open(self.path) as file:
            head = file.read(_RAW_BYTES)
            codec = find_codec(head)
            if codec is None:
                yield from _plain(file, head)
                return
            try:
                yield from self._unpack(file, head, codec)
            except _DAMAGED:
                self.is_cut = True

    def _unpack(self, file: IO[bytes], head: bytes, codec: Codec) -> Iterator[bytes]:
        """Yields the content of one member after another."""
        member, raw, num_raw, num_bytes = codec.open_member(), head, len(head), 0
        while raw:
            while raw or not (member.eof or member.needs_input):
                content = member.decompress(raw, CHUNK_BYTES)
                num_bytes += len(content)
                check_expansion(self.path, num_bytes, num_raw)
                yield content
                raw = b""
                if member.eof:
                    # Standard tools fill up archives with NUL bytes, and skip them.
                    raw = member.unused_data.lstrip(b"\0")
                    if raw:
                        member = codec.open_member()
            raw = file.read(_RAW_BYTES)
            num_raw += len(raw)
            if raw and member.eof and (raw := raw.lstrip(b"\0")):
                member = codec.open_member()
        self.is_cut = not member.eof


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {describe_os_error(error)}.") from None


def _plain(file: IO[bytes], head: bytes) -> Iterator[bytes]:
    while head:
        yield head
        head = file.read(2**20)
