"""BLEU and chrF by sacreBLEU, with the signatures that make them comparable; the only file that knows sacreBLEU."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman.run.errors import UserError


@dataclass(frozen=True)
class Score:
    """How close translations are to their references, 0 to 100, and how that was computed."""

    bleu: float
    signature: str
    chrf: float
    chrf_signature: str


def score_translations(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU (13a, exponential smoothing) and chrF2 of detokenised text, one reference each."""
    _check_pairs(len(hypotheses), len(references))
    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    # A signature is complete only after scoring: it then knows the number of references.
    return Score(bleu_score, str(bleu.get_signature()), chrf_score, str(chrf.get_signature()))


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """What the BLEU of any selection of sentences can be summed up from, sentence by sentence.

    Length of the translation and of the reference, then matching and possible n-grams of 1 to 4 words.
    """
    _check_pairs(len(hypotheses), len(references))
    # Effective order concerns the score of one sentence, which is not asked for; without it sacreBLEU would warn.
    bleu = BLEU(effective_order=True)
    scores = (bleu.sentence_score(*pair) for pair in zip(hypotheses, ([each] for each in references), strict=True))
    return [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]


def teacher_forced_bleu(predicted_pieces: Sequence[str], reference_pieces: Sequence[str]) -> float:
    """BLEU-4 over subword pieces (separated by spaces) without smoothing, 0 to 1: OpenSeq2Seq's "Eval BLUE score".

    The predictions were made with the reference before them, so this is not the quality of any translation.
    """
    _check_pairs(len(predicted_pieces), len(reference_pieces))
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    numbers: dict[str, int] = {}
    predicted, references = _number_pieces(predicted_pieces, numbers), _number_pieces(reference_pieces, numbers)
    return float(bleu.corpus_score(predicted, [references]).score) / 100


def _number_pieces(lines: Sequence[str], numbers: dict[str, int]) -> list[str]:
    """A number for each piece: BLEU only asks which are equal, and one with U+00A0 inside would be cut in two."""
    return [
        " ".join(str(numbers.setdefault(piece, len(numbers))) for piece in line.split(" ") if piece) for line in lines
    ]


def _check_pairs(num_hypotheses: int, num_references: int) -> None:
    if num_hypotheses != num_references:
        raise UserError(
            f"There are {num_hypotheses:,} translations but {num_references:,} references: "
            "line N of one must belong to line N of the other."
        )
    if not num_hypotheses:
        raise UserError("There is nothing to score: give at least one translation and its reference.")
