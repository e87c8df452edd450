"""All scores equal those of the command `sacrebleu` on the same files: corpus, sentences, several references."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.evaluation.scores import FullScore, Judge
from dragoman.run.config import ScoreTokenizer
from dragoman.run.errors import UserError

FIRST = ["The cat sat on the mat.", "He went home, didn’t he?", "Ein Mann schläft auf der Bank.", "Yes."]
SECOND = ["A cat was on the mat.", "He left, right?", "Ein Mann liegt schlafend auf der Bank.", "Indeed, yes."]
HYPOTHESES = ["The cat is on the mat.", "He went home, did he?", "Ein Mann schläft auf einer grünen Bank.", "No."]
JAPANESE = ["今日は雨が降る。", "先生が本を読む。", "猫がマットの上に座った。"]
ALMOST_JAPANESE = ["今日は雪が降る。", "先生が本を読む。", "猫はマットに座った。"]
CHINESE = ["今天下雨了。", "老师正在看一本书。"]
ALMOST_CHINESE = ["今天下雪了。", "老师在看一本书。"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def sacrebleu(*arguments: object) -> str:
    command = [sys.executable, "-m", "sacrebleu", "-w", "9", "--chrf-word-order", "2", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout


@pytest.mark.parametrize(
    ("references", "hypotheses", "tokenizer", "options"),
    [
        ([FIRST, SECOND], HYPOTHESES, "13a", []),
        ([JAPANESE], ALMOST_JAPANESE, "ja-mecab", ["--ter-normalized", "--ter-asian-support"]),
        ([CHINESE], ALMOST_CHINESE, "zh", ["--ter-normalized", "--ter-asian-support"]),
    ],
)
def test_scores_and_signatures_are_those_of_the_command_line(tmp_path, references, hypotheses, tokenizer, options):
    files = [write(tmp_path / f"reference{number}", lines) for number, lines in enumerate(references)]
    output = write(tmp_path / "hypotheses", hypotheses)
    printed = json.loads(
        sacrebleu(*files, "-i", output, "-m", "bleu", "chrf", "ter", "--tokenize", tokenizer, *options)
    )
    expected = {each["name"]: (each["score"], each["signature"]) for each in printed}
    score = Judge(references, tokenizer).score(hypotheses)
    assert (round(score.bleu, 9), score.signature) == expected["BLEU"]
    assert (round(score.chrfpp, 9), score.chrfpp_signature) == expected["chrF2++"]
    assert (round(score.ter, 9), score.ter_signature) == expected["TER"]


@pytest.mark.parametrize(("metric", "key"), [("bleu", "bleu"), ("chrf", "chrfpp"), ("ter", "ter")])
def test_sentences_are_scored_as_by_the_command_line(tmp_path, metric, key):
    files = [write(tmp_path / "first", FIRST), write(tmp_path / "second", SECOND)]
    printed = sacrebleu(*files, "-i", write(tmp_path / "out", HYPOTHESES), "-m", metric, "--sentence-level", "-b")
    expected = [float(line) for line in printed.split()]
    scores = Judge([FIRST, SECOND], "13a").score_sentences(HYPOTHESES)
    assert [round(getattr(score, key), 9) for score in scores] == expected


def test_a_missing_reference_is_no_reference():
    judge = Judge([FIRST, [SECOND[0], None, None, None]], "13a")
    assert "nrefs:var" in judge.score(HYPOTHESES).signature
    alone = Judge([FIRST], "13a").score_sentences(HYPOTHESES)
    assert judge.score_sentences(HYPOTHESES)[1:] == alone[1:]


def test_a_text_is_counted_once(monkeypatch):
    judge = Judge([FIRST], "13a")
    judge.score(HYPOTHESES)
    monkeypatch.setattr("sacrebleu.metrics.ter.translation_edit_rate", None)  # counting again would fail
    judge.score_sentences(HYPOTHESES)
    assert judge.score(HYPOTHESES).ter > 0


def test_other_numbers_of_lines_are_refused():
    with pytest.raises(UserError, match="1 translations but 4 references"):
        Judge([FIRST], "13a").score(["a"])


LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(LINE, LINE, LINE), min_size=1, max_size=4), st.sampled_from(["13a", "char", "zh"]))
def test_scores_of_any_text_are_numbers_in_their_range(rows: list[tuple[str, str, str]], tokenizer: ScoreTokenizer):
    hypotheses, first, second = (list(column) for column in zip(*rows, strict=True))
    judge = Judge([first, second], tokenizer)
    score: FullScore = judge.score(hypotheses)
    for each in (score, *judge.score_sentences(hypotheses)):
        assert 0 <= each.bleu <= 100 + 1e-9
        assert 0 <= each.chrfpp <= 100 + 1e-9
        assert 0 <= each.ter < float("inf")
