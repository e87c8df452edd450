"""Languages of two files are detected where they are certain, and never guessed."""

import gzip
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaceless_corpora import write_spaceless_corpus

from dragoman.builtin import write_builtin_corpus
from dragoman.corpus.cleaning.detection import _detect_side, describe_languages, detect_languages
from dragoman.corpus.settings import PrepareSettings

Files = tuple[Path, Path]


def detect(*pairs: Files) -> str | None:
    sources, targets = zip(*pairs, strict=True)
    return detect_languages(PrepareSettings.of_files(sources, targets))


def write(folder: Path, sources: list[str], targets: list[str]) -> Files:
    files = folder / "text.source", folder / "text.target"
    for file, lines in zip(files, (sources, targets), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def german(tmp_path_factory) -> Files:
    """English and German text."""
    train = write_builtin_corpus(tmp_path_factory.mktemp("german"), 500, num_dev=10, num_test=10).train
    return train.source, train.target


@pytest.fixture(scope="module")
def japanese(tmp_path_factory) -> Files:
    """English and Japanese text."""
    return write_spaceless_corpus(tmp_path_factory.mktemp("japanese"), "ja", 300)


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def test_german_japanese_and_chinese_are_found(german, japanese, tmp_path):
    assert detect(german) == "en-de"
    assert detect(german[::-1]) == "de-en"
    assert detect(japanese) == "en-ja"
    assert detect(write_spaceless_corpus(tmp_path, "zh", 300)) == "en-zh"


def test_the_languages_are_described_by_name():
    assert describe_languages("en-ja") == "English → Japanese (en-ja)"
    assert describe_languages("nb-he") == "Norwegian → Hebrew (nb-he)"


def test_compressed_text_is_read(japanese, tmp_path):
    packed = tmp_path / "en.gz", tmp_path / "ja.gz"
    for path, file in zip(packed, japanese, strict=True):
        path.write_bytes(gzip.compress(file.read_bytes()))
    assert detect(packed) == "en-ja"


def test_subwords_are_joined_first(german, tmp_path):
    split = [["▁" + " ".join(line.replace(" ", "▁")) for line in lines_of(file)] for file in german]
    assert detect(write(tmp_path, *split)) == "en-de"


def test_toy_text_is_in_no_language(tmp_path):
    randomness = random.Random(1)
    digits = [" ".join(randomness.choices("0123456789", k=12)) for _ in range(500)]
    assert detect(write(tmp_path, digits, [line[::-1] for line in digits])) is None
    letters = ["".join(randomness.choices("abcdefghijklmnopqrstuvwxyz", k=12)) for _ in range(500)]
    assert detect(write(tmp_path, letters, [line[::-1] for line in letters])) is None


def test_the_same_language_on_both_sides_is_not_certain(german, tmp_path):
    english = lines_of(german[0])
    assert detect(write(tmp_path, english, english[1:] + english[:1])) is None


def test_two_languages_in_one_file_are_not_certain(german, tmp_path):
    english, other = map(lines_of, german)
    half = len(english) // 2
    assert detect(write(tmp_path, english, other[:half] + english[half:])) is None
    every_fourth = [line if number % 4 else english[number] for number, line in enumerate(other)]
    assert detect(write(tmp_path, english, every_fourth)) is None


def test_all_files_must_agree(german, japanese):
    assert detect(german, japanese) is None


@pytest.mark.parametrize("num_lines", [0, 1, 10])
def test_a_few_lines_are_not_enough(german, tmp_path, num_lines):
    assert detect(write(tmp_path, *(lines_of(file)[:num_lines] for file in german))) is None


def test_text_that_cannot_be_read_is_left_to_prepare(german, tmp_path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"\xff\xfe\n" * 500)
    assert detect((german[0], bad)) is None
    assert detect((german[0], tmp_path / "missing")) is None
    assert detect((german[0], tmp_path)) is None


@pytest.mark.timeout(20)
def test_a_pipe_is_not_opened(german, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it would wait for a writer for ever
    assert detect((german[0], pipe)) is None


@given(st.lists(st.text(max_size=300), min_size=1, max_size=30))
def test_any_text_is_in_a_language_or_in_none(lines):
    assert _detect_side(lines * 5) is None or len(_detect_side(lines * 5)) in (2, 3)
