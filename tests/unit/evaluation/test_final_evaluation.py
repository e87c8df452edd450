"""The final evaluation scores with the tokenizer of the run, whatever text it is given."""

import json
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab

from dragoman.evaluation.final_evaluation import FinalEvaluation, evaluate_run
from dragoman.run.config import build_settings
from dragoman.run.errors import UserError
from dragoman.translation.translator import LoadedRun

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


def evaluate(run: LoadedRun, lines: list[str], **options: Any) -> FinalEvaluation:
    text = run.checkpoint.parent / "text"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return evaluate_run(run, text, text, lambda _: None, **options)


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
    assert "|tok:intl" in evaluate(loaded_run(tmp_path, "char"), JAPANESE, tokenizer="intl").score.signature


def test_a_missing_tokenizer_is_told_before_anything_is_translated(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    run = loaded_run(tmp_path, "ja-mecab")
    with pytest.raises(UserError, match=r"dragoman\[ja\].*--tokenizer char"):
        evaluate(run, JAPANESE)
    assert not run.translator.num_translated
