"""The tokenizer of BLEU is decided when a run is created, and stays the same on every host and after every resume."""

from dataclasses import dataclass
from typing import Any

import pytest
from corpora import ignore
from sacrebleu.tokenizers import tokenizer_ja_mecab
from spaceless_corpora import write_spaceless_corpus

from dragoman.corpus.preparation.prepare import prepare_corpus
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.corpus.settings import PrepareSettings, TokenizerSettings
from dragoman.run.config import build_settings, load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.training.run_setup import create_run, reopen_run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> PreparedCorpus:
    """English and Japanese text without named languages."""
    folder = tmp_path_factory.mktemp("japanese")
    source, target = write_spaceless_corpus(folder, "ja", 200)
    vocabulary = TokenizerSettings(vocab_size=200)
    return prepare_corpus(PrepareSettings.of_files([source], [target], tokenizer=vocabulary), folder / "out", ignore)


@dataclass
class Started:
    """A run folder and its corpus."""

    run: RunFolder
    corpus: PreparedCorpus

    def create(self, **evaluation: Any) -> str:
        tables = {"data": {"prepared": str(self.corpus.folder)}, "model": {"preset": "tiny"}, "evaluation": evaluation}
        create_run(self.run, build_settings(tables), num_workers=1)
        return self.tokenizer

    def resume(self, *overrides: str) -> str:
        reopen_run(self.run, None, list(overrides), num_workers=1, has_other_hosts=True)
        return self.tokenizer

    @property
    def tokenizer(self) -> str:
        return load_settings(self.run.config).evaluation.tokenizer


@pytest.fixture
def started(tmp_path, corpus) -> Started:
    return Started(RunFolder(tmp_path / "run"), corpus)


@pytest.fixture
def without_mecab(monkeypatch) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)


def test_the_choice_is_written_to_the_config(started):
    assert started.create() == "ja-mecab"


def test_a_tokenizer_that_was_set_is_kept(started):
    assert started.create(tokenizer="intl") == "intl"


@pytest.mark.usefixtures("without_mecab")
def test_without_its_packages_characters_are_counted(started):
    assert started.create() == "char"


def test_a_resumed_run_scores_as_before_even_where_another_would_be_chosen_now(started, monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    assert started.create() == "char"
    monkeypatch.undo()
    assert started.resume() == "char"
    assert started.resume("evaluation.tokenizer=auto") == "char"
    assert started.resume("evaluation.tokenizer=ja-mecab") == "ja-mecab"


def test_a_run_from_before_there_was_a_choice_gets_one_when_resumed(started):
    started.create()
    lines = started.run.config.read_text(encoding="utf-8").splitlines(keepends=True)
    started.run.config.write_text("".join(line for line in lines if not line.startswith('tokenizer = "')))
    assert started.tokenizer == "auto"
    assert started.resume() == "ja-mecab"


@pytest.mark.usefixtures("without_mecab")
def test_missing_packages_are_named_before_anything_is_written(started):
    with pytest.raises(UserError, match=r"dragoman\[ja\]"):
        started.create(tokenizer="ja-mecab")
    assert not started.run.path.exists()


def test_packages_that_are_missing_on_resume_are_named(started, monkeypatch):
    started.create()
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UserError, match=r"dragoman\[ja\]"):
        started.resume()
    assert started.resume("evaluation.tokenizer=char") == "char"
