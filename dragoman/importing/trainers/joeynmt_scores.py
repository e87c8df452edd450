"""Puts JoeyNMT's figures on one scale: exact values of validations.txt, losses per token, chrF from 0 to 100.

The loss of the dev set that JoeyNMT prints is a sum over the dev set (version 1) or normalised like the training loss
(version 2), but its perplexity always is that of a token: the loss here is its logarithm. The training loss is a mean
over tokens only with "normalization: tokens".
"""

import re
from typing import Any

from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.log_text import NUMBER, loss_of_perplexity
from dragoman.importing.trainers.joeynmt_config import FIGURE_NAMES

_FIGURE = re.compile(rf"([A-Za-z][\w ]{{0,30}}+): *({NUMBER})(?![\w.])", re.ASCII)
_FIELDS = ("perplexity", "accuracy", "bleu", "chrf", "ter")
_NO_SCORES = {"loss", "lr", "step", "steps", "epoch", "duration", "generation", "evaluation"}
_UNITS = {"tokens": "nats per token", "batch": "nats per sentence", "none": "nats per batch"}
_OTHER_NAMES = {"nats per sentence": "loss_per_sentence", "nats per batch": "loss_per_batch"}
_LIKE_DEV_LOSS = (0.5, 2.0)
"""Ratio of training loss to dev loss early in a run that only a mean over tokens has: sentences are longer."""


def figures_of(text: str) -> dict[str, float]:
    """Reads the figures of a line by their names in lower case."""
    return {name.lower(): float(number) for name, number in _FIGURE.findall(text)}


def scores_of(figures: dict[str, float]) -> dict[str, Any]:
    """Returns the figures of an evaluation by their names here; scores that have none stay under their own."""
    scores: dict[str, Any] = {}
    others = {}
    for theirs, value in figures.items():
        name = FIGURE_NAMES.get(theirs, theirs)
        if name in _FIELDS:
            scores[name] = value
        elif theirs == "lr":
            scores["learning_rate"] = value
        elif theirs not in _NO_SCORES:
            others[theirs] = value
    if others:
        scores["other_scores"] = others
    if (loss := loss_of_perplexity(scores.get("perplexity"))) is None:
        scores.pop("perplexity", None)
    return scores | {"loss": loss}


def eval_metric_of(figures: dict[str, float]) -> str | None:
    """Returns the name of the first score of a line, which version 1 calls "eval_metric"."""
    return next((name for name in figures if name not in _NO_SCORES and name not in FIGURE_NAMES), None)


def add_exact_scores(run: ImportedRun, lines: dict[int, list[dict[str, Any]]]) -> None:
    """Replaces the rounded figures of the log by those of validations.txt, and adds evaluations the log lacks."""
    for record in run.records:
        if record["kind"] == "evaluation" and (candidates := lines.get(record["step"])):
            rounded = record.get("perplexity", 0.0)
            exact = min(candidates, key=lambda scores: abs(scores.get("perplexity", 0.0) - rounded))
            record.update({name: value for name, value in exact.items() if value is not None})
            candidates.remove(exact)
    known = {record["step"] for record in run.records if record["kind"] == "evaluation"}
    missing = [(step, scores) for step, found in lines.items() if step not in known for scores in found]
    for step, scores in missing:
        run.add_evaluation(step, **scores)
    if missing and not any(record["kind"] == "restart" for record in run.records):
        run.records.sort(key=lambda record: int(record["step"]))


def scale_chrf(run: ImportedRun) -> None:
    """Makes chrF a number from 0 to 100: most versions print it from 0 to 1."""
    scored = [record for record in run.records if record.get("chrf") is not None]
    if scored and max(record["chrf"] for record in scored) <= 1:
        for record in scored:
            record["chrf"] = round(record["chrf"] * 100, 6)


def settle_loss_unit(run: ImportedRun, normalization: str | None) -> None:
    """Sets the unit of the loss; a training loss in another unit than the dev loss gets a name of its own."""
    run.finish()
    has_dev_loss = any(record["kind"] == "evaluation" and "loss" in record for record in run.records)
    unit = _UNITS.get(normalization or "", "unknown")
    if unit == "unknown" and _is_like_dev_loss(run):
        unit = "nats per token"
        run.note(
            "The log does not show the setting training.normalization: the training loss is taken as a mean over "
            "tokens, because it is close to that of the dev set."
        )
    run.facts["loss_unit"] = "nats per token" if has_dev_loss else unit
    if unit == "nats per token" or not any(record["kind"] == "train" for record in run.records):
        return
    run.note(_describe_unit(unit))
    if has_dev_loss:
        _rename_training_loss(run, _OTHER_NAMES.get(unit, "loss_of_unknown_unit"))


def _is_like_dev_loss(run: ImportedRun) -> bool:
    """Compares the first dev loss with the training loss before it."""
    train = None
    for record in run.records:
        if record["kind"] == "train":
            train = record.get("loss", train)
        elif record["kind"] == "evaluation" and record.get("loss"):
            low, high = _LIKE_DEV_LOSS
            return train is not None and low <= train / record["loss"] <= high
    return False


def _describe_unit(unit: str) -> str:
    if unit == "unknown":
        return (
            "The log does not say what the training loss is a mean of (training.normalization): it cannot be compared "
            "with the loss of the dev set, which is per token."
        )
    per = unit.removeprefix("nats per ")
    return (
        f"JoeyNMT was set to sum up the training loss per {per}: it depends on the length of the sentences and cannot "
        "be compared with the loss of the dev set, which is per token."
    )


def _rename_training_loss(run: ImportedRun, name: str) -> None:
    for record in run.records:
        if record["kind"] == "train" and "loss" in record:
            record[name] = record.pop("loss")
