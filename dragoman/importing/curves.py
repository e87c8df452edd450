"""Turns curves into records: their tags become figures, and all figures of one step become one record."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dragoman.importing.imported_run import ImportedRun
from dragoman.run.records import LARGEST_NUMBER

SPLIT_FOLDERS = ("train", "train_inner", "valid", "eval")
"""Folders in which trainers keep the curves of one split: the name of the folder belongs to the tag."""
_MAX_CURVES = 500
_MAX_POINTS = 50_000
_MAX_RESTARTS = 1_000

_KNOWN_TAGS = {
    "train_loss": ("train", "loss"),
    "eval_loss": ("evaluation", "loss"),
    "eval_bleu_score": ("evaluation", "bleu"),
    "eval_teacher_forced_bleu": ("evaluation", "teacher_forced_bleu"),
    "learning_rate": ("train", "learning_rate"),
    "loss_optimization/global_gradient_norm": ("train", "gradient_norm"),
    "loss_optimization/loss_scale": ("train", "loss_scale"),
    "global_step/sec": ("train", "steps_per_second"),
    "target_tokens_per_second": ("train", "target_tokens_per_second"),
    "seconds_per_step": ("train", "seconds_per_step"),
    "train/loss": ("train", "loss"),
    "eval/loss": ("evaluation", "loss"),
    "train/train_batch_loss": ("train", "loss"),
    "train_inner/loss": ("train", "loss"),
    "valid/loss": ("evaluation", "loss"),
    "progress/xent": ("train", "loss"),
    "progress/tgtper": ("train", "target_tokens_per_second"),
}
_DEV_WORDS = {"valid", "validation", "val", "eval", "evaluation", "dev", "test"}
_IGNORED_WORDS = {"best", "min", "max", "samples", "flos", "runtime", "predicted", "prediction", "wall"}
# The first match counts: "loss_scale" stands before "loss".
_FIGURE_WORDS = (
    (re.compile(r"bleu"), "bleu"),
    (re.compile(r"chrf"), "chrf"),
    (re.compile(r"\bppl\b|perplexity"), "perplexity"),
    (re.compile(r"\bacc\b|accuracy"), "accuracy"),
    (re.compile(r"loss scale"), "loss_scale"),
    (re.compile(r"grad(?:ient)? norm|\bgnorm\b|global norm"), "gradient_norm"),
    (re.compile(r"\blr\b|learning ?rate|learn rate"), "learning_rate"),
    (re.compile(r"\bups\b|steps? (?:per )?sec(?:ond)?\b"), "steps_per_second"),
    (re.compile(r"\bwps\b|\btgtper\b|(?:tokens|words) per sec"), "target_tokens_per_second"),
    (re.compile(r"nll loss"), "nll_loss"),
    (re.compile(r"loss\b|\bxent\b|\bnll\b|\bcost\b|cross entropy"), "loss"),
)
_EVALUATION_ONLY = ("bleu", "chrf")
_EVALUATED = ("loss", "nll_loss", "perplexity", "accuracy", "bleu", "chrf", "teacher_forced_bleu")


def figure_of(tag: str) -> tuple[str, str] | None:
    """Returns the kind of record and the name of the figure for a tag or a column; None if it is not used."""
    if known := _KNOWN_TAGS.get(tag.lower()):
        return known
    # Split "TrainLoss" into the same words as "train/loss".
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tag[:200])
    words = re.sub(r"[^a-z0-9]+", " ", spaced.lower()).strip()
    name = next((name for pattern, name in _FIGURE_WORDS if pattern.search(words)), None)
    split = set(words.split())
    if name is None or split & _IGNORED_WORDS:
        return None
    is_dev = bool(split & _DEV_WORDS) or name in _EVALUATION_ONLY
    if is_dev and name not in _EVALUATED:
        return None
    return ("evaluation" if is_dev else "train"), name


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


class Curves:
    """Collects points by tag, then adds them to a run as records."""

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}

    def add(self, tag: str, step: int, time: float | None, value: float) -> None:
        """Adds a point of a curve; ignores impossible steps."""
        if not 0 <= step <= LARGEST_NUMBER:
            return
        curve = self._curves.get(tag)
        if curve is None:
            if len(self._curves) >= _MAX_CURVES or figure_of(tag) is None:
                return
            curve = self._curves[tag] = _Curve(tag)
        curve.add(step, time, value)

    def write_to(self, run: ImportedRun) -> None:
        """Adds one record per step and kind; of several curves for one figure only the best known is used."""
        chosen = self._choose(run)
        is_fairseq = any(tag.startswith("train_inner/") for tag in self._curves)
        if any(name == "loss" for _, name in chosen):
            unit = "nats per token (converted from base 2)" if is_fairseq else "unknown"
            run.facts.setdefault("loss_unit", unit)
        train = {name: curve for (kind, name), curve in chosen.items() if kind == "train"}
        evaluation = {name: curve for (kind, name), curve in chosen.items() if kind == "evaluation"}
        _add_loss_of_perplexity(run, train)
        _add_loss_of_perplexity(run, evaluation)
        if is_fairseq:
            _to_nats(train)
            _to_nats(evaluation)
        _name_bleu(run, evaluation)
        _write_restarts(run, train or evaluation)
        _write_train(run, train)
        for step in _steps_of(evaluation):
            run.add_evaluation(step, **_figures_at(evaluation, step))

    def _choose(self, run: ImportedRun) -> dict[tuple[str, str], _Curve]:
        chosen: dict[tuple[str, str], _Curve] = {}
        for curve in sorted(self._curves.values(), key=_rank):
            figure = figure_of(curve.tag)
            if figure is None:
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
    return not tag.startswith("train_inner/"), tag not in _KNOWN_TAGS, "epoch" in tag, -len(curve.steps), curve.tag


def _changed(curve: _Curve, change: Callable[[float], float]) -> _Curve:
    points = {step: (time, change(value)) for step, (time, value) in curve.points.items()}
    return _Curve(curve.tag, curve.steps, points, curve.restarts)


def _add_loss_of_perplexity(run: ImportedRun, curves: dict[str, _Curve]) -> None:
    if "perplexity" in curves and "loss" not in curves:
        curves["loss"] = _changed(curves["perplexity"], lambda value: math.log(value) if value > 0 else math.nan)
        run.facts.setdefault("loss_unit", "nats per token")
        run.note(f"The loss is the logarithm of the perplexity {curves['perplexity'].tag!r}.")


def _to_nats(curves: dict[str, _Curve]) -> None:
    for name in ("loss", "nll_loss"):
        # A loss computed from a perplexity is already in nats.
        if name in curves and not _is_perplexity(curves[name]):
            curves[name] = _changed(curves[name], lambda value: value * math.log(2))


def _is_perplexity(curve: _Curve) -> bool:
    figure = figure_of(curve.tag)
    return figure is not None and figure[1] == "perplexity"


def _name_bleu(run: ImportedRun, curves: dict[str, _Curve]) -> None:
    """Sets the kind of BLEU: values up to 1 are OpenSeq2Seq's teacher-forced BLEU, or a fraction to multiply by 100."""
    if "bleu" not in curves:
        return
    curve = curves["bleu"]
    run.facts.setdefault("bleu_kind", "unknown")
    finite = [value for _, value in curve.points.values() if math.isfinite(value)]
    if not finite or max(finite) > 1 or max(finite) == 0:
        return
    if curve.tag.lower().endswith("eval_bleu_score"):
        run.facts["bleu_kind"] = "teacher_forced"
        curves["teacher_forced_bleu"] = curves.pop("bleu")
    else:
        curves["bleu"] = _changed(curve, lambda value: 100 * value)
        run.note(f"The BLEU {curve.tag!r} is at most 1: it was taken as a fraction and multiplied by 100.")


def _write_restarts(run: ImportedRun, curves: dict[str, _Curve]) -> None:
    longest = max(curves.values(), key=lambda curve: len(curve.steps), default=None)
    for step, time in longest.restarts if longest else ():
        run.add_restart(step, cause="the curves go back to an earlier step", time=time)
    if longest and longest.restarts:
        run.facts.setdefault("num_attempts", len(longest.restarts) + 1)


def _write_train(run: ImportedRun, curves: dict[str, _Curve]) -> None:
    speeds = curves.pop("steps_per_second", None)
    clock = {} if speeds or "seconds_per_step" in curves else _seconds_per_step(curves)
    if clock:
        run.facts.setdefault("step_time_includes_evaluation", True)
    for step in _steps_of(curves if curves or not speeds else {"speed": speeds}):
        figures = _figures_at(curves, step)
        if speeds and step in speeds.points and (speed := speeds.points[step][1]) > 0:
            figures["seconds_per_step"] = 1 / speed
        elif step in clock:
            figures["seconds_per_step"] = clock[step]
        run.add_train(step, **figures)


def _seconds_per_step(curves: dict[str, _Curve]) -> dict[int, float]:
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


def _steps_of(curves: dict[str, _Curve]) -> list[int]:
    return sorted({step for curve in curves.values() for step in curve.steps})


def _figures_at(curves: dict[str, _Curve], step: int) -> dict[str, Any]:
    points = {name: curve.points[step] for name, curve in curves.items() if step in curve.points}
    times = [time for time, _ in points.values() if time is not None]
    return {name: value for name, (_, value) in points.items()} | ({"time": times[0]} if times else {})
