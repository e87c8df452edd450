"""TSV and JSON lines: which rows are pairs, which are bad and why, and which languages are meant."""

import json
from pathlib import Path

import pytest

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES, BadLines, Block
from dragoman.corpus.formats.reading import ParallelText, format_of
from dragoman.corpus.formats.tsv_and_jsonl import find_language
from dragoman.corpus.settings import Format, TextSettings
from dragoman.run.errors import UsageError, UserError

GOOD = '{"source": "a", "target": "A"}'


def open_text(
    path: Path,
    content: bytes | str,
    languages: tuple[str, str] | None = None,
    bad_lines: BadLines | None = None,
    columns: tuple[int, int] = (1, 2),
) -> ParallelText:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return ParallelText(TextSettings(file=path, columns=columns), languages, bad_lines or BadLines(0), 200)


def read_reason(path: Path, line: bytes | str, columns: tuple[int, int] = (1, 2)) -> str:
    """Why a line between two good ones is bad, after seeing that it alone is skipped."""
    bad_lines = BadLines(1)
    good = b"a\tA\tx" if path.suffix == ".tsv" else GOOD.encode()
    content = good + b"\n" + (line if isinstance(line, bytes) else line.encode()) + b"\n" + good + b"\n"
    text = open_text(path, content, bad_lines=bad_lines, columns=columns)
    assert [(block.first_number, len(block.sources)) for block in text.blocks()] == [(1, 1), (3, 1)]
    assert text.num_read == 3
    [record] = bad_lines.records
    assert (record.path, record.number) == (path, 2)
    return record.reason


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.tsv", "tsv"),
        ("a.en-de.tab", "tsv"),
        ("a.tsv.gz", "tsv"),
        ("a.JSONL.ZST", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.json.bz2", "jsonl"),
        ("a.tmx.xz", "tmx"),
        ("a.parquet", "parquet"),
        ("a.pq.gz", "parquet"),
    ],
)
def test_format_by_file_name(name: str, expected: Format) -> None:
    assert format_of(Path(name)) == expected


@pytest.mark.parametrize("name", ["a", "a.gz", "a.txt", "a.tsv.gz.gz", "tsv", ".tsv/a"])
def test_unknown_file_name_ending_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match="set format to"):
        ParallelText(TextSettings(file=Path(name)), None, BadLines(0), 200)


def test_one_file_cannot_be_plain() -> None:
    with pytest.raises(UsageError, match="set source and target"):
        ParallelText(TextSettings(file=Path("a"), format="plain"), None, BadLines(0), 200)


def test_given_format_comes_before_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("a\tA\n")
    text = ParallelText(TextSettings(file=tmp_path / "a.json", format="tsv"), None, BadLines(0), 200)
    assert list(text.blocks()) == [Block(1, ["a"], ["A"])]
    assert text.what == "line"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [((1, 2), (["a b"], ['"c"'])), ((3, 1), (["d"], ["a b"])), ((4, 4), ([""], [""]))],
)
def test_columns_of_tsv_are_chosen(
    tmp_path: Path, columns: tuple[int, int], expected: tuple[list[str], list[str]]
) -> None:
    text = open_text(tmp_path / "a.tsv", 'a b\t"c"\td\t\r\n', columns=columns)
    assert list(text.blocks()) == [Block(1, *expected)]
    assert "CRLF" in text.notices()[0]
    assert text.num_bytes_read == text.num_bytes == (tmp_path / "a.tsv").stat().st_size


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("only", "has 1 column, but columns 1 and 3 are needed"),
        ("a\tb", "has 2 columns, but columns 1 and 3 are needed"),
        ("", "has 1 column, but columns 1 and 3 are needed"),
        (b"a\tb\t\xe4", "is not UTF-8 at byte offset 4 of the line (0xe4)"),
        (b"a\t\0\tb", "has a NUL byte (0x00) at byte offset 2, which is typical of damaged files and UTF-16 text"),
        ("a\tb\t" + "x" * 65_537, "has 65,537 bytes, more than the 65,536 a sentence may have"),
        ("ä" * 32_769 + "\tb\tc", "has 65,538 bytes, more than the 65,536 a sentence may have"),
        ("a\t" * 10**6, "has 2,000,000 bytes, more than the 1,048,576 a line may have"),
    ],
)
def test_bad_tsv_row_is_skipped_with_its_reason(tmp_path: Path, line: bytes | str, reason: str) -> None:
    assert read_reason(tmp_path / "a.tsv", line, columns=(1, 3)) == reason


def test_long_columns_that_are_not_used_do_no_harm(tmp_path: Path) -> None:
    text = open_text(tmp_path / "a.tsv", "a\t" + "x" * 100_000 + "\tA\n", columns=(1, 3))
    assert list(text.blocks()) == [Block(1, ["a"], ["A"])]


def test_bad_row_is_an_error_if_not_allowed(tmp_path: Path) -> None:
    text = open_text(tmp_path / "a.tsv", "a\tA\nonly\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 2 has 1 column, but .* with --skip-bad-lines N\."):
        list(text.blocks())


@pytest.mark.parametrize(
    "record",
    [
        {"source": "a", "target": "A", "score": 1.5},
        {"tgt": "A", "src": "a"},
        {"id": 3, "translation": {"de": "A", "en": "a", "fr": "?"}},
        {"translation": {"DE": "A", "EN": "a"}},
        {"translation": {"de_DE": "A", "en-US": "a"}},
    ],
)
def test_shapes_of_json_records(tmp_path: Path, record: object) -> None:
    text = open_text(tmp_path / "a.jsonl", json.dumps(record), languages=("en", "de"))
    assert list(text.blocks()) == [Block(1, ["a"], ["A"])]
    assert text.notices() == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"source" "a"}', "is not valid JSON: Expecting ':' delimiter at character 11"),
        ("9" * 5000, "is not valid JSON: Exceeds the limit"),
        ('["a", "A"]', "is JSON, but not an object in braces"),
        ("{}", 'has neither "source" and "target", nor "src" and "tgt", nor "translation" with two texts'),
        ('{"source": "a", "tgt": "A"}', "has neither"),
        ('{"translation": "a"}', "has neither"),
        ('{"source": "a", "target": null}', 'has no text in "target"'),
        ('{"source": 1, "target": "A"}', 'has no text in "source"'),
        (r'{"source": "a", "target": "b\ud800"}', r"has half a character (\ud800) at character offset 1"),
        (r'{"source": "a\u0000", "target": "A"}', "has a NUL character (U+0000) at character offset 1"),
        ('{"source": "a", "target": "' + "x" * 65_537 + '"}', "has 65,537 bytes, more than the 65,536 a sentence may"),
        ("[" * 100_000, "is JSON that is nested too deeply"),
        (b'{"source": "\xe4"}', "is not UTF-8 at byte offset 12 of the line (0xe4)"),
        ("x" * 2**21, "has 2,097,152 bytes, more than the 1,048,576 a line may have"),
    ],
)
def test_bad_json_line_is_skipped_with_its_reason(tmp_path: Path, line: bytes | str, reason: str) -> None:
    assert read_reason(tmp_path / "a.jsonl", line).startswith(reason)


def test_blank_json_lines_are_skipped_but_numbered(tmp_path: Path) -> None:
    text = open_text(tmp_path / "a.jsonl", f"\n{GOOD}\n{GOOD}\n \t\n\n{GOOD}\n")
    assert list(text.blocks()) == [Block(2, ["a", "a"], ["A", "A"]), Block(6, ["a"], ["A"])]
    assert text.num_read == 3


def test_line_breaks_inside_json_texts_become_spaces(tmp_path: Path) -> None:
    text = open_text(tmp_path / "a.jsonl", r'{"source": "a\nb\u000ac", "target": "A\r\nB\rC"}')
    assert list(text.blocks()) == [Block(1, ["a b c"], ["A B\rC"])]


def test_escapes_leave_the_longest_sentence_whole(tmp_path: Path) -> None:
    sentence = "ä" * (MAX_LINE_BYTES // 2)
    text = open_text(tmp_path / "a.jsonl", json.dumps({"source": sentence, "target": sentence}))
    assert list(text.blocks()) == [Block(1, [sentence], [sentence])]


def test_two_languages_of_the_first_record_are_used_and_reported(tmp_path: Path) -> None:
    lines = ['{"translation": {"de": "A", "en": "a"}}', '{"translation": {"en": "b", "de": "B"}}']
    text = open_text(tmp_path / "a.jsonl", "\n".join(lines))
    assert list(text.blocks()) == [Block(1, ["A", "B"], ["a", "b"])]
    assert text.notices() == [
        f"{tmp_path / 'a.jsonl'}: languages are not set, so de is used as the source and en as the target."
    ]


@pytest.mark.parametrize("translation", [{"de": "A"}, {"de": "A", "en": "a", "fr": "?"}])
def test_other_numbers_of_languages_must_be_named(tmp_path: Path, translation: object) -> None:
    text = open_text(tmp_path / "a.jsonl", json.dumps({"translation": translation}), bad_lines=BadLines(9))
    with pytest.raises(UserError, match="set languages"):
        list(text.blocks())


def test_missing_language_is_a_bad_line(tmp_path: Path) -> None:
    bad_lines = BadLines(1)
    text = open_text(tmp_path / "a.jsonl", '{"translation": {"de": "A", "fr": "?"}}', ("en", "de"), bad_lines)
    assert list(text.blocks()) == []
    assert bad_lines.records[0].reason == 'has no "en" in its "translation"'


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_empty_and_utf16_files_are_errors_even_where_bad_lines_are_allowed(tmp_path: Path, name: str) -> None:
    for content, message in ((b"", "is empty"), (b"\xff\xfea\0", "is UTF-16 text")):
        with pytest.raises(UserError, match=message):
            list(open_text(tmp_path / name, content, bad_lines=BadLines(9)).blocks())


@pytest.mark.parametrize(
    ("language", "names", "found"),
    [
        ("en", ["EN", "en"], "en"),
        ("en", ["en-US", "EN"], "EN"),
        ("en", ["eng", "en_XX"], "en_XX"),
        ("pt-BR", ["pt-PT", "pt-br"], "pt-br"),
        ("pt-BR", ["pt"], "pt"),
        ("en", ["eng", "de"], None),
    ],
)
def test_languages_are_found(language: str, names: list[str], found: str | None) -> None:
    assert find_language(language, names) == found
