"""BLEU and chrF by sacreBLEU, with the signatures that make them comparable; the only module that imports sacreBLEU."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman.run.errors import UserError


@dataclass(frozen=True)
class Score:
    """BLEU and chrF of translations, 0 to 100, with the signatures of their computation."""

    bleu: float
    signature: str
    chrf: float
    chrf_signature: str


def score_translations(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Computes corpus BLEU (13a, exponential smoothing) and chrF2 of detokenised text, with one reference each."""
    _check_pairs(len(hypotheses), len(references))
    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    # A signature is complete only after scoring, because it includes the number of references.
    return Score(bleu_score, str(bleu.get_signature()), chrf_score, str(chrf.get_signature()))


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """Returns, for each sentence, the counts whose sums give the BLEU of any set of sentences.

    Length of the translation and of the reference, then matching and possible n-grams of 1 to 4 words.
    """
    _check_pairs(len(hypotheses), len(references))
    # Effective order only changes the score of one sentence, which is not used; without it sacreBLEU would warn.
    bleu = BLEU(effective_order=True)
    scores = (bleu.sentence_score(*pair) for pair in zip(hypotheses, ([each] for each in references), strict=True))
    return [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]


def teacher_forced_bleu(predicted_subwords: Sequence[str], reference_subwords: Sequence[str]) -> float:
    """Computes BLEU-4 over subwords (separated by spaces) without smoothing, 0 to 1: OpenSeq2Seq's "Eval BLUE score".

    Each prediction was made given the reference before it, so this does not measure the quality of translations.
    """
    _check_pairs(len(predicted_subwords), len(reference_subwords))
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    numbers: dict[str, int] = {}
    predicted, references = _number_subwords(predicted_subwords, numbers), _number_subwords(reference_subwords, numbers)
    return float(bleu.corpus_score(predicted, [references]).score) / 100


def _number_subwords(lines: Sequence[str], numbers: dict[str, int]) -> list[str]:
    """Replaces each subword by a number, because sacreBLEU would split one that contains U+00A0."""
    return [
        " ".join(str(numbers.setdefault(subword, len(numbers))) for subword in line.split(" ") if subword)
        for line in lines
    ]


def _check_pairs(num_hypotheses: int, num_references: int) -> None:
    if num_hypotheses != num_references:
        raise UserError(
            f"There are {num_hypotheses:,} translations but {num_references:,} references: "
            "line N of one must belong to line N of the other."
        )
    if not num_hypotheses:
        raise UserError("There is nothing to score: give at least one translation and its reference.")
