"""Finds out from the log of any trainer what went wrong, at which step, and whether training went on."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dragoman.diagnosis.importing.failure_signs import CUES, HARMLESS, SIGNS, UNKNOWN_ERROR, Rank, Sign
from dragoman.diagnosis.importing.foreign_run import Failure, ForeignRun
from dragoman.diagnosis.importing.log_text import clean_text

MAX_CHARACTERS = 2_000
"""Of a line that is searched."""
MAX_ORDINARY_LINES = 1_000
"""That are remembered, without their digits, so as not to search them again: it halves the time of a long log."""
MAX_TRACEBACK_LINES = 500
MAX_EVIDENCE_CHARACTERS = 400
SMALLEST_SOUND_LOSS_SCALE = 2.0**-6

_RANK_TAG = re.compile(r"\[rank[0-9]{1,6}\]: ?")
_ERROR_LINE = re.compile(
    r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Iteration|Exhausted|Failure|Fault|Timeout|Empty|Full)(?::|$)"
)
# Sentences of samples, by the trainers that print them.
_SAMPLE_LINE = re.compile(
    r"\b(?:source|reference|hypothesis|raw hypothesis|translation|target|prediction):\s"
    r"|\b(?:sent|pred|gold) [0-9]{1,9}:|\bbest translation [0-9]"
)


@dataclass
class _Sighting:
    """A sign that was seen, once or more often."""

    sign: Sign
    evidence: str
    first_step: int | None
    step: int | None
    count: int = 1
    went_on: bool = False


class FailureWatch:
    """Reads every line of a run; each line is to be given to the trainer's reader first, so that the step is known."""

    def __init__(self, run: ForeignRun) -> None:
        self._run = run
        self._sightings: dict[str, _Sighting] = {}
        self._are_all_old = True
        self._ordinary_lines: set[bytes] = set()
        self._num_traceback_lines = 0
        self._traceback_step: int | None = None

    def read(self, line: str) -> None:
        """Takes a line of the log."""
        if not self._are_all_old:
            self._see_whether_training_went_on()
        if line.startswith("***     "):
            return
        if self._num_traceback_lines:
            self._read_traceback(line)
        if not self._is_ordinary(line):
            self._search(line, line[:MAX_CHARACTERS].lower())

    def finish(self) -> None:
        """Adds the failures to the run, the gravest first; its reader must have finished."""
        if self._num_traceback_lines and self._traceback_step == self._run.newest_step:
            self._add(UNKNOWN_ERROR, "Traceback (most recent call last), and the log ends before the error itself")
        self._see_whether_training_went_on()
        causes = list(self._causes())
        self._add_nan()
        self._add_loss_scale()
        self._add_sightings(sighting for sighting in causes if not sighting.went_on)
        # What ended a run that learned nothing any more does not matter.
        if all(sighting.went_on for sighting in causes) and self._run.first_nan_step is None:
            self._add_early_end()
        self._add_sightings(sighting for sighting in causes if sighting.went_on)

    def _add_sightings(self, sightings: Iterable[_Sighting]) -> None:
        is_finished = bool(self._run.facts.get("is_finished"))
        for sighting in sightings:
            if sighting.went_on or not is_finished:
                self._run.add_failure(_as_failure(sighting))
            elif sighting.sign.rank != Rank.CONSEQUENCE:
                self._run.add_failure(_as_failure(sighting, after="training finished all the same"))

    def _is_ordinary(self, line: str) -> bool:
        """Whether the line has no cue; a trainer's lines differ in little but their digits, and cues have none."""
        text = line[:MAX_CHARACTERS].encode(errors="replace").translate(None, b"0123456789")
        if text in self._ordinary_lines:
            return True
        small = text.decode().lower()
        if any(cue in small for cue in CUES):
            return False
        if len(self._ordinary_lines) >= MAX_ORDINARY_LINES:
            self._ordinary_lines.clear()
        self._ordinary_lines.add(text)
        return True

    def _search(self, line: str, small: str) -> None:
        if tag := _RANK_TAG.match(small):
            line, small = line[tag.end() :], small[tag.end() :]
        if _SAMPLE_LINE.search(small) or HARMLESS.search(small):
            return
        if sign := _sign_in(small):
            self._add(sign, line)
        elif UNKNOWN_ERROR.pattern.search(small):
            self._num_traceback_lines = 1
            self._traceback_step = self._run.newest_step

    def _read_traceback(self, line: str) -> None:
        """Its error is the first line that looks like one; if that says what went wrong, it has a sign of its own."""
        line = _RANK_TAG.sub("", line[:MAX_CHARACTERS], count=1)
        self._num_traceback_lines += 1
        if _ERROR_LINE.match(line):
            self._num_traceback_lines = 0
            if not _sign_in(line.lower()):
                self._add(UNKNOWN_ERROR, line)
        elif self._num_traceback_lines > MAX_TRACEBACK_LINES:
            self._num_traceback_lines = 0

    def _add(self, sign: Sign, line: str) -> None:
        step = self._run.newest_step
        known = self._sightings.get(sign.what)
        if known is None or known.went_on:
            evidence = clean_text(line, MAX_EVIDENCE_CHARACTERS)
            first_step, count = (step, 0) if known is None else (known.first_step, known.count)
            known = self._sightings[sign.what] = _Sighting(sign, evidence, first_step, step, count)
            known.count += 1
            self._are_all_old = False

    def _see_whether_training_went_on(self) -> None:
        step = self._run.newest_step
        for sighting in self._sightings.values():
            sighting.went_on = sighting.went_on or sighting.step != step
        self._are_all_old = all(sighting.went_on for sighting in self._sightings.values())

    def _causes(self) -> Iterator[_Sighting]:
        """What was seen, without the consequences of something else at the same step."""
        worst: dict[int | None, Rank] = {}
        for sighting in self._sightings.values():
            worst[sighting.step] = min(sighting.sign.rank, worst.get(sighting.step, Rank.CONSEQUENCE))
        for sighting in self._sightings.values():
            is_noise = sighting.went_on and sighting.sign.is_noise_if_training_goes_on
            if sighting.sign.rank == worst[sighting.step] and not is_noise:
                yield sighting

    def _add_nan(self) -> None:
        step = self._run.first_nan_step
        if step is None:
            return
        good = self._run.last_finite_step
        before = "from the first logged step on" if good is None else f"the last good one was at step {good:,}"
        figures = _figures_before(self._run, step)
        known = [f"{name.replace('_', ' ')} {figures[name]:.4g}" for name in figures]
        what = f"The loss is not a number since step {step:,} ({', '.join([before, *known])})."
        self._run.add_failure(Failure(what, _nan_cause(self._run.facts, figures), step=step))

    def _add_loss_scale(self) -> None:
        newest = self._run.newest_step
        scale = None if newest is None else _figures_before(self._run, newest).get("loss_scale")
        if scale is not None and scale < SMALLEST_SOUND_LOSS_SCALE:
            what = f"The loss scale had fallen to {scale:.3g} at step {newest:,}."
            cause = (
                "Update after update overflowed in half precision and was skipped: lower the learning rate, warm up "
                "for longer, or train in bf16 or fp32."
            )
            self._run.add_failure(Failure(what, cause, step=newest))

    def _add_early_end(self) -> None:
        """For a log that just ends, with nothing that says why."""
        run = self._run
        step, planned = run.newest_step, run.facts.get("steps_planned")
        if run.facts.get("is_finished"):
            return
        if run.is_empty:
            what = "The log holds no step of training and no message that says why."
            cause = "The run ended before its first step or its output went elsewhere: look for other logs of the run."
            run.add_failure(Failure(what, cause))
        elif step is not None and (run.facts.get("is_finished") is False or (planned and step < planned)):
            of_planned = f" of {planned:,}" if isinstance(planned, int) else ""
            what = f"The log ends at step {step:,}{of_planned} without a word that training finished."
            cause = (
                "The run was stopped or killed, is still going, or the log was cut; continue from the newest "
                "checkpoint if more training is wanted."
            )
            run.add_failure(Failure(what, cause, step=step))


def _sign_in(small: str) -> Sign | None:
    return next((sign for sign in SIGNS if sign.pattern.search(small)), None)


def _as_failure(sighting: _Sighting, after: str = "") -> Failure:
    sign = sighting.sign
    place = "before the first step" if sighting.step is None else f"at step {sighting.step:,}"
    if sighting.count > 1:
        first = "before the first step" if sighting.first_step is None else f"at step {sighting.first_step:,}"
        place = f"{sighting.count} times, first {first} and last {place}"
    after = after or ("training went on" if sighting.went_on else "")
    if not after:
        return Failure(f"{sign.what} {place}.", sign.cause, sighting.evidence, sighting.step)
    cause = f"Not fatal: {after}. {sign.cause}"
    return Failure(f"{sign.what} {place}; {after}.", cause, sighting.evidence, sighting.step)


def _figures_before(run: ForeignRun, step: int) -> dict[str, float]:
    """The newest learning rate, loss scale and gradient norm up to a step."""
    figures: dict[str, float] = {}
    wanted = ("learning_rate", "loss_scale", "gradient_norm")
    for record in reversed(run.records):
        if record["kind"] == "train" and record["step"] <= step:
            figures = {name: record[name] for name in wanted if name in record} | figures
        if len(figures) == len(wanted):
            break
    return figures


def _nan_cause(facts: dict[str, Any], figures: dict[str, float]) -> str:
    if facts.get("loss_scaling") == "none" and facts.get("precision") in ("mixed", "fp16"):
        return (
            "Most likely mixed precision without loss scaling: gradients overflowed and nothing skipped the update. "
            "Switch loss scaling on (loss_scaling='Backoff') and start again from a checkpoint before that step."
        )
    if facts.get("precision") in ("mixed", "fp16"):
        cause = "Half precision overflowed or the learning rate was too high"
    else:
        cause = "The learning rate was too high, or a batch held something broken"
    rate = f" ({figures['learning_rate']:.3g})" if "learning_rate" in figures else ""
    return (
        f"{cause}: start again from a checkpoint before that step with a lower learning rate{rate}, a longer warm-up, "
        "or gradients clipped; every later checkpoint is worthless."
    )
