"""Strict reading of single files and of two plain files: what is refused, skipped, remembered; where lines end."""

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.formats import compression
from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, BadLines, Block
from dragoman.corpus.formats.lines import LineReader, TextFile
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.settings import TextSettings
from dragoman.run.errors import UserError

LINES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=20)


def read_lines(folder: Path, content: bytes) -> list[str]:
    path = folder / "my.en"
    path.write_bytes(content)
    return list(TextFile(path))


def read_failure(folder: Path, content: bytes) -> str:
    with pytest.raises(UserError) as failure:
        read_lines(folder, content)
    return str(failure.value)


def open_plain(folder: Path, source: bytes, target: bytes, bad_lines: BadLines | None = None) -> ParallelText:
    (folder / "my.en").write_bytes(source)
    (folder / "my.de").write_bytes(target)
    settings = TextSettings(source=folder / "my.en", target=folder / "my.de")
    return ParallelText(settings, None, bad_lines or BadLines(0), 200)


@given(st.lists(LINES, min_size=1, max_size=5), st.booleans(), st.integers(1, 9))
def test_lines_end_only_at_newlines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends_with_newline: bool, chunk_bytes: int
) -> None:
    content = "\n".join(lines) + ("\n" if ends_with_newline or not lines[-1] else "")
    lines_without_marks = [line.removesuffix("\r") for line in lines[:-1]]
    lines_without_marks.append(lines[-1].removesuffix("\r") if content.endswith("\n") else lines[-1])
    lines_without_marks[0] = lines_without_marks[0].removeprefix("\ufeff")
    if content == "\ufeff":
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "CHUNK_BYTES", chunk_bytes)
        assert read_lines(tmp_path_factory.mktemp("text"), content.encode()) == lines_without_marks


def test_characters_that_splitlines_would_split_at_stay_inside(tmp_path: Path) -> None:
    line = "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg\rh"
    assert read_lines(tmp_path, f"{line}\nnext".encode()) == [line, "next"]


def test_byte_order_mark_and_windows_line_ends_are_reported(tmp_path: Path) -> None:
    (tmp_path / "my.de").write_bytes("\ufeffeins\r\nzwei\r\n\r\ndrei".encode())
    file = TextFile(tmp_path / "my.de")
    assert list(file) == ["eins", "zwei", "", "drei"]
    assert file.num_lines == 4
    assert file.notices() == [
        f"{file.path} has Windows line ends (CRLF); they were read as plain line ends.",
        f"{file.path} starts with a byte order mark (BOM); it was left out.",
    ]


def test_plain_file_gives_no_notice(tmp_path: Path) -> None:
    (tmp_path / "my.de").write_bytes(b"eins\nzw\rei\n")
    file = TextFile(tmp_path / "my.de")
    assert list(file) == ["eins", "zw\rei"]
    assert file.notices() == []


def test_single_file_may_be_compressed(tmp_path: Path) -> None:
    assert read_lines(tmp_path, gzip.compress("\ufeffä\r\nb".encode())) == ["ä", "b"]


@pytest.mark.parametrize(
    ("content", "line", "offset", "byte"),
    [
        (b"ok\nab\xffcd\n", 2, 2, "0xff"),
        (b"\xefx\n", 1, 0, "0xef"),
        ("ä\n".encode() + b"\xc3", 2, 0, "0xc3"),
        (b"ok\n\xed\xa0\x80\n", 2, 0, "0xed"),  # a surrogate half
    ],
)
def test_invalid_utf8_is_named_by_line_and_byte(
    tmp_path: Path, content: bytes, line: int, offset: int, byte: str
) -> None:
    message = read_failure(tmp_path, content)
    for part in ("my.en", f"line {line} ", f"byte offset {offset} ", byte):
        assert part in message


def test_mixed_encodings_differ_from_another_encoding(tmp_path: Path) -> None:
    contrast = "although lines before it are"
    assert contrast in read_failure(tmp_path, "ä\n".encode() + "ä\n".encode("latin-1"))
    assert contrast not in read_failure(tmp_path, b"a\n" + "ä\n".encode("latin-1"))


def test_nul_is_named_by_line_and_byte(tmp_path: Path) -> None:
    assert "my.en, line 2 has a NUL byte (0x00) at byte offset 2" in read_failure(tmp_path, b"ok\nab\0c\n")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_named(tmp_path: Path, encoding: str) -> None:
    assert "my.en is UTF-16 text" in read_failure(tmp_path, "\ufeffeins\n".encode(encoding))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("text", ["x" * MAX_LINE_BYTES, "ä" * (MAX_LINE_BYTES // 2)])
def test_longest_line_is_read(tmp_path: Path, text: str, start: bytes, end: bytes) -> None:
    assert read_lines(tmp_path, start + text.encode() + end) == [text]


@pytest.mark.parametrize("num_bytes", [MAX_LINE_BYTES + extra for extra in (1, 2, 3, 200_000, 3_000_000)])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\nnext\n"])
@pytest.mark.parametrize("chunk_bytes", [4_099, 2**20])
def test_too_long_line_is_named_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, end: bytes, chunk_bytes: int
) -> None:
    monkeypatch.setattr(compression, "CHUNK_BYTES", chunk_bytes)
    message = read_failure(tmp_path, b"ok\n" + b"x" * num_bytes + end)
    assert "my.en, line 2 " in message
    assert f"{num_bytes:,} bytes" in message


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "is empty" in read_failure(tmp_path, content)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.en does not exist"):
        list(TextFile(tmp_path / "none.en"))
    with pytest.raises(UserError, match="is a folder"):
        list(TextFile(tmp_path))


@pytest.mark.timeout(20)
def test_line_from_a_pipe_comes_before_the_pipe_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    may_close = threading.Event()

    def write() -> None:
        with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
            pipe.write(b"a\n")
            may_close.wait(10)
            pipe.write(b"\xc3\xa4\n")

    writer = threading.Thread(target=write)
    writer.start()
    lines = iter(TextFile(tmp_path / "pipe"))
    assert next(lines) == "a"
    may_close.set()
    assert list(lines) == ["ä"]
    writer.join()


def test_line_of_64_mb_takes_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "long.en").open("wb") as file:
        file.write(b"ok\n")
        for _ in range(64):
            file.write(b"x" * 10**6)
        file.write(b"\nend\n")
    program = (
        "import sys, tracemalloc; from pathlib import Path; from dragoman.corpus.formats.lines import LineReader\n"
        "tracemalloc.start(); chunks = list(LineReader(Path(sys.argv[1]), 200).chunks())\n"
        "print(sum(len(c.texts) for c in chunks), [c.faults[2].reason for c in chunks if c.faults])\n"
        "print(tracemalloc.get_traced_memory()[1])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "long.en")]
    found, peak_bytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert found == "3 ['has 64,000,000 bytes, more than the 65,536 a sentence may have']"
    assert int(peak_bytes) < 16 * 2**20


def test_bad_lines_are_found_in_any_chunk(tmp_path: Path) -> None:
    (tmp_path / "my.en").write_bytes(b"a\n" * 10**6 + b"\xff\n" + b"b\n")
    chunks = list(LineReader(tmp_path / "my.en", 200).chunks())
    assert len(chunks) > 1
    assert [list(lines.faults) for lines in chunks if lines.faults] == [[10**6 + 1]]


@pytest.mark.parametrize(("num_source", "num_target"), [(3, 5), (5, 3), (1, 2), (2_000_000, 3)])
def test_unequal_line_counts_are_refused_with_both_numbers(tmp_path: Path, num_source: int, num_target: int) -> None:
    text = open_plain(tmp_path, b"x\n" * num_source, b"y\n" * num_target, BadLines(100))
    with pytest.raises(UserError) as failure:
        list(text.blocks())
    assert f"my.en has {num_source:,} lines" in str(failure.value)
    assert f"my.de has {num_target:,};" in str(failure.value)


@pytest.mark.parametrize(("source", "target", "name"), [(b"", b"x\n", "my.en"), (b"x\n", b"", "my.de")])
def test_empty_side_is_refused(tmp_path: Path, source: bytes, target: bytes, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} is empty"):
        list(open_plain(tmp_path, source, target).blocks())


def test_bad_line_on_either_side_skips_the_pair_and_ends_the_block(tmp_path: Path) -> None:
    bad_lines = BadLines(3)
    source = b"a\n\xff\nc\nd\n\xff\nf\n"
    target = b"A\nB\nC\nD\0\n\xfe\nF\n"
    text = open_plain(tmp_path, source, target, bad_lines)
    assert list(text.blocks()) == [Block(1, ["a"], ["A"]), Block(3, ["c"], ["C"]), Block(6, ["f"], ["F"])]
    assert [(record.path.name, record.number) for record in bad_lines.records] == [
        ("my.en", 2),
        ("my.de", 4),
        ("my.en", 5),
    ]
    assert bad_lines.records[0].message == (
        f"{tmp_path / 'my.en'}, line 2: is not UTF-8 at byte offset 0 of the line (0xff)."
    )
    assert text.num_read == 6


def test_bad_line_is_an_error_if_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(UserError) as failure:
        list(open_plain(tmp_path, b"a\nb\n", b"A\n\xff\n").blocks())
    assert "my.de, line 2 is not UTF-8 at byte offset 0 of the line (0xff); convert" in str(failure.value)
    assert "--skip-bad-lines" in str(failure.value)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(1, 7))
def test_numbers_stay_correct_wherever_lines_are_bad(
    tmp_path_factory: pytest.TempPathFactory, are_bad: list[tuple[bool, bool]], chunk_bytes: int
) -> None:
    source = b"".join(b"\xff\n" if is_bad else b"%d\n" % number for number, (is_bad, _) in enumerate(are_bad, 1))
    target = b"".join(b"a\0b\n" if is_bad else b"%d!\n" % number for number, (_, is_bad) in enumerate(are_bad, 1))
    bad_lines = BadLines(len(are_bad))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "CHUNK_BYTES", chunk_bytes)
        text = open_plain(tmp_path_factory.mktemp("text"), source, target, bad_lines)
        blocks = list(text.blocks())
    for block in blocks:
        numbers = range(block.first_number, block.first_number + len(block.sources))
        assert block.sources == [str(number) for number in numbers]
        assert block.targets == [f"{number}!" for number in numbers]
    expected_bad = [number for number, sides in enumerate(are_bad, 1) if any(sides)]
    assert [record.number for record in bad_lines.records] == expected_bad
    assert text.num_read == len(are_bad)


def test_subwords_are_joined_and_reported_for_each_side(tmp_path: Path) -> None:
    text = open_plain(tmp_path, "▁The ▁to ur\n\n".encode(), b"Die Rund@@ reise\n\n")
    assert list(text.blocks()) == [Block(1, ["The tour", ""], ["Die Rundreise", ""])]
    assert text.notices() == [
        f"{tmp_path / 'my.en'} was split into subwords by SentencePiece (▁); they were joined again.",
        f"{tmp_path / 'my.de'} was split into subwords by subword-nmt (@@); they were joined again.",
    ]


def test_subwords_are_detected_from_more_than_one_short_block(tmp_path: Path) -> None:
    text = open_plain(tmp_path, "▁a b\n".encode() + b"\xff\nc d\n", b"A\nB\nC\n", BadLines(1))
    assert [block.sources for block in text.blocks()] == [["▁a b"], ["c d"]]
    assert text.notices() == []
