"""Tests of opening a prepared corpus: what is damaged or malformed is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from corpora import make_pairs, prepare_pairs

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.errors import UserError


@pytest.fixture(scope="module")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_pairs(tmp_path_factory.mktemp("prepared"), make_pairs(200)).folder


@pytest.fixture
def out(tmp_path: Path, prepared_once: Path) -> Path:
    """A prepared corpus that the test may damage."""
    return Path(shutil.copytree(prepared_once, tmp_path / "out"))


def damage_manifest(out: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads((out / "manifest.json").read_text())
    change(content)
    (out / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(format_version=1), "format version 1"),
        (
            lambda content: content.update(format_version=3),
            r"later dragoman \(format 3, this program reads 2\): update",
        ),
        (lambda content: content.pop("format_version"), "format version None"),
        (lambda content: content.pop("settings"), "malformed at settings"),
        (lambda content: content["splits"].pop("dev"), "lacks dev"),
        (lambda content: content["splits"]["train"].update(num_pairs="many"), "malformed at splits.train.num_pairs"),
        (lambda content: content["corpora"][0].update(name="../up"), "malformed at corpora.0.name"),
    ],
)
def test_malformed_manifest_is_refused(out: Path, change: Callable[..., object], message: str) -> None:
    damage_manifest(out, change)
    with pytest.raises(UserError, match=message):
        PreparedCorpus.open(out)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b""])
def test_manifest_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match=r"manifest\.json"):
        PreparedCorpus.open(tmp_path)


def test_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        PreparedCorpus.open(tmp_path)
    with pytest.raises(UserError, match=r"There is no folder .*nowhere"):
        PreparedCorpus.open(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.model", "test.target.txt", "train/00000.target.ids"])
def test_damaged_files_are_found_on_opening(out: Path, name: str) -> None:
    path = out / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=path.name):
        PreparedCorpus.open(out)
    path.unlink()
    with pytest.raises(UserError, match=f"{path.name} is missing"):
        PreparedCorpus.open(out)


def test_text_with_another_number_of_lines_is_refused(out: Path) -> None:
    corpus = PreparedCorpus.open(out)
    path = out / "dev.source.txt"
    path.write_bytes(path.read_bytes().replace(b" ", b"\n", 1))
    with pytest.raises(UserError, match=r"dev\.source\.txt has 5 lines"):
        corpus.text("dev")
