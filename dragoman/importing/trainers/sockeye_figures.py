"""Names and units of Sockeye's figures, the same in its log, its metrics file and its TensorBoard files."""

import math
from typing import Any

from dragoman.importing.curves.score_scale import scale_scores
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import is_usable, loss_of_perplexity

TRAINER = "Sockeye"

RUNNING_MEAN = "The training loss is the mean since the last checkpoint, as Sockeye logs it."
_PERPLEXITIES = ("perplexity", "ppl")
_CROSS_ENTROPIES = ("cross-entropy", "ce")
_SCORES = {"bleu": "bleu", "chrf": "chrf", "ter": "ter", "accuracy": "accuracy", "acc": "accuracy"}
_NO_SCORES = (*_PERPLEXITIES, *_CROSS_ENTROPIES, *_SCORES, "avg-sec-per-sent", "decode-walltime")
_MAX_OTHER_SCORES = 20


def train_loss_of(figures: dict[str, float]) -> float | None:
    """Returns the loss in nats per token of the words themselves: further target factors have names of their own."""
    for name in _PERPLEXITIES:
        if name in figures:
            loss = loss_of_perplexity(figures[name])
            return math.nan if loss is None else loss
    return next((figures[name] for name in _CROSS_ENTROPIES if name in figures), None)


def evaluation_of(figures: dict[str, float]) -> dict[str, Any]:
    """Returns the figures of an evaluation under our names; all other scores under Sockeye's own."""
    found: dict[str, Any] = {ours: figures[name] for name, ours in _SCORES.items() if name in figures}
    if (loss := train_loss_of(figures)) is not None:
        found["loss"] = loss
    perplexity = next((figures[name] for name in _PERPLEXITIES if name in figures), None)
    found |= {} if perplexity is None else {"perplexity": perplexity}
    others = {name: value for name, value in figures.items() if name not in _NO_SCORES and is_usable(value)}
    if others:
        found["other_scores"] = dict(list(others.items())[:_MAX_OTHER_SCORES])
    return found | ({"seconds": figures["decode-walltime"]} if "decode-walltime" in figures else {})


def checkpoint_path(checkpoint: int) -> str:
    """Returns the name of the file that Sockeye gives to the parameters of a checkpoint."""
    return f"params.{checkpoint:05}"


def finish_run(run: ImportedRun) -> None:
    """Adds what is the same for every source of a run."""
    # Sockeye writes BLEU from 0 to 1, computed on tokens as they are in the training files.
    run.facts.setdefault("bleu_kind", "tokenised")
    scale_scores(run, are_fractions=True)
    run.facts["loss_unit"] = "nats per token"
    run.note_missing_facts()
