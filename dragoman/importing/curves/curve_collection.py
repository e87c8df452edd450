"""Turns curves into records: their tags become figures, and all figures of one step become one record."""

import math
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from dragoman.importing.curves.curve_tags import (
    FAIRSEQ,
    JOEYNMT,
    KNOWN_TAGS,
    LOSS_UNITS,
    OTHER_SCORE,
    SPLIT_FOLDERS,
    figure_of,
    trainer_of,
)
from dragoman.importing.curves.score_scale import scale_scores
from dragoman.importing.imported_run import ImportedRun
from dragoman.importing.nan_watch import NanWatch
from dragoman.run.records import LARGEST_NUMBER

__all__ = ["SPLIT_FOLDERS", "Curves", "figure_of"]

_MAX_CURVES = 500
_MAX_POINTS = 50_000
_MAX_RESTARTS = 1_000
_MEANS_OF_RUN = ("train/train_loss", "train/train_steps_per_second")
"""Tags that the HF Trainer writes once, at the end."""
_NATS = "nats per token"
_CLOSE = 0.02
"""Relative difference up to which a loss and the logarithm of a perplexity are the same figure."""


@dataclass
class _Curve:
    """Points of one tag in the order they were written; after a restart the newer points replace the older ones."""

    tag: str
    steps: list[int] = field(default_factory=list)
    points: dict[int, tuple[float | None, float]] = field(default_factory=dict)
    restarts: list[tuple[int, float | None]] = field(default_factory=list)
    _stride: int = 1
    _num_seen: int = 0

    def add(self, step: int, time: float | None, value: float) -> None:
        if self.steps and step < self.steps[-1]:
            if len(self.restarts) < _MAX_RESTARTS:
                self.restarts.append((step, time))
            while self.steps and self.steps[-1] >= step:
                del self.points[self.steps.pop()]
        self._num_seen += 1
        if self._num_seen % self._stride:
            return
        if step not in self.points:
            self.steps.append(step)
        self.points[step] = (time, value)
        if len(self.steps) > _MAX_POINTS:
            self._thin_out()

    def _thin_out(self) -> None:
        for step in self.steps[::2]:
            del self.points[step]
        del self.steps[::2]
        self._stride *= 2


_Named = dict[str, _Curve]
"""Curves by the names of their figures."""


class Curves:
    """Collects points by tag, then adds them to a run as records."""

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}
        self._tags: set[str] = set()

    def add(self, tag: str, step: int, time: float | None, value: float) -> None:
        """Adds a point of a curve; ignores impossible steps."""
        if not 0 <= step <= LARGEST_NUMBER:
            return
        curve = self._curves.get(tag)
        if curve is None:
            if len(self._tags) < _MAX_CURVES:
                self._tags.add(tag)
            if len(self._curves) >= _MAX_CURVES or figure_of(tag) is None:
                return
            curve = self._curves[tag] = _Curve(tag)
        curve.add(step, time, value)

    def write_to(self, run: ImportedRun, further_tags: Collection[str] = (), has_steps: bool = True) -> None:
        """Adds one record per step and kind; of several curves for one figure only the best known is used.

        `further_tags` help to recognise the trainer: columns that hold no curve, as the one of the steps. Without
        steps (a table of epochs) there is no time per step.
        """
        trainer = trainer_of({*self._tags, *further_tags})
        if trainer is not None:
            run.trainer = trainer
            run.note(f"The names of the curves are those of {trainer}.")
        chosen = self._choose(run)
        train = {name: curve for (kind, name), curve in chosen.items() if kind == "train"}
        evaluation = {name: curve for (kind, name), curve in chosen.items() if kind == "evaluation"}
        _set_units(run, trainer, train, evaluation)
        _name_openseq2seqs_bleu(run, evaluation)
        _write_restarts(run, train or evaluation)
        watch = NanWatch()
        _write_train(run, train, watch, _seconds_per_step(train) if has_steps else {})
        _write_evaluations(run, evaluation, watch)
        watch.finish(run)
        scale_scores(run)
        if ended := chosen.get(("end", "train_runtime")):
            _write_end(run, ended)

    def _choose(self, run: ImportedRun) -> dict[tuple[str, str], _Curve]:
        chosen: dict[tuple[str, str], _Curve] = {}
        for curve in sorted(self._curves.values(), key=_rank):
            figure = figure_of(curve.tag)
            if figure is None or (curve.tag in _MEANS_OF_RUN and "train/loss" in self._curves):
                continue
            if figure in chosen:
                kind, name = figure
                what = f"{'training' if kind == 'train' else kind} {name.replace('_', ' ')}"
                run.note(f"There are several curves for the {what}: {chosen[figure].tag!r} was used.")
            else:
                chosen[figure] = curve
        return chosen


def _rank(curve: _Curve) -> tuple[bool, bool, bool, int, str]:
    """Sorts by preference: fairseq's single steps, then known tags; means over epochs last; long curves first."""
    tag = curve.tag.lower()
    return not tag.startswith("train_inner/"), tag not in KNOWN_TAGS, "epoch" in tag, -len(curve.steps), curve.tag


def _changed(curve: _Curve, change: Callable[[float], float]) -> _Curve:
    points = {step: (time, change(value)) for step, (time, value) in curve.points.items()}
    return _Curve(curve.tag, curve.steps, points, curve.restarts)


# Units


def _set_units(run: ImportedRun, trainer: str | None, train: _Named, evaluation: _Named) -> None:
    """Brings all losses to nats per token as far as their unit is known, and says which unit they have."""
    if "negative_log_perplexity" in evaluation:
        negative = evaluation.pop("negative_log_perplexity")
        evaluation["loss"] = _changed(negative, lambda value: -value)
    if trainer == FAIRSEQ:
        _to_nats(train)
        _to_nats(evaluation)
    units = {}
    for name, curves in (("training", train), ("dev", evaluation)):
        if unit := _settle_unit(run, trainer, curves, name):
            units[name] = unit
    if "unknown" in units.values():
        run.facts.setdefault("loss_unit", "unknown")
        if len(set(units.values())) > 1:
            known, unknown = ("dev", "training") if units["training"] == "unknown" else ("training", "dev")
            run.note(
                f"The {known} loss is in nats per token, but the unit of the {unknown} loss is unknown (it may be per "
                "sentence): do not compare the two."
            )
    elif units:
        run.facts.setdefault("loss_unit", next(iter(units.values())))


def _settle_unit(run: ImportedRun, trainer: str | None, curves: _Named, what: str) -> str | None:
    """Returns the unit of a loss; a perplexity beside it shows the unit, or replaces it where they do not agree."""
    known = LOSS_UNITS.get(trainer or "")
    if "perplexity" not in curves:
        return (known or "unknown") if "loss" in curves else None
    if known and "loss" in curves:
        return known
    log = _changed(curves["perplexity"], lambda value: math.log(value) if value > 0 else math.nan)
    ratio = _ratio(curves["loss"], log) if "loss" in curves else None
    if ratio is not None and abs(ratio - 1) <= _CLOSE:
        return _NATS
    if ratio is not None and trainer != JOEYNMT and abs(ratio * math.log(2) - 1) <= _CLOSE:
        curves["loss"] = _changed(curves["loss"], lambda value: value * math.log(2))
        run.note(f"The {what} loss is written with base 2: it was converted to nats per token.")
        return _NATS
    curves["loss"] = log
    run.note(f"The {what} loss is the logarithm of the perplexity {log.tag!r}, in nats per token.")
    return _NATS


def _ratio(curve: _Curve, other: _Curve) -> float | None:
    """Returns the median ratio of two curves at the steps that both have."""
    pairs = ((curve.points[step][1], other.points[step][1]) for step in curve.steps if step in other.points)
    ratios = [value / base for value, base in pairs if math.isfinite(value) and math.isfinite(base) and base]
    return statistics.median(ratios) if ratios else None


def _to_nats(curves: _Named) -> None:
    for name in ("loss", "negative_log_likelihood"):
        if name in curves:
            curves[name] = _changed(curves[name], lambda value: value * math.log(2))


def _name_openseq2seqs_bleu(run: ImportedRun, curves: _Named) -> None:
    """Renames a BLEU up to 1 of the tag that OpenSeq2Seq and dragoman share: it is OpenSeq2Seq's teacher-forced one."""
    if "teacher_forced_bleu" in curves:
        run.facts.setdefault("bleu_kind", "teacher_forced")
    curve = curves.get("bleu")
    if curve is None or not curve.tag.lower().endswith("eval_bleu_score"):
        return
    finite = [value for _, value in curve.points.values() if math.isfinite(value)]
    if finite and 0 < max(finite) <= 1:
        run.facts["bleu_kind"] = "teacher_forced"
        curves["teacher_forced_bleu"] = curves.pop("bleu")


# Records


def _write_restarts(run: ImportedRun, curves: _Named) -> None:
    longest = max(curves.values(), key=lambda curve: len(curve.steps), default=None)
    for step, time in longest.restarts if longest else ():
        run.add_restart(step, cause="the curves go back to an earlier step", time=time)
    if longest and longest.restarts:
        run.facts.setdefault("num_attempts", len(longest.restarts) + 1)


def _write_train(run: ImportedRun, curves: _Named, watch: NanWatch, clock: dict[int, float]) -> None:
    speeds = curves.pop("steps_per_second", None)
    if speeds or "seconds_per_step" in curves:
        clock = {}
    if clock:
        run.facts.setdefault("step_time_includes_evaluation", True)
    for step in _steps_of(curves if curves or not speeds else {"speed": speeds}):
        figures = _figures_at(curves, step)
        loss = watch.add_train(step, figures.get("loss"), figures.get("gradient_norm"))
        if loss is not None:
            figures["loss"] = loss
        if speeds and step in speeds.points and (speed := speeds.points[step][1]) > 0:
            figures["seconds_per_step"] = 1 / speed
        elif step in clock:
            figures["seconds_per_step"] = clock[step]
        run.add_train(step, **figures)


def _write_evaluations(run: ImportedRun, curves: _Named, watch: NanWatch) -> None:
    for step in _steps_of(curves):
        figures = _figures_at(curves, step)
        loss = watch.add_evaluation(step, figures.get("loss"))
        run.add_evaluation(step, **(figures | {"loss": loss}))


def _write_end(run: ImportedRun, curve: _Curve) -> None:
    """Adds what the HF Trainer writes when training is over; the time is that of the last launch."""
    step = curve.steps[-1]
    if step < (run.newest_step or 0):
        return
    run.facts |= {"is_finished": True, "steps_done": step}
    run.end_launch("finished")


def _seconds_per_step(curves: _Named) -> dict[int, float]:
    """Computes seconds per step from the times of one curve, but not across a restart."""
    curve = curves.get("loss") or max(curves.values(), key=lambda curve: len(curve.steps), default=None)
    if curve is None:
        return {}
    restarted = {step for step, _ in curve.restarts}
    seconds = {}
    for before, step in zip(curve.steps, curve.steps[1:], strict=False):
        began, ended = curve.points[before][0], curve.points[step][0]
        if began is not None and ended is not None and ended > began and step not in restarted:
            seconds[step] = (ended - began) / (step - before)
    return seconds


def _steps_of(curves: _Named) -> list[int]:
    return sorted({step for curve in curves.values() for step in curve.steps})


def _figures_at(curves: _Named, step: int) -> dict[str, Any]:
    points = {name: curve.points[step] for name, curve in curves.items() if step in curve.points}
    times = [time for time, _ in points.values() if time is not None]
    figures: dict[str, Any] = {name: value for name, (_, value) in points.items() if not name.startswith(OTHER_SCORE)}
    others = {name.removeprefix(OTHER_SCORE): value for name, (_, value) in points.items() if name not in figures}
    if others:
        figures["other_scores"] = {name: value for name, value in others.items() if math.isfinite(value)}
    return figures | ({"time": times[0]} if times else {})
