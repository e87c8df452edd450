"""dragoman in Python programs: nothing is printed, nothing exits, and errors are sentences."""

import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.run.errors import UsageError, UserError

LINES = ["The old teacher reads.", "", "The dog sleeps."]


def test_a_run_translates_in_this_process(trained_run: Path, capfd: pytest.CaptureFixture[str]):
    translator = dragoman.Translator.load(trained_run)
    found = translator.translate(LINES)
    assert [bool(line) for line in found] == [True, False, True]
    best = translator.translate_n_best(LINES, 2, alignment=True)
    assert [each[0].text for each in best] == found
    assert len(best[0]) == 2
    assert best[0][0].score >= best[0][1].score
    assert best[0][0].alignment
    assert capfd.readouterr() == ("", "")


def test_one_text_is_not_a_list_of_characters(trained_run: Path):
    with pytest.raises(UsageError, match="a list of texts"):
        dragoman.Translator.load(trained_run).translate("The dog sleeps.")


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["fine", float("nan")], "Text 2 is no text, but of the type float"),
        ([None], "of the type NoneType"),
        (["fine", "odd \ud83d"], r"Text 2 has half a character \(\\ud83d\) at offset 4"),
    ],
)
def test_what_is_no_text_is_named(trained_run: Path, texts: list, reason: str):
    translator = dragoman.Translator.load(trained_run)
    with pytest.raises(UsageError, match=reason):
        translator.translate(texts)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"backend": "tensorflow"}, "'torch' or 'ctranslate2', not 'tensorflow'"),
        ({"workers": 0}, "workers must be 1 or more"),
        ({"ensemble": "runs/other"}, "a list of models"),
    ],
)
def test_wrong_arguments_of_load_are_named(trained_run: Path, arguments: dict, reason: str):
    with pytest.raises(UsageError, match=reason):
        dragoman.Translator.load(trained_run, **arguments)


def test_what_is_wrong_is_raised(tmp_path: Path):
    with pytest.raises(UserError, match="is not a run folder"):
        dragoman.Translator.load(tmp_path)
    with pytest.raises(UserError, match="nowhere"):
        dragoman.prepare("nowhere.en", "nowhere.de", tmp_path / "out")
    with pytest.raises(UsageError, match="--beam-size"):
        dragoman.evaluate(tmp_path, options={"beam_size": "wide"})


@pytest.mark.slow
def test_prepare_train_and_evaluate(prepared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    corpus = prepared.parent / "corpus"
    said: list[str] = []
    text = dragoman.prepare(
        corpus / "train.en", [corpus / "train.de"], tmp_path / "mine", languages="en-de", options={"vocab_size": 300}
    )
    assert 0 < text.num_pairs <= 1_000
    run = dragoman.train(
        source=corpus / "train.en",
        target=corpus / "train.de",
        run_dir=tmp_path / "run",
        settings={"training.max_steps": 5, "training.global_batch_tokens": 400, "model.preset": "tiny"},
        options={"workers": 1, "languages": "en-de"},
        say=said.append,
    )
    assert (run.step, run.is_finished) == (5, True)
    assert any("5 steps" in line for line in said)
    scores = dragoman.evaluate(run.folder, corpus / "test.en", corpus / "test.de", options={"worst": 0})
    assert 0 <= scores.bleu <= 100
    assert scores.bleu_signature.startswith("nrefs:1")
    assert scores.figures["sentences"] == 20
    assert capfd.readouterr() == ("", "")


def test_importing_is_quick_and_the_names_are_there():
    program = (
        "import sys, dragoman; assert 'torch' not in sys.modules; "
        "from dragoman import Translator, Translation, evaluate, prepare, train; assert 'torch' not in sys.modules; "
        "print(sorted(dragoman.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "'Translator'" in done.stdout
