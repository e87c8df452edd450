"""Finds what made a run fail in the lines of any trainer's log."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from importlib.resources import files
from typing import Any

from dragoman.importing.imported_run import ImportedRun, LogFailure
from dragoman.importing.log_text import clean_text


class Role(IntEnum):
    """Role of a failure among several at the same step: only those with the lowest value are reported."""

    CAUSE = 0
    STOPPED = 1
    UNKNOWN_ERROR = 2
    CONSEQUENCE = 3


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure and the lines that show it."""

    pattern: str
    """Regular expression for lines in lower case."""
    what: str
    """Message about what happened; the step is added to its end."""
    cause: str
    """Why, and what to do."""
    role: Role = Role.CAUSE
    is_harmless_if_training_continues: bool = False

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def is_shown_by(self, lowered: str) -> bool:
        """Whether a line, in lower case, shows this failure."""
        return self._regex.search(lowered) is not None


# fmt: off
_CUES = (
    "allocate memory", "bad_alloc", "became nan", "broken pipe", "can't open", "cancelled", "command not found",
    "connection closed", "could not", "cuda driver", "cuda gpu", "cuda-capable", "denied", "device ordinal",
    "device-side", "diverged", "ecc", "error", "exception", "exit code", "exitcode", "exited", "exploded", "fail",
    "gpu memory", "illegal memory", "interrupt", "is inf", "is nan", "kernel image", "kex_exchange", "kill",
    "loss scale", "mpi_abort", "nan in summary", "nanloss", "no module", "no space", "no such ", "not known",
    "nvidia driver", "of memory", "oom when", "oom-", "orted", "quota", "refused", "reset by peer", "resol",
    "retrying", "route to", "segmentation", "shut down", "sigint", "signal", "sigterm", "slots", "socketstartconnect",
    "stalled", "submitted", "terminat", "time limit", "timed out", "timeout", "traceback", "unable to", "unhandled",
    "unreachable", "unrecognized", "verification", "version mismatch", "was nan", "with cuda", "xid",
)
# fmt: on
"""Every line that shows a failure has one of these, in lower case: all other lines are skipped quickly."""

_UNKNOWN_ERROR = FailureKind(
    r"^traceback \(most recent call last\)",
    "The program stopped with an error",
    "The message names the error; the traceback in the log says where it happened.",
    Role.UNKNOWN_ERROR,
)

HARMLESS = re.compile(
    r"unable to find any relevant network interfaces|another transport will be used|_internal\.py|tf_logging\.py"
)
"""Open MPI uses sockets if there is no InfiniBand; TensorBoard's web server logs errors of its visitors."""


def _load_kinds() -> tuple[FailureKind, ...]:
    """Reads the known kinds of failure from failure_kinds.toml."""
    text = files("dragoman.importing").joinpath("failure_kinds.toml").read_text(encoding="utf-8")
    return tuple(
        FailureKind(
            "|".join(entry["patterns"]),
            entry["what"],
            entry["cause"],
            Role[entry.get("role", "CAUSE")],
            entry.get("is_harmless_if_training_continues", False),
        )
        for entry in tomllib.loads(text)["failure"]
    )


_KNOWN_FAILURES = _load_kinds()
MAX_CHARACTERS = 2_000
"""Characters of a line that are searched."""
_MAX_ORDINARY_LINES = 1_000
"""Lines without a cue that are remembered, without their digits: this halves the time for a long log."""
_MAX_TRACEBACK_LINES = 500
_MAX_EVIDENCE_CHARACTERS = 400
_SMALLEST_SOUND_LOSS_SCALE = 2.0**-6

_RANK_TAG = re.compile(r"\[rank[0-9]{1,6}\]: ?")
_ERROR_LINE = re.compile(
    r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Iteration|Exhausted|Failure|Fault|Timeout|Empty|Full)(?::|$)"
)
# Lines with sentences of samples, as the trainers print them.
_SAMPLE_LINE = re.compile(
    r"\b(?:source|reference|hypothesis|raw hypothesis|translation|target|prediction):\s"
    r"|\b(?:sent|pred|gold) [0-9]{1,9}:|\bbest translation [0-9]"
)


@dataclass
class _Occurrence:
    """A failure that was seen once or several times."""

    kind: FailureKind
    evidence: str
    first_step: int | None
    step: int | None
    count: int
    has_continued: bool = False
    """Whether training continued after it."""


class FailureReader:
    """Reads every line of a run, after the trainer's own reader, which sets the newest step."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._occurrences: dict[str, _Occurrence] = {}
        self._have_all_continued = True
        self._ordinary_lines: set[bytes] = set()
        self._num_traceback_lines = 0
        self._traceback_step: int | None = None

    def read(self, line: str) -> None:
        """Reads a line."""
        if not self._have_all_continued:
            self._check_whether_training_continued()
        if line.startswith("***     "):
            return
        if self._num_traceback_lines:
            self._read_traceback(line)
        if not self._is_ordinary(line):
            self._search(line, line[:MAX_CHARACTERS].lower())

    def finish(self) -> None:
        """Adds the failures to the run, the worst first; the trainer's reader must have finished."""
        if self._num_traceback_lines and self._traceback_step == self._run.newest_step:
            self._add(_UNKNOWN_ERROR, "Traceback (most recent call last), and the log ends before the error itself")
        self._check_whether_training_continued()
        causes = list(self._causes())
        fatal = [cause for cause in causes if not cause.has_continued]
        self._add_nan()
        self._add_loss_scale()
        self._add_failures(fatal)
        # Once the loss is not a number, it does not matter what ended the run.
        if not fatal and self._run.first_nan_step is None:
            self._add_early_end()
        self._add_failures(cause for cause in causes if cause.has_continued)

    def _add_failures(self, occurrences: Iterable[_Occurrence]) -> None:
        is_finished = bool(self._run.facts.get("is_finished"))
        for occurrence in occurrences:
            if occurrence.has_continued or not is_finished:
                self._run.add_failure(_to_failure(occurrence))
            elif occurrence.kind.role != Role.CONSEQUENCE:
                self._run.add_failure(_to_failure(occurrence, outcome="training finished anyway"))

    def _is_ordinary(self, line: str) -> bool:
        """Whether the line has no cue; most lines of a trainer differ only in digits, which no cue has."""
        text = line[:MAX_CHARACTERS].encode(errors="replace").translate(None, b"0123456789")
        if text in self._ordinary_lines:
            return True
        lowered = text.decode().lower()
        if any(cue in lowered for cue in _CUES):
            return False
        if len(self._ordinary_lines) >= _MAX_ORDINARY_LINES:
            self._ordinary_lines.clear()
        self._ordinary_lines.add(text)
        return True

    def _search(self, line: str, lowered: str) -> None:
        if tag := _RANK_TAG.match(lowered):
            line, lowered = line[tag.end() :], lowered[tag.end() :]
        if _SAMPLE_LINE.search(lowered) or HARMLESS.search(lowered):
            return
        if kind := _kind_of(lowered):
            self._add(kind, line)
        elif _UNKNOWN_ERROR.is_shown_by(lowered):
            self._num_traceback_lines = 1
            self._traceback_step = self._run.newest_step

    def _read_traceback(self, line: str) -> None:
        """Reads on to the error of a traceback, the first line that looks like one; known kinds are added elsewhere."""
        line = _RANK_TAG.sub("", line[:MAX_CHARACTERS], count=1)
        self._num_traceback_lines += 1
        if _ERROR_LINE.match(line):
            self._num_traceback_lines = 0
            if not _kind_of(line.lower()):
                self._add(_UNKNOWN_ERROR, line)
        elif self._num_traceback_lines > _MAX_TRACEBACK_LINES:
            self._num_traceback_lines = 0

    def _add(self, kind: FailureKind, line: str) -> None:
        step = self._run.newest_step
        known = self._occurrences.get(kind.what)
        if known is None or known.has_continued:
            evidence = clean_text(line, _MAX_EVIDENCE_CHARACTERS)
            first_step, count = (step, 0) if known is None else (known.first_step, known.count)
            self._occurrences[kind.what] = _Occurrence(kind, evidence, first_step, step, count + 1)
            self._have_all_continued = False

    def _check_whether_training_continued(self) -> None:
        step = self._run.newest_step
        for occurrence in self._occurrences.values():
            occurrence.has_continued = occurrence.has_continued or occurrence.step != step
        self._have_all_continued = all(occurrence.has_continued for occurrence in self._occurrences.values())

    def _causes(self) -> Iterator[_Occurrence]:
        """Yields the failures that are not consequences of another one at the same step."""
        lowest: dict[int | None, Role] = {}
        for seen in self._occurrences.values():
            lowest[seen.step] = min(seen.kind.role, lowest.get(seen.step, Role.CONSEQUENCE))
        for seen in self._occurrences.values():
            is_harmless = seen.has_continued and seen.kind.is_harmless_if_training_continues
            if seen.kind.role == lowest[seen.step] and not is_harmless:
                yield seen

    def _add_nan(self) -> None:
        step = self._run.first_nan_step
        if step is None:
            return
        good = self._run.last_finite_step
        before = "at all logged steps" if good is None else f"the last good one was at step {good:,}"
        figures = _figures_before(self._run, step)
        known = [f"{name.replace('_', ' ')} {figures[name]:.4g}" for name in figures]
        what = f"The loss is not a number since step {step:,} ({', '.join([before, *known])})."
        self._run.add_failure(LogFailure(what, _nan_cause(self._run.facts, figures), step=step))

    def _add_loss_scale(self) -> None:
        newest = self._run.newest_step
        scale = None if newest is None else _figures_before(self._run, newest).get("loss_scale")
        if scale is not None and scale < _SMALLEST_SOUND_LOSS_SCALE:
            what = f"The loss scale had fallen to {scale:.3g} at step {newest:,}."
            cause = (
                "Many updates in a row overflowed in half precision and were skipped: lower the learning rate, warm "
                "up for longer, or train in bf16 or fp32."
            )
            self._run.add_failure(LogFailure(what, cause, step=newest))

    def _add_early_end(self) -> None:
        """Adds a failure for a log that ends without saying why."""
        run = self._run
        step, planned = run.newest_step, run.facts.get("steps_planned")
        if run.facts.get("is_finished"):
            return
        if run.is_empty:
            what = "The log holds no step of training and no message that says why."
            cause = "The run ended before its first step, or its output is elsewhere: look for other logs of the run."
            run.add_failure(LogFailure(what, cause))
        elif step is not None and (run.facts.get("is_finished") is False or (planned and step < planned)):
            of_planned = f" of {planned:,}" if isinstance(planned, int) else ""
            what = f"The log ends at step {step:,}{of_planned} and does not say that training finished."
            cause = (
                "The run was stopped or killed, is still running, or the log was cut: continue from the newest "
                "checkpoint if more training is wanted."
            )
            run.add_failure(LogFailure(what, cause, step=step))


def _kind_of(lowered: str) -> FailureKind | None:
    return next((kind for kind in _KNOWN_FAILURES if kind.is_shown_by(lowered)), None)


def _to_failure(seen: _Occurrence, outcome: str = "") -> LogFailure:
    place = _place(seen.step)
    if seen.count > 1:
        place = f"{seen.count} times, first {_place(seen.first_step)} and last {place}"
    outcome = outcome or ("training continued" if seen.has_continued else "")
    if not outcome:
        return LogFailure(f"{seen.kind.what} {place}.", seen.kind.cause, seen.evidence, seen.step)
    cause = f"Not fatal: {outcome}. {seen.kind.cause}"
    return LogFailure(f"{seen.kind.what} {place}; {outcome}.", cause, seen.evidence, seen.step)


def _place(step: int | None) -> str:
    return "before the first step" if step is None else f"at step {step:,}"


def _figures_before(run: ImportedRun, step: int) -> dict[str, float]:
    """Returns the newest learning rate, loss scale and gradient norm up to a step."""
    figures: dict[str, float] = {}
    wanted = ("learning_rate", "loss_scale", "gradient_norm")
    for record in reversed(run.records):
        if record["kind"] == "train" and record["step"] <= step:
            figures = {name: record[name] for name in wanted if name in record} | figures
        if len(figures) == len(wanted):
            break
    return figures


def _nan_cause(facts: dict[str, Any], figures: dict[str, float]) -> str:
    is_half_precision = facts.get("precision") in ("mixed", "fp16")
    if is_half_precision and facts.get("loss_scaling") == "none":
        return (
            "Most likely mixed precision without loss scaling: gradients overflowed and the update was not skipped. "
            "Switch loss scaling on (loss_scaling='Backoff') and start again from a checkpoint before that step."
        )
    if is_half_precision:
        cause = "Half precision overflowed or the learning rate was too high"
    else:
        cause = "The learning rate was too high, or a batch held damaged data"
    rate = f" ({figures['learning_rate']:.3g})" if "learning_rate" in figures else ""
    return (
        f"{cause}: start again from a checkpoint before that step with a lower learning rate{rate}, a longer warm-up "
        "or gradient clipping; all later checkpoints are unusable."
    )
