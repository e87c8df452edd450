"""Test sets are read as sacreBLEU reads them; what does not belong together is refused with file and line."""

import gzip
from pathlib import Path

import pytest

from dragoman.evaluation.evaluation_set import EvaluationSet, read_files
from dragoman.run.errors import UserError


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, source: str | None, *references: str | bytes, ending: str = "") -> EvaluationSet:
    files = [write(folder / f"reference{number}{ending}", text) for number, text in enumerate(references)]
    return read_files(write(folder / "source", source) if source is not None else None, files, NOTICES.append)


NOTICES: list[str] = []


@pytest.fixture(autouse=True)
def _no_notices() -> None:
    NOTICES.clear()


def test_sources_are_normalised_and_references_are_kept(tmp_path):
    found = read(tmp_path, "a \u00a0 cafe\u0301 \nb\n", "cafe\u0301  x \nb\n")
    assert found.sources == ["a café", "b"]
    assert found.references_by_line == [["cafe\u0301  x"], ["b"]]
    assert len(NOTICES) == 1
    assert "NFC" in NOTICES[0]


def test_only_translations_need_no_source(tmp_path):
    found = read(tmp_path, None, "a\nb\n")
    assert (found.sources, found.num_sentences, found.name) == (None, 2, str(tmp_path / "reference0"))


def test_several_references_may_lack_some_lines(tmp_path):
    found = read(tmp_path, "a\nb\n\n", "A\n\n\n", "\nB\n\n")
    assert found.references_by_line == [["A"], ["B"], ["", ""]]
    assert NOTICES == ["2 of the references are empty: those sentences are scored with fewer references."]


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress])
def test_a_table_has_one_set_of_references_per_column(tmp_path, pack):
    ending = ".tsv" if pack is not gzip.compress else ".tsv.gz"
    found = read(tmp_path, "a\nb\n", pack(b"A\tB \nC\t\n"), ending=ending)
    assert found.references_by_line == [["A", "B"], ["C"]]
    assert len(found.references) == 2


@pytest.mark.parametrize(
    ("source", "references", "message"),
    [
        ("a\nb\n", ["A\n"], r"source has 2 lines but .*reference0 has 1: line N"),
        ("a\n", ["A\n", "A\nB\n"], r"source has 1 lines but .*reference1 has 2"),
        (None, ["A\n", "A\nB\n"], r"reference0 has 1 lines but .*reference1 has 2"),
        ("a\nb\n", ["A\n  \n"], r"reference0, line 2 is empty: this line has no reference"),
        ("a\nb\n", ["A\n\n", "A\n\n"], r"line 2 is empty"),
        (None, ["A\n\n"], r"line 2 is empty"),
        ("a\n", [""], r"reference0 is empty"),
        ("", ["A\n"], r"source is empty"),
        ("a\n", [b"\xff\xfe\x00"], r"UTF-16"),
        ("a\nb\n", ["ä\n".encode() + b"\xe4\n"], r"reference0, line 2 .*UTF-8"),
    ],
)
def test_bad_files_are_refused(tmp_path, source, references, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, source, *references)


def test_a_table_with_uneven_rows_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"line 2 has 1 columns but line 1 has 2"):
        read(tmp_path, "a\nb\n", "A\tB\nC\n", ending=".tsv")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises((UserError, OSError), match="nowhere"):
        read_files(tmp_path / "nowhere", [tmp_path / "nowhere"], NOTICES.append)
