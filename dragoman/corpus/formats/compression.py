"""Reads files that may be compressed (gzip, bzip2, xz, Zstandard), and limits how much they may expand.

The file objects of the standard library do not fit: those of `bz2` and `lzma` ignore what follows a member that they
cannot read, `lzma` does not limit its memory, and the one of `zstandard` does not notice that a file was cut off.
"""

import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO

from dragoman.run.decompressors import CODECS, MAX_ZSTD_WINDOW_BYTES, Codec, DamagedError, Decompressor, find_codec
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import require_free_space
from dragoman.run.input_files import open_input

CHUNK_BYTES = 2**20
ALWAYS_ALLOWED_BYTES = 64 * 2**20
DEFAULT_MAX_EXPANSION = 200

_RAW_BYTES = 2**16


class TooLargeError(Exception):
    """The content is larger than allowed; the text says how large it may be ("holds more than 64 MiB ...")."""


NoteBytes = Callable[[int], None]
"""Takes the number of bytes just read from a file itself, before decompression; for progress bars."""


def note_nothing(_num_bytes: int) -> None:
    """Ignores the number of bytes, where no progress is shown."""


def check_expansion(num_bytes: int, num_compressed_bytes: int, max_expansion: int) -> None:
    """Refuses content that is larger than the compressed bytes it came from allow."""
    limit_bytes = max(ALWAYS_ALLOWED_BYTES, max_expansion * num_compressed_bytes)
    if num_bytes > limit_bytes:
        raise TooLargeError(
            f"holds more than {limit_bytes // 2**20:,} MiB once decompressed, the limit for "
            f"{num_compressed_bytes:,} compressed bytes"
        )


class ContentReader:
    """Iterates over the content of an open file in chunks, decompressed if it is compressed, and counts it.

    Raises DamagedError or TooLargeError.
    """

    def __init__(self, path: Path, file: BufferedReader, max_expansion: int, note_bytes: NoteBytes) -> None:
        self.num_bytes = 0
        """Bytes of content read so far."""
        self._path, self._file = path, file
        self._max_expansion, self._note_bytes = max_expansion, note_bytes
        self._num_raw_bytes = 0
        self._head = self._read_head()
        self._codec = find_codec(self._head)

    @property
    def is_compressed(self) -> bool:
        """Whether the first bytes are those of a compressed file."""
        return self._codec is not None

    def __iter__(self) -> Iterator[bytes]:
        if self._codec is None:
            return self._read_plain()
        return _join_to_chunks(self._decompress(self._codec))

    def _read_plain(self) -> Iterator[bytes]:
        for content in chain([self._head] if self._head else [], self._read_raw(CHUNK_BYTES)):
            self.num_bytes += len(content)
            yield content

    def _decompress(self, codec: Codec) -> Iterator[bytes]:
        try:
            for content in _decompress_members(codec, chain([self._head], self._read_raw(_RAW_BYTES))):
                self.num_bytes += len(content)
                # Not the size of the whole file: a large bomb shall end as soon as a small one.
                check_expansion(self.num_bytes, self._num_raw_bytes, self._max_expansion)
                yield content
        except (OSError, zlib.error, lzma.LZMAError) as problem:
            raise DamagedError(str(problem)) from None

    def _read_head(self) -> bytes:
        """Reads only while the bytes may be the start of a compressed file: a terminal gives only what was typed."""
        head = b""
        single_bytes = self._read_raw(1)
        while any(len(head) < len(magic) and magic.startswith(head) for codec in CODECS for magic in codec.magics):
            byte = next(single_bytes, b"")
            if not byte:
                break
            head += byte
        return head

    def _read_raw(self, size: int) -> Iterator[bytes]:
        """Yields what single reads give, so that lines typed at a terminal do not wait for a whole chunk."""
        try:
            while raw := self._file.read1(size):
                self._num_raw_bytes += len(raw)
                self._note_bytes(len(raw))
                yield raw
        except OSError as problem:
            raise UserError(f"{self._path} cannot be read: {describe_os_error(problem)}.") from None


def _join_to_chunks(contents: Iterable[bytes]) -> Iterator[bytes]:
    """Joins small results to chunks: the readers take less time for few large ones."""
    held: list[bytes] = []
    num_bytes = 0
    for content in contents:
        held.append(content)
        num_bytes += len(content)
        if num_bytes >= CHUNK_BYTES:
            yield b"".join(held)
            held, num_bytes = [], 0
    if num_bytes:
        yield b"".join(held)


def read_content(path: Path, max_expansion: int, note_bytes: NoteBytes = note_nothing) -> Iterator[bytes]:
    """Yields the content of a file the user named, chunk by chunk; a UserError says what is wrong with it."""
    with open_input(path) as file:
        yield from read_open_file(path, file, max_expansion, note_bytes)


def read_open_file(
    path: Path, file: BufferedReader, max_expansion: int, note_bytes: NoteBytes = note_nothing
) -> Iterator[bytes]:
    """Like `read_content`, where the file is open already; messages call it `path`."""
    reader = ContentReader(path, file, max_expansion, note_bytes)
    with expansion_as_user_error(path, max_expansion):
        try:
            yield from reader
        except DamagedError as problem:
            raise UserError(_explain_damage(path, str(problem), reader.num_bytes)) from None


@contextmanager
def expansion_as_user_error(path: Path, max_expansion: int) -> Iterator[None]:
    """Turns a TooLargeError into a UserError that names the setting."""
    try:
        yield
    except TooLargeError as problem:
        raise UserError(
            f"{path} {problem} (max_expansion = {max_expansion}); if that is right, raise max_expansion."
        ) from None


def _explain_damage(path: Path, problem: str, num_bytes: int) -> str:
    # The libraries report a memory limit only in words.
    if "memory" in problem.lower():
        return (
            f"{path} needs too much memory to decompress; compress it again with a window of at most "
            f"{MAX_ZSTD_WINDOW_BYTES // 2**20} MiB, for instance without --long."
        )
    return f"{path} is damaged: {problem} at about byte {num_bytes:,} of its content; copy or download it again."


@contextmanager
def open_seekable(path: Path, max_expansion: int) -> Iterator[IO[bytes]]:
    """Opens the content for random access; compressed files and pipes are copied to a temporary file first."""
    # A pipe must not be opened twice: its writer would lose its reader in between.
    if path.is_file():
        with open_input(path) as file:
            if not ContentReader(path, file, max_expansion, note_nothing).is_compressed:
                file.seek(0)
                yield file
                return
    with tempfile.TemporaryFile() as copy:
        try:
            for content in read_content(path, max_expansion):
                require_free_space(Path(tempfile.gettempdir()))
                copy.write(content)
            copy.seek(0)
        except OSError as problem:
            raise UserError(
                f"{path} cannot be unpacked into {tempfile.gettempdir()}: {describe_os_error(problem)}; "
                "unpack it yourself, or set TMPDIR to a folder with enough space."
            ) from None
        yield copy


def _decompress_members(codec: Codec, raw: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the content of one member after another; only another member may follow a member."""
    member: Decompressor | None = None
    for data in raw:
        rest = data
        while rest:
            if member is None:
                rest = rest.lstrip(b"\0") if codec.may_be_padded else rest
                if not rest:
                    break
                member = codec.open_member()
            yield member.decompress(rest, CHUNK_BYTES)
            while not (member.eof or member.needs_input):
                yield member.decompress(b"", CHUNK_BYTES)
            rest = b""
            if member.eof:
                rest, member = member.unused_data, None
    if member is not None:
        raise DamagedError("it ends too early")
