"""Recipes, the index, and extracting plain text from archives, without a network."""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing import pack_tgz, pack_zip

from dragoman.corpus.formats import compression
from dragoman.corpus.formats.compression import DamagedError
from dragoman.corpus.recipes import extraction, list_corpora
from dragoman.corpus.recipes.build_index import find_format
from dragoman.corpus.recipes.extraction import extract
from dragoman.corpus.recipes.fetching import cached_path, download
from dragoman.corpus.recipes.index import Dataset, Index, find_recipe, load_recipes, parse_languages
from dragoman.run.errors import UsageError, UserError

CODES = {"en": "eng", "de": "deu", "cs": "ces", "fr": "fra", "ja": "jpn", "es": "spa", "vi": "vie"}


def make_dataset(dataset_id: str = "Any-a-1-deu-eng", members=("a.de", "a.en"), kind="txt", columns=(0, 1)) -> Dataset:
    return Dataset(dataset_id, ("http://localhost/a",), ("a",), tuple(members), kind, columns)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    ids = ["OPUS-a-1-deu-eng", "OPUS-b-1-eng-deu_AT", "OPUS-deu-1-eng-fra", "OPUS-c-1-deu-fra", "OPUS-d-1-eng_GB-deu"]
    entries = [vars(make_dataset(dataset_id)) for dataset_id in ids]
    entries.append(vars(make_dataset("HF-e-1-deu-eng", kind="hfds")))
    path = tmp_path / "index.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"languages": CODES}, *entries]), encoding="utf-8")
    return Index(path)


@pytest.mark.parametrize("recipe", load_recipes().values(), ids=lambda recipe: recipe.name)
def test_a_recipe_is_for_the_languages_of_its_datasets(recipe):
    wanted = {CODES[code] for code in parse_languages(recipe.languages)}
    ids = [dataset_id for _, dataset_id in recipe.dataset_ids]
    assert recipe.train
    assert recipe.about.endswith(".")
    assert all(set(dataset_id.split("-")[-2:]) == wanted for dataset_id in ids)
    # Files and corpora are named by the id without its languages.
    assert len({dataset_id.rsplit("-", 2)[0] for dataset_id in ids}) == len(ids)


def test_the_wmt16_benchmark_is_complete():
    parts = [part for part, _ in load_recipes()["wmt16-en-de"].dataset_ids]
    assert parts == ["train", "train", "train", "dev", "test"]


def test_all_recipes_are_listed_without_an_index():
    listing = list_corpora()
    assert [recipe.name for recipe in listing.recipes] == list(load_recipes())
    assert listing.datasets is None


@pytest.mark.parametrize("languages", [("en", "de"), ("deu", "eng"), ("DE", "eng_US")])
def test_languages_in_two_or_three_letters_in_either_order(index: Index, languages: tuple[str, str]):
    listing = list_corpora(languages, index=index)
    assert {recipe.languages for recipe in listing.recipes} == {"en-de"}
    assert listing.datasets == ("OPUS-a-1-deu-eng", "OPUS-b-1-eng-deu_AT", "OPUS-d-1-eng_GB-deu")


def test_languages_without_datasets(index: Index):
    listing = list_corpora(("tlh", "en"), index=index)
    assert listing.recipes == ()
    assert listing.datasets == ()


def test_a_dataset_of_mtdata_is_a_recipe_of_its_own(index: Index):
    recipe = find_recipe("OPUS-b-1-eng-deu_AT", index)
    assert (recipe.languages, recipe.dataset_ids) == ("en-de", [("train", "OPUS-b-1-eng-deu_AT")])


@pytest.mark.parametrize(("name", "hint"), [("wmt16-de-en", "'wmt16-en-de'"), ("OPUS-a-1", "dragoman data list")])
def test_an_unknown_name_is_refused_with_a_similar_one(index: Index, name: str, hint: str):
    with pytest.raises(UsageError, match=re.escape(hint)):
        find_recipe(name, index)


@pytest.mark.parametrize("text", ["en", "en-de-fr", "-de", "", "en de", "../x-de"])
def test_wrong_language_pairs_are_refused(text: str):
    with pytest.raises(UsageError, match="source-target"):
        parse_languages(text)


def test_unreadable_datasets_are_known_before_download():
    assert make_dataset().is_readable
    assert not make_dataset(members=("zul.dev", "zul.dev")).is_readable
    assert not make_dataset(kind="wmt21xml").is_readable
    assert make_dataset(kind="tsv", members=()).is_readable
    assert not Dataset("A-b-1-x-y", ("http://a", "http://b"), ("a", "b"), (), "tsv", (1,)).is_readable


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("tsv.gz", "tsv"), ("txt", "txt"), ("raw", "txt"), ("tmx.gz", "tmx"), ("opus_xces", "opus_xces")],
)
def test_formats_are_those_of_mtdatas_parser(ending: str, expected: str):
    assert find_format(ending) == expected


def test_downloads_are_where_mtdata_looks_for_them(tmp_path: Path):
    path = cached_path(tmp_path, "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz", "../e.tgz")
    assert path == tmp_path / "www.statmt.org" / "eb27" / "2ee4f81686ec67702bca1569e533" / "e.tgz"


def test_only_web_addresses_are_downloaded(tmp_path: Path):
    with pytest.raises(UserError, match="not a web address"):
        download("file:///etc/passwd", tmp_path / "x", lambda *_: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extraction")


def run_extract(folder: Path, dataset: Dataset, content: bytes, name: str = "download") -> tuple[str, str]:
    """Returns the two sides after extracting a download with this content."""
    path, sides = folder / name, (folder / "out.de", folder / "out.en")
    path.write_bytes(content)
    extract(dataset, [path], sides, folder / "out.tmx")
    return sides[0].read_bytes().decode(), sides[1].read_bytes().decode()


# Everything a line may hold; lines end only at "\n".
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\n\t"), max_size=20).map(str.strip)


def joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@given(pairs=st.lists(st.tuples(LINES, LINES), min_size=1, max_size=20), pack=st.sampled_from([pack_tgz, pack_zip]))
def test_any_text_is_extracted_unchanged(folder: Path, pairs: list[tuple[str, str]], pack):
    first, second = (joined(list(side)) for side in zip(*pairs, strict=True))
    # The second side first: archives have their own order.
    content = pack({"a.en": second.encode(), "README": b"?", "a.de": first.encode()})
    assert run_extract(folder, make_dataset(), content) == (first, second)


@given(pairs=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=20))
def test_any_table_becomes_two_files(folder: Path, pairs: list[tuple[str, str]]):
    content = gzip.compress("".join(f"score\t{second}\t{first}\n" for first, second in pairs).encode())
    dataset = make_dataset(members=(), kind="tsv", columns=(2, 1))
    first, second = (joined(list(side)) for side in zip(*pairs, strict=True))
    assert run_extract(folder, dataset, content) == (first, second)


@given(content=st.binary(max_size=200), chunk_bytes=st.integers(1, 50))
def test_blocks_do_not_depend_on_how_the_bytes_arrive(content: bytes, chunk_bytes: int):
    chunks = [content[start : start + chunk_bytes] for start in range(0, len(content), chunk_bytes)]
    extracted = extraction.Extracted([])
    text = "".join(extraction._read_blocks(chunks, extracted))
    whole = content if content.endswith(b"\n") or not content else content + b"\n"
    assert text == whole.decode(errors="replace")
    assert (extracted.num_repaired_lines > 0) == (text.encode() != whole)


def test_sentences_of_sgml():
    block = '<seg id="1"> A &amp; B </seg>\n<doc>\n<SEG id="2">two  blanks</SEG><seg id="3"></seg>\n<seg>cut\n'
    assert extraction._segments(block) == "A & B\ntwo blanks\n\n"


@given(
    content=st.binary(max_size=300),
    start=st.sampled_from([b"", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"BZh9", b"\xfd7zXZ\x00"]),
)
def test_any_bytes_are_an_archive_or_damaged(folder: Path, content: bytes, start: bytes):
    with pytest.raises(DamagedError):
        run_extract(folder, make_dataset(), start + content)


@given(kept=st.integers(0, 10_000), pack=st.sampled_from([pack_tgz, pack_zip]))
def test_a_truncated_archive_is_damaged(folder: Path, kept: int, pack):
    lines = joined([f"line {number * 7919 % 1000}" for number in range(200)]).encode()
    content = pack({"a.de": lines, "a.en": lines})
    with pytest.raises(DamagedError):
        run_extract(folder, make_dataset(), content[: min(kept, len(content) - 1)])


@pytest.mark.parametrize("pack", [pack_tgz, pack_zip])
def test_an_archive_that_expands_too_much_is_refused(folder: Path, pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED_BYTES", 2**20)
    bomb = b"x\n" * 2_000_000
    with pytest.raises(DamagedError, match="holds more than 1 MiB once decompressed"):
        run_extract(folder, make_dataset(), pack({"a.de": bomb, "a.en": bomb}))


def test_a_line_without_end_is_not_kept_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extraction, "MAX_LINE_BYTES", 2**20)
    content = pack_tgz({"a.de": b"x" * 3 * 2**20, "a.en": b"y\n"})
    with pytest.raises(DamagedError, match="line of more than"):
        run_extract(folder, make_dataset(), content)


@pytest.mark.parametrize(
    ("pattern", "names", "is_fine"),
    [
        ("*/x.de", ["top/x.de", "top/deep/x.de"], True),
        ("x.de", ["./x.de"], True),
        ("*.de", ["x.de", "y.de"], False),
        ("*.de", ["x.en"], False),
    ],
)
def test_a_pattern_matches_exactly_one_file(folder: Path, pattern: str, names: list[str], is_fine: bool):
    content = pack_tgz(dict.fromkeys([*names, "side.en"], b"text\n"))
    dataset = make_dataset(members=(pattern, "side.en"))
    if is_fine:
        assert run_extract(folder, dataset, content) == ("text\n", "text\n")
    else:
        with pytest.raises(DamagedError, match="where one is expected"):
            run_extract(folder, dataset, content)
