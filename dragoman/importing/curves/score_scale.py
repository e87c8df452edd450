"""Brings the scores of a run to one scale: BLEU, chrF and TER from 0 to 100, accuracy from 0 to 1."""

from typing import Any

from dragoman.importing.imported_run import ImportedRun

_BEST_BLEU_OF_BAD_MODEL = 40.0
_LOSS_OF_BAD_MODEL = 2.5
"""No model with such a loss per token reaches such a BLEU: a BLEU of 0.6 is then 0.6 of 100, not 60."""
_LARGEST_TER_FRACTION = 2.0


def scale_scores(run: ImportedRun, are_fractions: bool = False) -> None:
    """Multiplies scores that are fractions by 100 and says so; `are_fractions` if the trainer always writes such."""
    evaluations = [record for record in run.records if record["kind"] == "evaluation"]
    if any("bleu" in record for record in evaluations):
        run.facts.setdefault("bleu_kind", "unknown")
    for name, title, is_fraction in (
        ("bleu", "BLEU", are_fractions or _is_bleu_fraction(evaluations)),
        ("chrf", "chrF", _is_at_most(evaluations, "chrf", 1.0)),
        ("ter", "TER", _is_at_most(evaluations, "ter", _LARGEST_TER_FRACTION)),
    ):
        scored = [record for record in evaluations if name in record]
        if scored and is_fraction:
            run.note(f"The {title} is written as a fraction: it was multiplied by 100.")
            for record in scored:
                record[name] *= 100
    if not _is_at_most(evaluations, "accuracy", 1.0):  # OpenNMT-py and Eole write percent
        for record in evaluations:
            if "accuracy" in record:
                record["accuracy"] /= 100


def _is_at_most(evaluations: list[dict[str, Any]], name: str, limit: float) -> bool:
    return 0 < max((record.get(name, 0.0) for record in evaluations), default=0.0) <= limit


def _is_bleu_fraction(evaluations: list[dict[str, Any]]) -> bool:
    """Whether a BLEU of at most 1 is a fraction: not beside a chrF of 0 to 100, nor beside a very large loss."""
    if not _is_at_most(evaluations, "bleu", 1.0):
        return False
    best = max((record for record in evaluations if "bleu" in record), key=lambda record: float(record["bleu"]))
    is_bad_model = best.get("loss", 0.0) > _LOSS_OF_BAD_MODEL and 100 * best["bleu"] > _BEST_BLEU_OF_BAD_MODEL
    has_percent_chrf = max((record.get("chrf", 0.0) for record in evaluations), default=0.0) > 1
    # sacrebleu 1.x wrote chrF as a fraction and BLEU not, never the other way round.
    return not is_bad_model and not has_percent_chrf
