"""Strict reading: what is refused, what is remembered, and where lines end."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.text import MAX_LINE_BYTES, Pair, PairReader, TextFile, normalise
from dragoman.run.errors import UsageError, UserError

LINES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=20)


def read_lines(folder: Path, content: bytes) -> list[str]:
    path = folder / "my.en"
    path.write_bytes(content)
    return list(TextFile(path))


def read_failure(folder: Path, content: bytes) -> str:
    with pytest.raises(UserError) as failure:
        read_lines(folder, content)
    return str(failure.value)


def pair_reader(folder: Path, source: str, target: str) -> PairReader:
    (folder / "my.en").write_bytes(source.encode())
    (folder / "my.de").write_bytes(target.encode())
    return PairReader([folder / "my.en"], [folder / "my.de"])


@given(LINES)
def test_normalising_twice_changes_nothing_more(line: str) -> None:
    assert normalise(normalise(line)) == normalise(line)


@given(LINES)
def test_normalising_changes_nothing_but_blanks(line: str) -> None:
    assert normalise(line).split() == line.split()
    assert "  " not in normalise(line)
    assert "\t" not in normalise(line)


def test_normalising_keeps_unusual_characters_inside_a_line() -> None:
    assert normalise(" \ta \t b\u00a0\u00a0c\u2028d\u200be \r") == "a b\u00a0\u00a0c\u2028d\u200be"


@given(st.lists(LINES, min_size=1, max_size=5), st.booleans())
def test_lines_end_at_newlines_and_nowhere_else(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends_with_newline: bool
) -> None:
    content = "\n".join(lines) + ("\n" if ends_with_newline or not lines[-1] else "")
    lines_without_marks = [line.removesuffix("\r") for line in lines[:-1]]
    lines_without_marks.append(lines[-1].removesuffix("\r") if content.endswith("\n") else lines[-1])
    lines_without_marks[0] = lines_without_marks[0].removeprefix("\ufeff")
    if content == "\ufeff":
        return
    assert read_lines(tmp_path_factory.mktemp("text"), content.encode()) == lines_without_marks


def test_characters_that_splitlines_would_split_at_stay_inside(tmp_path: Path) -> None:
    line = "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg\rh"
    assert read_lines(tmp_path, f"{line}\nnext".encode()) == [line, "next"]


def test_file_knows_its_size_hash_and_number_of_lines(tmp_path: Path) -> None:
    content = "\ufeffeins\r\nzwei\r\n\r\ndrei".encode()
    (tmp_path / "my.de").write_bytes(content)
    file = TextFile(tmp_path / "my.de")
    assert list(file) == ["eins", "zwei", "", "drei"]
    assert (file.num_lines, file.num_bytes, file.sha256) == (4, len(content), hashlib.sha256(content).hexdigest())
    assert file.notices() == [
        f"{file.path} has Windows line ends (CRLF); they were read as plain line ends.",
        f"{file.path} starts with a byte order mark (BOM); it was left out.",
    ]


def test_plain_file_gives_no_notice(tmp_path: Path) -> None:
    (tmp_path / "my.de").write_bytes(b"eins\nzwei\n")
    file = TextFile(tmp_path / "my.de")
    assert list(file) == ["eins", "zwei"]
    assert file.notices() == []


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


def test_nul_is_named_by_line_and_byte(tmp_path: Path) -> None:
    message = read_failure(tmp_path, b"ok\nab\0c\n")
    assert "my.en, line 2 has a NUL byte (0x00) at byte offset 2" in message


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_longest_line_is_read(tmp_path: Path, start: bytes, end: bytes) -> None:
    assert read_lines(tmp_path, start + b"x" * MAX_LINE_BYTES + end) == ["x" * MAX_LINE_BYTES]


@pytest.mark.parametrize("num_bytes", [MAX_LINE_BYTES + extra for extra in (1, 2, 3, 4, 5, 6, 7, 8, 200_000)])
@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
def test_too_long_line_is_named_with_its_size(tmp_path: Path, num_bytes: int, end: bytes) -> None:
    message = read_failure(tmp_path, b"ok\n" + b"x" * num_bytes + end)
    assert "my.en, line 2 " in message
    assert f"{num_bytes:,} bytes" in message


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "is empty" in read_failure(tmp_path, content)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.en does not exist"):
        list(TextFile(tmp_path / "none.en"))
    with pytest.raises(UserError, match="is a folder"):
        list(TextFile(tmp_path))


def test_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may run as root, who may read everything; so the refusal is played.
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"my\.en cannot be read: Permission denied"):
        list(TextFile(tmp_path / "my.en"))


def test_pairs_come_from_all_files_in_order(tmp_path: Path) -> None:
    for name, content in (("a.en", "one\n"), ("a.de", "eins\n"), ("b.en", "two"), ("b.de", " zwei\t \n")):
        (tmp_path / name).write_text(content)
    reader = PairReader([tmp_path / "a.en", tmp_path / "b.en"], [tmp_path / "a.de", tmp_path / "b.de"])
    assert list(reader) == [Pair("one", "eins"), Pair("two", "zwei")]
    assert reader.num_lines == 2


def test_different_numbers_of_files_are_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 source files and 1 target files"):
        PairReader([tmp_path / "a", tmp_path / "b"], [tmp_path / "c"])


@pytest.mark.parametrize(("num_source", "num_target"), [(3, 5), (5, 3), (1, 2)])
def test_unequal_line_counts_are_told_with_both(tmp_path: Path, num_source: int, num_target: int) -> None:
    reader = pair_reader(tmp_path, "x\n" * num_source, "y\n" * num_target)
    with pytest.raises(UserError) as failure:
        list(reader)
    assert f"my.en has {num_source} lines" in str(failure.value)
    assert f"my.de has {num_target};" in str(failure.value)


def test_pairs_with_a_blank_side_are_counted_with_the_first_place(tmp_path: Path) -> None:
    reader = pair_reader(tmp_path, "a\n \t\nb\n\nc\n", "A\nB\n\u00a0\n\nC\n")
    assert list(reader) == [("a", "A"), ("c", "C")]
    assert reader.blank.num_pairs == 3
    assert reader.notices() == [f"Left out 3 pairs with an empty side, the first at {tmp_path / 'my.en'}, line 2."]


def test_pairs_with_characters_of_the_tokenizer_are_counted(tmp_path: Path) -> None:
    reader = pair_reader(tmp_path, "a\nb\nc▅\n", "A\nB▁b\nC\n")
    assert list(reader) == [("a", "A")]
    assert reader.reserved.num_pairs == 2
    [notice] = reader.notices()
    assert "U+2581" in notice
    assert f"{tmp_path / 'my.de'}, line 2" in notice
