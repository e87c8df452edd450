"""Scores against numbers from sacreBLEU's own command line and from counting by hand."""

import math

import pytest
import sacrebleu

from dragoman.evaluation.scores import score_translations, teacher_forced_bleu
from dragoman.run.errors import UserError

REFERENCES = ["The cat sat on the mat.", "He went home, didn’t he?", "Ein Mann schläft auf der Bank."]
HYPOTHESES = ["The cat is on the mat.", "He went home, did he?", "Ein Mann schläft auf einer grünen Bank."]


def test_scores_are_those_of_the_command_line() -> None:
    """Golden: `sacrebleu references -i hypotheses -m bleu chrf -w 6`, version 2.6.0."""
    score = score_translations(HYPOTHESES, REFERENCES)
    assert score.bleu == pytest.approx(45.985579, abs=1e-6)
    assert score.chrf == pytest.approx(70.236419, abs=1e-6)


def test_signatures_are_complete() -> None:
    score, version = score_translations(HYPOTHESES, REFERENCES), sacrebleu.__version__
    assert score.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    assert score.chrf_signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"


def test_bleu_by_hand() -> None:
    """Matches in the golden corpus: 18 of 22 words, 12 of 19 pairs, 6 of 16 triples, 3 of 13 fours."""
    expected = 100 * (18 / 22 * 12 / 19 * 6 / 16 * 3 / 13) ** 0.25  # longer than the references: no brevity penalty
    assert score_translations(HYPOTHESES, REFERENCES).bleu == pytest.approx(expected)


@pytest.mark.parametrize(("hypotheses", "bleu"), [(REFERENCES, 100.0), (["", "", ""], 0.0)])
def test_the_ends_of_the_scale(hypotheses: list[str], bleu: float) -> None:
    assert score_translations(hypotheses, REFERENCES).bleu == pytest.approx(bleu)


@pytest.mark.parametrize("score", [score_translations, teacher_forced_bleu])
def test_unequal_or_empty_input_is_a_user_error(score) -> None:
    with pytest.raises(UserError, match="1 translations but 2 references"):
        score(["a"], ["a", "b"])
    with pytest.raises(UserError, match="nothing to score"):
        score([], [])


@pytest.mark.parametrize(
    ("predicted", "reference", "expected"),
    [
        ("▁a ▁b ▁c ▁d", "▁a ▁b ▁c ▁d", 1.0),
        ("▁a ▁b ▁c ▁d ▁e", "▁a ▁b ▁c ▁d ▁f", (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        ("▁a ▁b ▁c ▁d", "▁a ▁b ▁c ▁d ▁e", math.exp(1 - 5 / 4)),  # brevity penalty alone
        ("▁a ▁b ▁c ▁x", "▁a ▁b ▁c ▁d", 0.0),  # no four in common, and no smoothing
        ("▁a , . ▁d", "▁a , . ▁d", 1.0),  # no tokenization: punctuation is a subword like any other
        ("▁a \u00a0 ▁c ▁d", "▁a \u00a0 ▁c ▁d", 1.0),
        ("▁a \u00a0 ▁c ▁d ▁e", "▁a ▁c ▁d ▁e ▁f", 0.0),  # a subword that is a space counts too, so no four in common
    ],
)
def test_teacher_forced_bleu_by_hand(predicted: str, reference: str, expected: float) -> None:
    assert teacher_forced_bleu([predicted], [reference]) == pytest.approx(expected, abs=1e-9)


def test_teacher_forced_bleu_counts_over_the_corpus() -> None:
    """Matches are summed over sentences before they are divided, and a sentence of three subwords has no fours."""
    predicted, reference = ["▁a ▁b ▁c ▁d ▁e", "▁x ▁y ▁z"], ["▁a ▁b ▁c ▁d ▁e", "▁x ▁y ▁w"]
    expected = (7 / 8 * 5 / 6 * 3 / 4 * 2 / 2) ** 0.25
    assert teacher_forced_bleu(predicted, reference) == pytest.approx(expected)
