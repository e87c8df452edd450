"""`dragoman train --source … --target …` up to the start of workers: languages, filters, and mistakes told early."""

import json
from pathlib import Path

import pytest
from sacrebleu.tokenizers import tokenizer_ko_mecab
from spaceless_corpora import write_spaceless_corpus
from typer.testing import CliRunner

from dragoman.cli.app import app
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.config import load_settings
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("plans")


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def text(tmp_path) -> tuple[Path, Path]:
    """English and Japanese text, with one line in a wrong language on each side."""
    source, target = write_spaceless_corpus(tmp_path, "ja", 300)
    wrong = "Das ist ein deutscher Satz, der hier wirklich nicht hingehört."
    source.write_text(source.read_text(encoding="utf-8") + f"{wrong}\nA good sentence.\n", encoding="utf-8")
    target.write_text(target.read_text(encoding="utf-8") + f"これは正しい文です。\n{wrong}\n", encoding="utf-8")
    return source, target


def train(run: RunFolder, text: tuple[Path, Path], *options: str) -> str:
    arguments = ["train", "--source", text[0], "--target", text[1], "--run-dir", run.path, *options]
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False).output


def dropped(run: RunFolder) -> dict[str, int]:
    filters = PreparedCorpus.open(run.prepared).manifest.cleaning["filters"]
    return {each["name"]: each["num_dropped"] for each in filters}


def test_languages_are_detected_told_and_used(run, text):
    output = train(run, text)
    assert "Detected languages: English → Japanese (en-ja); set --languages if this is wrong." in output
    assert dropped(run)["language"] + dropped(run)["script"] == 2
    assert load_settings(run.config).evaluation.tokenizer == "ja-mecab"
    assert json.loads(run.corpus_facts.read_text(encoding="utf-8"))["settings"]["languages"] == "en-ja"


def test_given_languages_are_used_without_looking(run, text):
    output = train(run, text, "--languages", "en-qaa")
    assert "Detected" not in output
    assert PreparedCorpus.open(run.prepared).manifest.settings["languages"] == "en-qaa"
    assert dropped(run)["language"] == 1  # on the English side


def test_uncertain_languages_are_told_and_nothing_is_dropped(run, tmp_path):
    lines = [" ".join(f"{number:05d}") for number in range(200)]
    files = tmp_path / "digits", tmp_path / "reversed"
    for file, backwards in zip(files, (1, -1), strict=True):
        file.write_text("".join(f"{line[::backwards]}\n" for line in lines))
    assert "The languages are not certain" in train(run, files)
    assert not dropped(run).get("language")
    assert load_settings(run.config).evaluation.tokenizer == "13a"


@pytest.mark.parametrize("languages", ["en", "english-japanese", "en-", ""])
def test_malformed_languages_are_refused(run, text, languages):
    with pytest.raises(UsageError, match="languages"):
        train(run, text, "--languages", languages)
    assert not run.path.exists()


def test_languages_of_a_config_are_those_of_its_corpus(run, config):
    with pytest.raises(UsageError, match="--languages is for use with --source"):
        CliRunner().invoke(app, ["train", str(config), "--languages", "en-ja"], catch_exceptions=False)


def test_a_missing_tokenizer_is_told_before_preparing(run, text, monkeypatch):
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    with pytest.raises(UserError, match=r"dragoman\[ko\]"):
        train(run, text, "--set", "evaluation.tokenizer=ko-mecab")
    assert not run.path.exists()


def test_a_wrong_value_of_a_setting_is_told_before_preparing(run, text):
    with pytest.raises(UsageError, match=r"training\.max_steps"):
        train(run, text, "--set", "training.max_steps=many")
    assert not run.path.exists()


def test_a_preparation_that_was_interrupted_may_be_continued_in_the_same_folder(run, text):
    (run.path / ".prepared.partial").mkdir(parents=True)
    (run.path / ".dragoman-work").mkdir()
    train(run, text)
    assert load_settings(run.config).data.prepared == run.prepared


def test_fine_tuning_prepares_with_the_vocabulary_of_the_run(run, prepared, trained_run, tmp_path):
    text = tmp_path / "new.en", tmp_path / "new.de"
    for path, side in zip(text, ("source", "target"), strict=True):
        path.write_text((prepared / f"dev.{side}.txt").read_text(encoding="utf-8") * 2, encoding="utf-8")
    said = train(run, text, "--from", f"{trained_run}@latest", "--languages", "en-de")
    settings = load_settings(run.config)
    assert settings.model.width == 32
    assert settings.training.learning_rate == pytest.approx(6e-4)  # a fifth of what it was trained with
    assert settings.evaluation.patience == 4
    (tokenizer,) = RunFolder(trained_run).tokenizers.iterdir()
    assert (run.tokenizers / tokenizer.name).read_bytes() == tokenizer.read_bytes()
    assert (run.path / "start" / "model.safetensors").exists()
    assert "Model, vocabulary and weights of" in said


def test_a_resumed_run_takes_no_other_start(run, trained_run):
    with pytest.raises(UsageError, match="--from starts a new run"):
        CliRunner().invoke(
            app, ["train", "--resume", "--run-dir", str(run.path), "--from", str(trained_run)], catch_exceptions=False
        )
