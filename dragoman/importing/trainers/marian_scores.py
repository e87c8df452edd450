"""Brings the costs and validation figures of a Marian log into one unit, after all its lines were read.

A cost is a mean per token, per sentence or per batch, as --cost-type says; validation figures have units of their own.
Which unit serves both is known only at the end of the log.
"""

from typing import Any, Literal

from dragoman.importing.imported_run import LOSS_IS_LOG_PERPLEXITY, ImportedRun
from dragoman.importing.log_text import loss_of_perplexity, parse_number

Unit = Literal["token", "sentence", "batch", "unknown"]

INTERVAL = "marian_interval"
FIGURES = "marian_figures"
"""Names under which a record keeps what Marian logged until `settle` is called."""

_UNITS: dict[str, Unit] = {
    "ce-mean-words": "token",
    "perplexity": "token",
    "ce-mean": "sentence",
    "cross-entropy": "sentence",
    "ce-sum": "batch",
}
_LARGEST_TOKEN_LOSS = 15.0
"""Guessing among a million subwords costs less: a larger cost is not a mean over tokens."""
_BLEU_KINDS = {
    "bleu-detok": "detokenised",
    "bleu": "tokenised",
    "bleu-segmented": "tokenised",
    "translation": "unknown",
}
"""Metrics that are a BLEU, the most reliable first."""
_LOSSES = ("cross-entropy", "ce-mean", "ce-mean-words", "ce-sum", "perplexity")
_OWN_FIELDS = ("chrf", "ter", "accuracy", "perplexity")


def unit_of_cost(part: str, cost_type: Any) -> Unit:
    """Returns what a cost such as "Cost 5.12 * 1,234 after 1,234" is a mean over."""
    return "token" if " * " in part else _UNITS.get(str(cost_type), "unknown")


def metric_name(metric: str) -> str:
    """Returns our name of the figure that a validation metric of Marian becomes."""
    return "bleu" if metric in _BLEU_KINDS else "loss" if metric in _LOSSES else metric


def settle(run: ImportedRun, cost_unit: Unit) -> None:
    """Replaces the costs of train records and the figures of evaluations by losses and scores of one unit."""
    train = [record for record in run.records if record["kind"] == "train"]
    evaluations = [record for record in run.records if record["kind"] == "evaluation"]
    names = {name for record in evaluations for name in record.get(FIGURES, {})}
    cost_unit = _guess_unit(train) if cost_unit == "unknown" else cost_unit
    unit = _choose_unit(names, cost_unit)
    for record in train:
        cost, factor = record.pop("loss", None), _factor(record, cost_unit, unit)
        record.pop(INTERVAL, None)
        if cost is not None and factor is not None:
            record["loss"] = cost * factor
    for record in evaluations:
        _settle_evaluation(run, record, record.pop(FIGURES, {}), unit)
    run.facts["loss_unit"] = "unknown" if unit == "unknown" else f"nats per {unit}"
    if train:
        _note_units(run, cost_unit, unit)
    if unit == "sentence":
        run.note(
            "Losses are in nats per sentence, because the dev set is: add perplexity or ce-mean-words to "
            "--valid-metrics for losses per token."
        )


def _guess_unit(train: list[dict[str, Any]]) -> Unit:
    """Guesses the unit from the first cost: ce-mean was the default of the versions that show no labels."""
    for record in train:
        cost, factor = record.get("loss"), _factor(record, "sentence", "token")
        if cost is not None and factor is not None:
            return "sentence" if cost > _LARGEST_TOKEN_LOSS >= cost * factor else "unknown"
    return "unknown"


def _choose_unit(names: set[str], cost_unit: Unit) -> Unit:
    """Chooses nats per token, unless the dev set is measured per sentence only."""
    if names & {"perplexity", "ce-mean-words"}:
        return "token"
    if names & {"cross-entropy", "ce-mean"}:
        return "sentence"
    return "unknown" if cost_unit == "unknown" else "token"


def _factor(record: dict[str, Any], given: Unit, wanted: Unit) -> float | None:
    """Returns the factor from one unit to the other in the interval of a record; None where it cannot be known."""
    if given == wanted:
        return 1.0
    interval = record.get(INTERVAL, {})
    counts = {"token": interval.get("words"), "sentence": interval.get("sentences"), "batch": interval.get("updates")}
    numerator, denominator = counts.get(given), counts.get(wanted)
    return numerator / denominator if numerator and denominator else None


def _settle_evaluation(run: ImportedRun, record: dict[str, Any], figures: dict[str, float], unit: Unit) -> None:
    bleu_name = next((name for name in _BLEU_KINDS if name in figures), None)
    if bleu_name:
        record["bleu"] = figures[bleu_name]
        run.facts["bleu_kind"] = _BLEU_KINDS[bleu_name]
    if bleu_name == "translation":
        run.note("The BLEU is what the validation script printed; the log does not say how it was computed.")
    record |= {name: figures[name] for name in _OWN_FIELDS if name in figures}
    others = {name: value for name, value in figures.items() if name not in (*_OWN_FIELDS, *_LOSSES, bleu_name)}
    if others:
        record["other_scores"] = others
    loss = _evaluation_loss(run, figures, unit)
    if loss is not None:
        record["loss"] = loss


def _evaluation_loss(run: ImportedRun, figures: dict[str, float], unit: Unit) -> float | None:
    if unit == "sentence":
        return figures.get("cross-entropy", figures.get("ce-mean"))
    if "ce-mean-words" in figures:
        return figures["ce-mean-words"]
    loss = loss_of_perplexity(figures.get("perplexity"))
    if loss is not None:
        run.note(LOSS_IS_LOG_PERPLEXITY)
    return loss


def _note_units(run: ImportedRun, cost_unit: Unit, unit: Unit) -> None:
    if cost_unit == "unknown" and unit != "unknown":
        run.note("The training loss is left out: the log does not say whether Marian's cost is per token or sentence.")
    elif cost_unit != unit:
        run.note(f"Marian's cost, a mean per {cost_unit}, was converted to nats per {unit}.")
    smoothing = run.printed_config.get("label-smoothing", "0")
    if isinstance(smoothing, str) and (parse_number(smoothing) or 0.0) > 0:
        run.note("The training loss includes label smoothing, the loss of the dev set does not.")
