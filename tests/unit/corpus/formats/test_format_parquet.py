"""Parquet: which columns are read, which rows are bad, and files that are not Parquet."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.corpus.formats import compression
from dragoman.corpus.formats.blocks import BadLines, Block
from dragoman.corpus.formats.reading import ParallelText
from dragoman.corpus.settings import TextSettings
from dragoman.run.errors import UserError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

EN_DE = ("en", "de")


def open_parquet(
    path: Path,
    columns: dict[str, Any],
    languages: tuple[str, str] | None = EN_DE,
    bad_lines: BadLines | None = None,
    max_expansion: int = 200,
) -> ParallelText:
    pq.write_table(pa.table(columns), path)
    return ParallelText(TextSettings(file=path), languages, bad_lines or BadLines(0), max_expansion)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": [7], "source": ["a"], "target": ["A"]},
        {"tgt": ["A"], "src": ["a"]},
        {"translation": [{"de": "A", "en": "a", "fr": None}]},
        {"de-DE": ["A"], "EN": ["a"], "score": [0.5]},
        {"source": pa.array(["a"]).dictionary_encode(), "target": pa.array(["A"], pa.large_string())},
        {"source": pa.array(["a"], pa.string_view()), "target": ["A"]},
    ],
)
def test_columns_are_found(tmp_path: Path, columns: dict[str, Any]) -> None:
    text = open_parquet(tmp_path / "a.parquet", columns)
    assert list(text.blocks()) == [Block(1, ["a"], ["A"])]
    assert text.notices() == []
    assert text.what == "row"


@pytest.mark.parametrize("columns", [{"de": ["A"], "en": ["a"]}, {"translation": [{"de": "A", "en": "a"}]}])
def test_two_columns_are_used_in_their_order_and_reported(tmp_path: Path, columns: dict[str, Any]) -> None:
    text = open_parquet(tmp_path / "a.parquet", columns, languages=None)
    assert list(text.blocks()) == [Block(1, ["A"], ["a"])]
    assert "de is used as the source and en as the target" in text.notices()[0]


@pytest.mark.parametrize(
    ("columns", "languages", "message"),
    [
        ({"en": ["a"], "de": ["A"], "fr": ["?"]}, None, "set languages"),
        ({"a": ["a"], "b": ["A"]}, EN_DE, "has the columns a, b; name the two"),
        ({"source": [1], "target": ["A"]}, None, "column 'source' holds int64, not text"),
        ({"source": pa.array([], pa.string()), "target": pa.array([], pa.string())}, None, "has no rows"),
    ],
)
def test_wrong_tables_are_errors(
    tmp_path: Path, columns: dict[str, Any], languages: tuple[str, str] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        list(open_parquet(tmp_path / "a.parquet", columns, languages, BadLines(9)).blocks())


def test_bad_rows_are_skipped_with_their_reason(tmp_path: Path) -> None:
    invalid = pa.array(["d", None, "f", "g", b"h\xff", "i"], pa.binary()).view(pa.string())
    columns = {"source": ["d", "e", "f\0", "g", "h", "i\nj\r\nk"], "target": invalid}
    columns["source"][3] = "x" * 65_537
    bad_lines = BadLines(4)
    text = open_parquet(tmp_path / "a.parquet", columns, bad_lines=bad_lines)
    assert list(text.blocks()) == [Block(1, ["d"], ["d"]), Block(6, ["i j k"], ["i"])]
    assert [(record.number, record.reason.split(",")[0]) for record in bad_lines.records] == [
        (2, "has no text in column 'target'"),
        (3, "has a NUL byte (0x00) at byte offset 1"),
        (4, "has 65"),
        (5, "is not UTF-8 at byte offset 1 of the column 'target' (0xff)"),
    ]
    assert bad_lines.records[0].message.startswith(f"{tmp_path / 'a.parquet'}, row 2: ")
    assert text.num_read == 6


def test_null_translation_is_a_bad_row(tmp_path: Path) -> None:
    bad_lines = BadLines(1)
    columns = {"translation": [{"en": "a", "de": "A"}, None, {"en": "c", "de": "C"}]}
    blocks = list(open_parquet(tmp_path / "a.parquet", columns, bad_lines=bad_lines).blocks())
    assert blocks == [Block(1, ["a"], ["A"]), Block(3, ["c"], ["C"])]
    assert bad_lines.records[0].reason == "has no text in column 'translation.en'"


def test_rows_of_many_batches_are_read_in_order(tmp_path: Path) -> None:
    sources = [f"a{number}" for number in range(5_000)]
    text = open_parquet(tmp_path / "a.parquet", {"source": sources, "target": sources})
    assert list(text.blocks()) == [Block(1, sources, sources)]
    assert 0.99 * text.num_bytes < text.num_bytes_read <= text.num_bytes


@pytest.mark.parametrize("content", [b"", b"no table", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    text = ParallelText(TextSettings(file=tmp_path / "a.parquet"), EN_DE, BadLines(9), 200)
    with pytest.raises(UserError, match=r"a\.parquet is not a Parquet file, or it is damaged"):
        list(text.blocks())


def test_damaged_pages_are_refused(tmp_path: Path) -> None:
    sentences = [f"sentence {number * 7919 % 1000}" for number in range(3_000)]
    text = open_parquet(tmp_path / "a.parquet", {"source": sentences, "target": sentences})
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:400] = bytes(396)
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        list(text.blocks())


def test_table_that_expands_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED_BYTES", 10)
    sentences = ["x" * 60_000 + str(number) for number in range(50)]
    text = open_parquet(tmp_path / "a.parquet", {"source": sentences, "target": sentences}, max_expansion=1)
    with pytest.raises(UserError, match="raise max_expansion"):
        list(text.blocks())


def test_missing_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = open_parquet(tmp_path / "a.parquet", {"source": ["a"], "target": ["A"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"Parquet needs pyarrow: pip install 'dragoman\[parquet\]'"):
        list(text.blocks())


@pytest.mark.parametrize("num_bytes", [2 * 2**20, 60_000])
def test_a_repeated_value_cannot_fill_the_memory(tmp_path: Path, num_bytes: int) -> None:
    # The file holds the value once, and for each of its rows a few bits.
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * num_bytes]))
    columns = pa.table({"source": repeated, "target": repeated})
    pq.write_table(columns, tmp_path / "a.parquet", dictionary_pagesize_limit=2**30, store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 2**20
    text = ParallelText(TextSettings(file=tmp_path / "a.parquet"), None, BadLines(100_000), 200)
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    with pytest.raises(UserError, match="holds more than 64 MiB once decompressed"):
        list(text.blocks())
    if (peak := pool.max_memory()) is not None:
        assert peak - before < 400 * 2**20
