"""The final evaluation scores with the tokenizer of the run, whatever text it is given."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.evaluation.final_evaluation import FinalEvaluation, evaluate_model, evaluate_run
from dragoman.evaluation.judged_model import describe_run
from dragoman.run.config import build_settings
from dragoman.run.errors import UserError
from dragoman.translation.loading import LoadedRun

JAPANESE = ["今日は雨が降る。", "先生が本を読む。"]


class Copier:
    """Stands in for a translator that knows the references."""

    num_translated = 0

    def translate(self, lines: list[str], _progress: object) -> list[str]:
        self.num_translated += len(lines)
        return list(lines)

    def describe_unwritable(self, _lines: list[str]) -> None:
        """All can be written."""

    def finish_notices(self) -> None:
        """There are none."""


def loaded_run(folder: Path, tokenizer: str = "auto", corpus: Any = None) -> LoadedRun:
    checkpoint = folder / "run/checkpoints/step-00000005"
    checkpoint.mkdir(parents=True)
    if corpus is not None:
        (folder / "run/corpus.json").write_text(json.dumps(corpus))
    settings = build_settings({"data": {"prepared": "gone"}, "evaluation": {"tokenizer": tokenizer}})
    return LoadedRun(Copier(), settings, checkpoint)  # type: ignore[arg-type]


def evaluate(run: LoadedRun, lines: list[str]) -> FinalEvaluation:
    text = run.checkpoint.parent / "text"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return evaluate_run(run, text, text, lambda _: None)


@pytest.mark.parametrize(
    ("tokenizer", "corpus", "expected"),
    [
        ("ja-mecab", None, "ja-mecab"),
        ("char", {"settings": {"languages": "en-ja"}}, "char"),
        ("auto", {"settings": {"languages": "en-zh"}}, "zh"),  # an old run: by the language of its corpus
        ("auto", {"settings": {}}, "ja-mecab"),  # by the script of the references
        ("auto", None, "ja-mecab"),
        ("auto", [], "ja-mecab"),
        ("auto", {"settings": {"languages": 5}}, "ja-mecab"),
    ],
)
def test_the_tokenizer_of_the_run_is_used(tmp_path, tokenizer, corpus, expected):
    result = evaluate(loaded_run(tmp_path, tokenizer, corpus), JAPANESE)
    assert f"|tok:{expected}" in result.score.signature
    assert f"|tok:{expected}" in result.summary()
    assert result.score.bleu == pytest.approx(100)


def test_text_in_another_script_is_scored_for_the_language_of_the_run(tmp_path):
    run = loaded_run(tmp_path, corpus={"settings": {"languages": "en-ja"}})
    assert "|tok:ja-mecab" in evaluate(run, ["Some English text."]).score.signature


def test_an_option_replaces_the_tokenizer_of_the_run(tmp_path):
    run = loaded_run(tmp_path, "char")
    model, test_set = describe_run(run), evaluate(run, JAPANESE).test_set
    assert "|tok:intl" in evaluate_model(model, test_set, lambda _: None, tokenizer="intl").score.signature


def test_a_missing_tokenizer_is_told_before_anything_is_translated(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    run = loaded_run(tmp_path, "ja-mecab")
    with pytest.raises(UserError, match=r"dragoman\[ja\].*--tokenizer char"):
        evaluate(run, JAPANESE)
    assert not run.translator.num_translated


def records(run: LoadedRun) -> list[dict[str, Any]]:
    lines = (run.checkpoint.parent.parent / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_scores_are_recorded_in_the_run(tmp_path):
    run = loaded_run(tmp_path)
    result = evaluate(run, ["Some English text."])
    [record] = records(run)
    assert record["judged_on"] == str(run.checkpoint.parent / "text")
    assert (record["bleu"], record["step"], record["checkpoint"]) == (result.score.bleu, 5, str(run.checkpoint))
    assert record["chrfpp_signature"] == result.score.chrfpp_signature
    assert "worst" not in record


def test_scores_of_an_average_are_not_recorded_as_those_of_a_step(tmp_path):
    run = replace(loaded_run(tmp_path), description="the average of 2 checkpoints", is_one_checkpoint=False)
    evaluate(run, ["Some English text."])
    [record] = records(run)
    assert record["step"] is None
    assert record["judged_on"].endswith("text, by the average of 2 checkpoints")


def test_sentences_of_the_training_data_are_reported(tmp_path, prepared):
    run = loaded_run(tmp_path)
    run = replace(run, settings=build_settings({"data": {"prepared": str(prepared)}}))
    corpus = PreparedCorpus.open(prepared)
    known = corpus.source_tokenizer.decode_lines([corpus.split("train").source(0).tolist()])[0]
    result = evaluate(run, [known, "Nobody knows this."])
    assert result.figures()["in_training"] == {"sources": 1, "references": 0, "pairs": 0}
    assert "1 sources, 0 references and 0 whole pairs of the 2 test sentences" in result.summary()


def test_data_that_is_gone_is_told(tmp_path):
    result = evaluate(loaded_run(tmp_path), ["Some English text."])
    assert result.figures()["in_training"] is None
    assert "is not known: The prepared data of" in result.summary()


def test_the_prepared_test_set_needs_the_prepared_data(tmp_path):
    with pytest.raises(UserError, match="so there is no test set: give text and its translation with --source"):
        evaluate_run(loaded_run(tmp_path), None, None, lambda _: None)
