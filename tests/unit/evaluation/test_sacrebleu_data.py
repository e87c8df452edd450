"""sacreBLEU's test sets are read where they are on this machine, and never downloaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS

from dragoman.evaluation.evaluation_set import read_sacrebleu_set
from dragoman.run.errors import UsageError, UserError

SOURCE, REFERENCE, OUTPUT = (
    "A small cat.\nTwo dogs.\n",
    "Eine kleine Katze.\nZwei Hunde.\n",
    "Eine Katze.\nZwei Hunde.\n",
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr("sacrebleu.dataset.base.download_file", refuse)


def put_wmt14(folder: Path) -> None:
    (folder / "wmt14").mkdir(parents=True)
    (folder / "wmt14/wmt14.en-de.src").write_text(SOURCE)
    (folder / "wmt14/wmt14.en-de.ref").write_text(REFERENCE)
    for field in ("docid", "genre", "origlang"):
        (folder / f"wmt14/wmt14.en-de.{field}").write_text("x\nx\n")


def test_a_set_that_is_there_is_read(tmp_path, monkeypatch):
    put_wmt14(tmp_path)
    monkeypatch.setattr(DATASETS["wmt14"], "_outdir", str(tmp_path / "wmt14"))
    found = read_sacrebleu_set("wmt14", "en-de", lambda _: None)
    assert (found.name, found.languages) == ("wmt14 (en-de)", "en-de")
    assert found.sources == SOURCE.splitlines()
    assert found.references_by_line == [[line] for line in REFERENCE.splitlines()]


@pytest.mark.parametrize(
    ("name", "languages", "command"),
    [
        ("wmt14", "en-de", "sacrebleu --download wmt14 -l en-de"),
        ("wmt22", "en-de", "sacrebleu --download wmt22 -l en-de"),  # this one is an XML file
        ("mtnt2019", "ja-en", "sacrebleu --download mtnt2019 -l ja-en"),
    ],
)
def test_a_set_that_is_not_there_is_not_downloaded(tmp_path, monkeypatch, name, languages, command):
    monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path))
    with pytest.raises(UserError, match="is not on this machine") as error:
        read_sacrebleu_set(name, languages, lambda _: None)
    assert command in str(error.value)


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("wmt14x", "en-de", "There is no test set 'wmt14x'; did you mean 'wmt14"),
        ("wmt14", None, "needs --languages, one of: .*de-en"),
        ("wmt14", "en-ja", "wmt14 has no en-ja; it has: .*en-de"),
    ],
)
def test_wrong_names_are_explained(name, languages, message):
    with pytest.raises(UsageError, match=message):
        read_sacrebleu_set(name, languages, lambda _: None)


def test_scores_on_a_set_are_those_of_the_command_line(tmp_path):
    put_wmt14(tmp_path)
    (tmp_path / "out").write_text(OUTPUT)
    environment = os.environ | {"SACREBLEU": str(tmp_path)}

    def call(module: str, *arguments: object) -> str:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", env=environment).stdout

    theirs = json.loads(call("sacrebleu", "-t", "wmt14", "-l", "en-de", "-i", tmp_path / "out", "-w", 9))
    ours = json.loads(
        call(
            "dragoman",
            "evaluate",
            "--hypotheses",
            tmp_path / "out",
            "--test-set",
            "wmt14",
            "--languages",
            "en-de",
            "--json",
        )
    )
    assert (round(ours["bleu"], 9), ours["signature"]) == (theirs["score"], theirs["signature"])
    assert ours["test_set"] == "wmt14 (en-de)"
