"""Compressed files: read whole, refused if damaged, and bounded in what they may grow to."""

import bz2
import gzip
import lzma
import os
import tracemalloc
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.formats import compression
from dragoman.corpus.formats.compression import open_seekable, read_content
from dragoman.run.errors import UserError

Compress = Callable[[bytes], bytes]
COMPRESS: dict[str, Compress] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bz2": bz2.compress,
}
KINDS = pytest.mark.parametrize("kind", COMPRESS)


def read(path: Path, max_expansion: int = 200) -> bytes:
    return b"".join(read_content(path, max_expansion))


def write(folder: Path, content: bytes) -> Path:
    # The name must not matter.
    path = folder / "text"
    path.write_bytes(content)
    return path


@given(st.binary(max_size=200), st.binary(max_size=50), st.sampled_from(list(COMPRESS)), st.integers(1, 40))
def test_all_members_are_read_whatever_the_sizes_of_reads(
    tmp_path_factory: pytest.TempPathFactory, first: bytes, second: bytes, kind: str, raw_bytes: int
) -> None:
    compress = COMPRESS[kind]
    path = write(tmp_path_factory.mktemp("text"), compress(first) + compress(b"") + compress(second))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_RAW_BYTES", raw_bytes)
        assert read(path) == first + second


@KINDS
def test_content_larger_than_a_chunk_is_read(tmp_path: Path, kind: str) -> None:
    content = b"".join(b"%d\n" % number for number in range(200_000))
    pieces = list(read_content(write(tmp_path, COMPRESS[kind](content)), 200))
    assert b"".join(pieces) == content
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= 2 * compression.CHUNK_BYTES


@KINDS
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_cut_off_archive_is_refused(tmp_path: Path, kind: str, share: float) -> None:
    archive = COMPRESS[kind](os.urandom(50_000))
    path = write(tmp_path, archive[: int(len(archive) * share)])
    with pytest.raises(UserError, match=r"text is damaged: it ends too early at about byte [\d,]+ of its content"):
        read(path)


@KINDS
def test_corrupt_archive_is_refused(tmp_path: Path, kind: str) -> None:
    archive = bytearray(COMPRESS[kind](b"".join(b"%d\n" % number for number in range(9_999))))
    archive[len(archive) // 2] ^= 0xFF
    with pytest.raises(UserError, match="is damaged: "):
        read(write(tmp_path, bytes(archive)))


@KINDS
def test_anything_but_a_member_after_a_member_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match=r"is damaged: .* at about byte 2 "):
        read(write(tmp_path, COMPRESS[kind](b"a\n") + b"left over from something else"))


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_padding_after_members_is_skipped(tmp_path: Path, kind: str) -> None:
    archive = COMPRESS[kind](b"a\n") + bytes(8) + COMPRESS[kind](b"b\n") + bytes(4096)
    assert read(write(tmp_path, archive)) == b"a\nb\n"


def test_skippable_frames_of_zstd_are_skipped(tmp_path: Path) -> None:
    frame = b"P*M\x18" + (5).to_bytes(4, "little") + b"hello"
    assert read(write(tmp_path, frame + COMPRESS["zst"](b"a\n") + frame)) == b"a\n"


@pytest.mark.parametrize("content", [b"BZh is no archive\n", b"BZh9", b"P*M\n", b"", b"(", "ä".encode()])
def test_text_that_starts_like_an_archive_is_text(tmp_path: Path, content: bytes) -> None:
    assert read(write(tmp_path, content)) == content


@KINDS
def test_bomb_is_refused_at_the_bound(tmp_path: Path, kind: str) -> None:
    # Many members make a large one quickly.
    member = COMPRESS[kind]((b"0" * 1023 + b"\n") * 4096)
    path = write(tmp_path, member * 50)
    tracemalloc.start()
    sizes: list[int] = []
    with pytest.raises(UserError) as failure:
        sizes.extend(map(len, read_content(path, 1)))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "holds more than 64 MiB once decompressed" in str(failure.value)
    assert "max_expansion = 1" in str(failure.value)
    assert sum(sizes) <= compression.ALWAYS_ALLOWED_BYTES
    assert peak_bytes < 32 * 2**20


@pytest.mark.parametrize("compress", [partial(gzip.compress, compresslevel=1), COMPRESS["zst"]])
def test_bomb_in_one_member_takes_little_memory(tmp_path: Path, compress: Compress) -> None:
    path = write(tmp_path, compress(b"a\n" + bytes(200 * 2**20)))
    tracemalloc.start()
    with pytest.raises(UserError, match="holds more than 64 MiB"):
        deque(read_content(path, 1), maxlen=0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 40 * 2**20


def test_large_bomb_ends_as_soon_as_a_small_one(tmp_path: Path) -> None:
    # 5 MB that hold 5 GB: the limit follows what was read so far, not the size of the file.
    member = gzip.compress((b"0" * 1023 + b"\n") * 4096)
    path = write(tmp_path, member * (5_000_000 // len(member)))
    sizes: list[int] = []
    with pytest.raises(UserError, match="holds more than 64 MiB once decompressed"):
        sizes.extend(map(len, read_content(path, 200)))
    assert sum(sizes) <= compression.ALWAYS_ALLOWED_BYTES


def test_limit_grows_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED_BYTES", 10)
    archive = gzip.compress(bytes(5000))
    path = write(tmp_path, archive)
    enough = -(-5000 // len(archive))
    assert read(path, enough) == bytes(5000)
    with pytest.raises(UserError, match="raise max_expansion"):
        read(path, enough - 1)


def test_xz_dictionary_is_bounded(tmp_path: Path) -> None:
    archive = bytearray(lzma.compress(b"content\n"))
    # The header of the first block: its size, flags, filter, the size of the dictionary as one byte, and a checksum.
    header = archive[12 : 12 + 4 * (archive[12] + 1)]
    header[4] = 37  # 1.5 GiB
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    archive[12 : 12 + len(header)] = header
    with pytest.raises(UserError, match="needs too much memory to decompress"):
        read(write(tmp_path, bytes(archive)))


def test_zstd_window_is_bounded(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = write(tmp_path, compressor.compress(b"a\n") + compressor.flush())
    with pytest.raises(UserError, match="needs too much memory to decompress"):
        read(path)


@KINDS
def test_compressed_content_can_be_opened_for_seeking(tmp_path: Path, kind: str) -> None:
    with open_seekable(write(tmp_path, COMPRESS[kind](b"content")), 200) as file:
        file.seek(3)
        assert file.read() == b"tent"


def test_plain_content_is_opened_in_place(tmp_path: Path) -> None:
    with open_seekable(write(tmp_path, b"content"), 200) as file:
        assert file.name == str(tmp_path / "text")
        assert file.read() == b"content"
