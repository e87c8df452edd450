"""Models of a server: those that cannot be loaded are named, and the others are served."""

import json
import shutil

import pytest
from tiny_exports import write_tiny_export

from dragoman.run.errors import UserError
from dragoman.serving.loading import load_models


def load(*folders, languages=None):
    said: list[str] = []
    models = load_models(folders, lambda folder: folder, languages, None, 1, said.append)
    return models, said


@pytest.fixture
def damaged(export, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(export, folder)
    (folder / "model.bin").write_bytes(b"nothing")
    return folder


def test_a_damaged_or_missing_model_does_not_stop_the_others(export, damaged, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    models, said = load(tmp_path / "missing", damaged, export, foreign)
    assert [model.languages for model in models.models] == ["en-de"]
    assert [line.split(" is not served: ")[0] for line in said if "is not served" in line] == [
        str(tmp_path / "missing"),
        str(damaged),
        str(foreign),
    ]
    assert all("\n" not in line for line in said)


def test_a_fault_that_nobody_expected_does_not_stop_the_others(export, tmp_path):
    def open_export(folder):
        if folder != export:
            raise RecursionError("too deep")
        return folder

    said: list[str] = []
    models = load_models([tmp_path, export], open_export, None, None, 1, said.append)
    assert [model.languages for model in models.models] == ["en-de"]
    assert said[0] == f"{tmp_path} is not served: RecursionError: too deep"


def test_a_server_without_any_model_does_not_start(damaged):
    with pytest.raises(UserError, match="None of the models"):
        load(damaged)


def test_a_second_model_of_a_pair_is_refused(export, tmp_path):
    second = write_tiny_export(tmp_path / "second")
    models, said = load(export, second)
    assert len(models.models) == 1
    assert f"{second} is not served: Another model for en-de" in said[-1]


def test_languages_can_be_said_for_a_model_that_does_not_know_them(tmp_path):
    nameless = write_tiny_export(tmp_path / "nameless", languages=None)
    models, _ = load(nameless, languages=("fr", "es"))
    assert models.models[0].languages == "fr-es"
    with pytest.raises(UserError):
        load(nameless)


def test_facts_of_the_page_come_from_the_export(export):
    models, _ = load(export)
    shown = dict(models.models[0].shown_facts)
    assert shown["BLEU"] == "12.3 on dev (nrefs:1|<b>odd</b>)"
    assert shown["Parameters"] == "12,345"
    assert json.dumps(models.models[0].facts)


def test_the_language_is_sought_only_among_those_that_can_be_translated(models):
    german = "Das ist ein Satz in deutscher Sprache, den man gut erkennen kann."
    assert models.source_for("en", german).language == "de"
    assert models.source_for("de", german).language == "en"
    assert models.detect("")[0].confidence == 0
