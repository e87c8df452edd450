"""Tests of the input files of a preparation: checks, keys, and pipes."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from corpora import (
    Files,
    content_of,
    decode_all,
    ignore,
    make_pairs,
    names_in,
    prepare_pairs,
    settings_for,
    write_pairs,
)

from dragoman.corpus.preparation.inputs import open_inputs, preparation_key
from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.settings import (
    CorpusSettings,
    FilterSettings,
    PrepareSettings,
    TextSettings,
    TokenizerSettings,
    default_corpus_name,
)
from dragoman.run.errors import UsageError, UserError


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_pairs(tmp_path, "train", make_pairs(60))


def key_of(settings: PrepareSettings, beside: Path) -> str:
    with open_inputs(settings, beside / "out", ignore) as inputs:
        return preparation_key(settings, inputs)


def rename(files: Files, folder: Path, name: str) -> Files:
    folder.mkdir()
    source, target = (shutil.copy(path, folder / f"{name}{path.suffix}") for path in files)
    return Path(source), Path(target)


def test_the_key_knows_content_and_no_names(tmp_path: Path, files: Files) -> None:
    dev = write_pairs(tmp_path, "dev", make_pairs(3, seed=2))
    moved, moved_dev = rename(files, tmp_path / "a", "other"), rename(dev, tmp_path / "b", "valid")
    first = key_of(settings_for(files, dev=([dev[0]], [dev[1]])), tmp_path)
    assert first == key_of(settings_for(moved, dev=([moved_dev[0]], [moved_dev[1]])), tmp_path)
    with files[1].open("a") as file:
        file.write(" ")
    assert first != key_of(settings_for(files, dev=([dev[0]], [dev[1]])), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"held_out": 3},
        {"cleaning": "strict"},
        {"filters": FilterSettings(length_words=(1, 20))},
        {"languages": "en-de"},
        {"normalise": False},
        {"tokenizer": TokenizerSettings(vocab_size=101)},
        {"tokenizer": TokenizerSettings(vocab_size=100, kind="unigram")},
    ],
)
def test_the_key_knows_every_setting_that_decides(tmp_path: Path, files: Files, change: dict[str, object]) -> None:
    assert key_of(settings_for(files), tmp_path) != key_of(settings_for(files, **change), tmp_path)


@pytest.mark.parametrize("change", [{"skip_bad_lines": 5}, {"max_expansion": 7}])
def test_the_key_does_not_know_limits_on_reading(tmp_path: Path, files: Files, change: dict[str, int]) -> None:
    assert key_of(settings_for(files), tmp_path) == key_of(settings_for(files, **change), tmp_path)


@pytest.mark.parametrize("change", [{"name": "mine"}, {"weight": 2.0}, {"tag": "<bt>"}, {"pieces": "none"}])
def test_the_key_knows_what_was_said_of_a_corpus(tmp_path: Path, files: Files, change: dict[str, object]) -> None:
    changed = CorpusSettings(source=files[0], target=files[1], **change)  # type: ignore[arg-type]
    settings = settings_for(files)
    assert key_of(settings, tmp_path) != key_of(settings.model_copy(update={"corpora": (changed,)}), tmp_path)


def test_names_of_several_corpora_decide(tmp_path: Path, files: Files) -> None:
    """They are the names of files of the prepared corpus, and what a run's config calls them."""
    second = write_pairs(tmp_path, "second", make_pairs(10, seed=2))
    renamed = rename(second, tmp_path / "a", "third")
    one, other = (PrepareSettings.of_files([files[0], more[0]], [files[1], more[1]]) for more in (second, renamed))
    assert key_of(one, tmp_path) != key_of(other, tmp_path)


def test_the_order_of_corpora_decides(tmp_path: Path, files: Files) -> None:
    second = write_pairs(tmp_path, "second", make_pairs(10, seed=2))
    one = PrepareSettings.of_files([files[0], second[0]], [files[1], second[1]])
    other = PrepareSettings.of_files([second[0], files[0]], [second[1], files[1]])
    assert key_of(one, tmp_path) != key_of(other, tmp_path)


def test_a_file_given_twice_is_a_usage_error(tmp_path: Path, files: Files) -> None:
    link = tmp_path / "link.en"
    link.symlink_to(files[0])
    for settings in (
        PrepareSettings.of_files([files[0]], [files[0]]),
        PrepareSettings.of_files([files[0], link], [files[1], tmp_path / "more.de"]),
        settings_for(files, test=([files[0]], [tmp_path / "test.de"])),
        PrepareSettings(corpora=(CorpusSettings(file=files[0]),), dev=(TextSettings(file=files[0]),)),
    ):
        with pytest.raises(UsageError, match="is given twice"), open_inputs(settings, tmp_path / "out", ignore):
            pass


def test_no_text_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No training text"), open_inputs(PrepareSettings(), tmp_path / "out", ignore):
        pass


def test_missing_files_and_folders_are_named(tmp_path: Path, files: Files) -> None:
    with pytest.raises(UserError, match=r"none\.en does not exist"):
        key_of(settings_for((tmp_path / "none.en", files[1])), tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path} is a folder"):
        key_of(settings_for((files[0], tmp_path)), tmp_path)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("corpora/europarl.en.gz", "europarl"),
        ("/dev/fd/63", "63"),
        ("my crawl.tsv", "my_crawl"),
        ("über.en", "corpus_ber"),
        (".en", "corpus"),
        ("-v2.en", "corpus-v2"),
    ],
)
def test_default_names_are_names(file: str, name: str) -> None:
    assert default_corpus_name(Path(file)) == name
    CorpusSettings(file=Path(file), name=name)


# --- pipes


def pipe_with(path: Path, content: bytes) -> threading.Thread:
    """A named pipe, and who writes into it."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=[content], daemon=True)
    writer.start()
    return writer


def test_pipes_are_read_once_and_nothing_is_left(tmp_path: Path, files: Files) -> None:
    expected = prepare_pairs(tmp_path / "expected", make_pairs(60))
    pipes = tmp_path / "pipes" / "train.en", tmp_path / "pipes" / "train.de"
    pipes[0].parent.mkdir()
    writers = [pipe_with(pipe, file.read_bytes()) for pipe, file in zip(pipes, files, strict=True)]
    corpus = prepare_corpus(settings_for(pipes), tmp_path / "out", ignore)
    for writer in writers:
        writer.join()
    assert corpus.manifest.key == expected.manifest.key
    assert corpus.manifest.splits["train"].inputs[0].path == str(pipes[0])
    assert names_in(tmp_path) == {"train.en", "train.de", "pipes", "expected", "out"}
    shards = {name: content for name, content in content_of(expected.folder).items() if name.startswith("train/")}
    assert shards.items() <= content_of(corpus.folder).items()


def test_bad_lines_of_pipes_are_reported_under_the_given_name(tmp_path: Path, files: Files) -> None:
    content = files[0].read_bytes().replace(b"\n", b"\xff\n", 1)
    pipe_with(tmp_path / "pipe", content)
    with pytest.raises(UserError, match=f"^{tmp_path / 'pipe'}, line 1 is not UTF-8"):
        prepare_corpus(settings_for((tmp_path / "pipe", files[1])), tmp_path / "out", ignore)
    pipe_with(tmp_path / "pipe-2", content)
    said: list[str] = []
    wanted = settings_for((tmp_path / "pipe-2", files[1]), skip_bad_lines=1)
    corpus = prepare_corpus(wanted, tmp_path / "out", said.append)
    assert len(decode_all(corpus)) == 59
    [sentence] = corpus.manifest.bad_lines
    assert sentence.startswith(f"{tmp_path / 'pipe-2'}, line 1: is not UTF-8")
    assert f"Skipped: {sentence}" in said


def test_no_folder_for_pipes_is_made_without_pipes(tmp_path: Path, files: Files) -> None:
    with open_inputs(settings_for(files), tmp_path / "out", ignore):
        assert names_in(tmp_path) == {"train.en", "train.de"}
