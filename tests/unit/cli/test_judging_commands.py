"""The commands `evaluate` and `compare` with files of translations, and what they refuse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.compare import compare
from dragoman.cli.evaluate import evaluate
from dragoman.run.errors import UsageError, UserError

REFERENCE = ["one small cat sat here", "two small cats sat here", "three small cats sat here"]
GOOD = ["one small cat sat here", "two small cats sat here", "three cats"]
BAD = ["one small cat sat there", "a small cats", "three cats"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = {"source": ["eins", "zwei", "drei"], "reference": REFERENCE, "good": GOOD, "bad": BAD, "short": ["x"]}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def read_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_translations_are_scored_without_a_run(files, capsys):
    evaluate(hypotheses=Path("good"), reference=[Path("reference")], source=Path("source"), json=True, worst=1)
    figures = read_json(capsys)
    assert figures["sentences"] == 3
    assert figures["bleu"] > 50
    assert figures["chrfpp_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:2")
    assert [each["line"] for each in figures["worst"]] == [3]
    assert figures["in_training"] is None
    assert figures["model"] is figures["step"] is figures["seconds"] is None


def test_text_shows_the_worst_sentences_before_the_scores(files, capsys):
    evaluate(hypotheses=Path("bad"), reference=[Path("reference")], sentence_scores=Path("table.tsv"))
    printed = capsys.readouterr().out
    assert printed.index("The 3 worst sentences") < printed.index("BLEU ") < printed.index("TER ")
    assert "is not known: no model was given" in printed
    assert len((files / "table.tsv").read_text().splitlines()) == 4
    evaluate(hypotheses=Path("bad"), reference=[Path("reference")], worst=0)
    assert "worst" not in capsys.readouterr().out


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Give a run or an export to translate with, or translations with --hypotheses"),
        ({"run": Path("good"), "hypotheses": Path("good")}, "not both"),
        ({"hypotheses": Path("good")}, "Give the references"),
        ({"hypotheses": Path("good"), "languages": "en-de"}, "--languages belongs to --test-set"),
        ({"hypotheses": Path("good"), "reference": [Path("reference")], "test_set": "wmt14"}, "either --test-set"),
        ({"metric": ["bleurt"]}, "--metric is 'bleurt'"),
        ({"metric": ["comet"]}, "--comet-model"),
        ({"comet_model": "x"}, "--metric comet"),
        ({"tokenizer": "x"}, "--tokenizer is 'x'"),
        ({"hypotheses": Path("good"), "output": Path("out")}, "--output needs a run"),
    ],
)
def test_wrong_usage_of_evaluate(options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        evaluate(**options)


@pytest.mark.usefixtures("files")
def test_other_lengths_and_unwritable_files_are_refused():
    with pytest.raises(UserError, match="reference has 3 lines but short has 1"):
        evaluate(hypotheses=Path("short"), reference=[Path("reference")])
    with pytest.raises(UserError, match="cannot be written"):
        evaluate(hypotheses=Path("good"), reference=[Path("reference")], sentence_scores=Path("no/where.tsv"))


@pytest.mark.parametrize("name", ["good", "reference", "source", "./good"])
def test_no_output_replaces_a_file_that_is_read(files, name):
    content = (files / name).read_text()
    asked = {"source": Path("source"), "reference": [Path("reference")]}
    for option in ("output", "sentence_scores"):
        with pytest.raises(UserError, match="would be replaced"):
            evaluate(hypotheses=Path("good"), **asked, **{option: Path(name)})
    with pytest.raises(UserError, match="would be replaced"):
        compare(["bad", "good"], **asked, out=Path(name))
    assert (files / name).read_text() == content


def test_files_are_compared(files, capsys):
    compare(["bad", "good"], reference=[Path("reference")], samples=20, json=True)
    figures = read_json(capsys)
    assert figures["baseline"] == "bad"
    assert figures["systems"][1]["bleu"]["difference"] > 0
    assert figures["sentences"] == 3
    assert "<title>bad compared with good</title>" in (files / figures["page"]).read_text()


def test_text_of_a_comparison_ends_with_verdicts_and_the_page(files, capsys):
    compare(["bad", "good"], reference=[Path("reference")], test="bootstrap", samples=20, out=Path("page.html"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Sentence by sentence: page.html"
    assert [re.search("BLEU|chrF2\\+\\+|TER", line)[0] for line in lines[-4:-1]] == ["BLEU", "chrF2++", "TER"]
    assert "randomisation" not in "".join(lines)
    assert (files / "page.html").is_file()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("systems", "options", "message"),
    [
        (["good"], {}, "at least two"),
        (["good", "good"], {}, "good is given twice"),
        (["good", "nowhere"], {}, "no run folder, export or file nowhere"),
        (["good", "nowhere@best"], {}, "no run folder, export or file nowhere@best"),
        (["good", "short"], {"reference": [Path("reference")]}, "reference has 3 lines but short has 1"),
        (["good", "bad"], {}, "Give the references"),
        (["good", "bad"], {"out": Path("no/where.html")}, "cannot be written"),
        ([str(number) for number in range(21)], {}, "at most 20"),
    ],
)
def test_wrong_usage_of_compare(systems, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        compare(systems, **options)
