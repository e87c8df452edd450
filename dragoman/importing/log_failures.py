"""Finds what made a run fail in the lines of any trainer's log."""

import re
from dataclasses import dataclass
from typing import Any

from dragoman.importing.failure_kinds import CUES, UNKNOWN_ERROR, VALIDATION, FailureKind, Role, is_harmless, kind_of
from dragoman.importing.imported_run import MAX_LISTED, ImportedRun, LogFailure, LogLaunch
from dragoman.importing.log_text import clean_text

MAX_CHARACTERS = 2_000
"""Characters of a line that are searched."""
_MAX_ORDINARY_LINES = 1_000
"""Lines without a cue that are remembered, without their digits: this halves the time for a long log."""
_MAX_TRACEBACK_LINES = 500
_MAX_EVIDENCE_CHARACTERS = 400
_MAX_MESSAGE_CHARACTERS = 160
_SMALLEST_SOUND_LOSS_SCALE = 2.0**-6

_RANK_TAG = re.compile(r"\[rank[0-9]{1,6}\]: ?")
_PROGRESS_BAR = re.compile(
    r"[^|%\]]{0,200}[0-9]{1,3}%(?:\|[^|]{0,300}\|)? *[0-9]{1,9}/[0-9]{1,9} \[[^\]]{0,1000}\] *(?=\S)"
)
"""A bar to which the terminal went back, so that the next message stands on its line."""
_ERROR_LINE = re.compile(
    r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Iteration|Exhausted|Failure|Fault|Timeout|Empty|Full)(?::|$)"
)
_ERROR_PREFIX = re.compile(r"^\[[^\]]{0,60}\] Error: ")
_SCRIPT_ERROR = re.compile(r"(?:error|exception)\b|^[\w./-]{1,200}: ")
"""Signs that a script failed, in lower case: an exception, or the message of a shell or a program about itself."""
# Lines with sentences of samples, as the trainers print them.
_SAMPLE_LINE = re.compile(
    r"\b(?:source|reference|hypothesis|raw hypothesis|translation|target|prediction):\s"
    r"|\b(?:sent|pred|gold) [0-9]{1,9}:|\bbest translation [0-9]"
)


@dataclass
class _Occurrence:
    """A failure that was seen once or several times in one launch."""

    kind: FailureKind
    evidence: str
    step: int | None
    """The last step that its launch had logged; None before the first."""
    launch: LogLaunch | None = None
    first_step: int | None = None
    line: int | None = None
    """Number of its line in the log."""
    count: int = 1
    is_of_validation: bool = False

    @property
    def is_serious(self) -> bool:
        """Whether a launch may have ended by it."""
        return self.kind.role != Role.CONSEQUENCE and not self.kind.is_harmless_if_training_continues


class FailureReader:
    """Reads every line of a run, after the trainer's own reader, which sets the newest step and begins launches.

    A failure is pending until the next step, which shows that training continued, or the next launch, which shows that
    it did not.
    """

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._launch: LogLaunch | None = None
        self._num_steps = 0
        self._pending: dict[str, _Occurrence] = {}
        self._survived: dict[tuple[int, str], _Occurrence] = {}
        self._fatal: list[_Occurrence] = []
        self._after_end: list[_Occurrence] = []
        self._ordinary_lines: set[bytes] = set()
        self._num_traceback_lines = 0
        self._is_traceback_of_validation = False

    def read(self, line: str) -> None:
        """Reads a line."""
        launches = self._run.launches
        if launches and launches[-1] is not self._launch:
            self._begin_launch(launches[-1])
        if self._num_steps != self._run.num_logged_steps:
            self._note_step()
        if line.startswith("***     "):
            return
        if "%" in line and (bar := _PROGRESS_BAR.match(line)):
            line = line[bar.end() :]
        if self._num_traceback_lines:
            self._read_traceback(line)
        if not self._is_ordinary(line):
            self._search(line, line[:MAX_CHARACTERS].lower())

    def finish(self) -> None:
        """Adds the failures to the run, the worst first; the trainer's reader must have finished."""
        run = self._run
        if run.launches and run.launches[-1] is not self._launch:
            self._begin_launch(run.launches[-1])
        if self._num_steps != run.num_logged_steps:
            self._note_step()
        if self._num_traceback_lines:
            self._add(UNKNOWN_ERROR, "Traceback (most recent call last), and the log ends before the error itself")
        self._close_launch(None)
        main = run.main_launch
        if main is not None and run.facts.get("is_finished") is True and main.end == "unknown":
            main.end = "finished"
        self._add_nan()
        self._add_loss_scale()
        self._add_failures(main)

    def _add_failures(self, main: LogLaunch | None) -> None:
        """Adds what ended the launch that trained, then what it survived, then what ended other launches."""
        own = [seen for seen in self._fatal if seen.launch is main]
        for seen in own:
            self._run.add_failure(_to_failure(seen, is_fatal=True))
        # Once the loss is not a number, it does not matter what ended the run; the trainer's reader may know it too.
        is_explained = bool(own) or self._run.first_nan_step is not None or (main is not None and bool(main.reason))
        if not is_explained:
            self._add_early_end()
        for seen in self._after_end:
            self._run.add_failure(_to_failure(seen, outcome="training finished anyway"))
        for seen in self._survived.values():
            if seen.is_of_validation or not seen.kind.is_harmless_if_training_continues:
                self._run.add_failure(_to_failure(seen, outcome="training continued"))
        for seen in self._fatal:
            if seen.launch is not main and seen.launch is not None:
                ended = f"and ended launch {seen.launch.number}"
                self._run.add_failure(_to_failure(seen, is_fatal=True, ended=ended))

    # Launches

    def _begin_launch(self, launch: LogLaunch) -> None:
        """Ends the launch before this one."""
        if self._launch is None and not launch.is_announced:
            # The first step, without a line with which the trainer starts: all before it belongs to this launch.
            self._launch = launch
            for seen in self._pending.values():
                seen.launch = launch
            return
        self._close_launch(launch)
        self._launch = launch

    def _close_launch(self, following: LogLaunch | None) -> None:
        """Decides what the pending failures are, now that their launch has no further step."""
        launch, pending = self._launch, list(self._pending.values())
        self._pending, self._num_traceback_lines = {}, 0
        if launch is not None and launch.last_step is None and launch.end == "finished" and following is None:
            self._end_well(pending, launch)
        elif launch is not None and launch.last_step is not None:
            is_finished = launch.end == "finished" or (following is None and self._run.facts.get("is_finished") is True)
            if is_finished and following is None:
                self._end_well(pending, launch)
                return
            later = [seen for seen in pending if seen.kind.is_at_start]
            self._end_by(None if is_finished else launch, [seen for seen in pending if not seen.kind.is_at_start])
            self._end_aborted(later, following)
        elif launch is not None:
            self._end_by(launch, pending)
        else:
            self._end_aborted(pending, following)

    def _end_well(self, pending: list[_Occurrence], launch: LogLaunch) -> None:
        """Keeps what failed after the end of the training."""
        later = [seen for seen in _causes(pending) if seen.kind.role != Role.CONSEQUENCE]
        for seen in later:
            seen.launch = launch
            self._count(seen)
        self._after_end += later

    def _end_aborted(self, pending: list[_Occurrence], following: LogLaunch | None) -> None:
        """Adds a launch of which the log shows only the failure."""
        is_end = following is None and self._launch is None
        if any(seen.is_serious for seen in pending) or (is_end and pending):
            for seen in pending:
                seen.step = seen.first_step = None
            self._end_by(self._run.insert_launch(following, pending[0].line), pending)
        elif following is not None:
            for seen in pending:  # warnings before the first line of a launch
                seen.launch = following
                self._pending[seen.kind.what] = seen

    def _end_by(self, launch: LogLaunch | None, pending: list[_Occurrence]) -> None:
        causes = _causes(pending)
        if launch is None or not causes:
            return
        for seen in causes:
            seen.launch = launch
            self._count(seen)
        if not launch.reason:  # otherwise the trainer's reader knows better
            launch.end = "stopped" if causes[0].kind.is_stop else "failed"
            launch.reason = f"{causes[0].kind.what} {_place(causes[0].step)}."
        if len(self._fatal) < MAX_LISTED:
            self._fatal += causes

    def _count(self, seen: _Occurrence) -> None:
        """Adds the times that its launch survived the same failure before."""
        if earlier := self._survived.pop((id(seen.launch), seen.kind.what), None):
            seen.first_step, seen.count = earlier.first_step, earlier.count + 1

    def _note_step(self) -> None:
        """Training continued after all pending failures."""
        self._num_steps = self._run.num_logged_steps
        self._num_traceback_lines, self._is_traceback_of_validation = 0, False
        causes = _causes(list(self._pending.values()))
        self._pending.clear()
        for seen in causes:
            seen.launch = self._launch
            self._count(seen)
            self._survived[id(self._launch), seen.kind.what] = seen

    def _is_over(self, next_kind: FailureKind) -> bool:
        """Whether the launch had ended before this failure: its processes have, or its only program was refused."""
        return any(
            seen.kind.is_end_of_processes or (seen.kind.is_refusal and next_kind.is_refusal)
            for seen in self._pending.values()
        )

    def _begin_unseen_launch(self) -> None:
        """Begins a launch of which the log shows only the failure that follows."""
        if self._launch is None:
            first = next(iter(self._pending.values()))
            self._launch = self._run.insert_launch(None, first.line)
        launch = self._run.insert_launch(None, self._run.line)
        self._close_launch(launch)
        self._launch = launch

    # Lines

    def _is_ordinary(self, line: str) -> bool:
        """Whether the line has no cue; most lines of a trainer differ only in digits, which no cue has."""
        text = line[:MAX_CHARACTERS].encode(errors="replace").translate(None, b"0123456789")
        if text in self._ordinary_lines:
            return True
        lowered = text.decode().lower()
        if any(cue in lowered for cue in CUES):
            return False
        if len(self._ordinary_lines) >= _MAX_ORDINARY_LINES:
            self._ordinary_lines.clear()
        self._ordinary_lines.add(text)
        return True

    def _search(self, line: str, lowered: str) -> None:
        if tag := _RANK_TAG.match(lowered):
            line, lowered = line[tag.end() :], lowered[tag.end() :]
        if _SAMPLE_LINE.search(lowered) or is_harmless(lowered):
            return
        if kind := kind_of(lowered):
            self._add(kind, line)
        elif UNKNOWN_ERROR.is_shown_by(lowered):
            self._num_traceback_lines, self._is_traceback_of_validation = 1, False

    def _read_traceback(self, line: str) -> None:
        """Reads on to the error of a traceback, the first line that looks like one; known kinds are added elsewhere."""
        line = _RANK_TAG.sub("", line[:MAX_CHARACTERS], count=1)
        self._num_traceback_lines += 1
        if line.startswith("  File "):
            self._is_traceback_of_validation |= VALIDATION.search(line.lower()) is not None
        if _ERROR_LINE.match(line):
            self._num_traceback_lines = 0
            if not kind_of(line.lower()):
                self._add(UNKNOWN_ERROR, line)
        elif self._num_traceback_lines > _MAX_TRACEBACK_LINES:
            self._num_traceback_lines = 0

    def _add(self, kind: FailureKind, line: str) -> None:
        if self._run.is_other_program and self._run.launches:
            return  # what fails after the training does not concern it
        if kind.is_at_start and kind.what not in self._pending and self._is_over(kind):
            self._begin_unseen_launch()
        if kind.what in self._pending:
            return
        launch = self._launch
        step = launch.last_step if launch else None
        is_of_validation = step is not None and (self._is_traceback_of_validation or _is_of_validation(line))
        evidence = clean_text(line, _MAX_EVIDENCE_CHARACTERS)
        seen = _Occurrence(kind, evidence, step, launch, step, self._run.line, is_of_validation=is_of_validation)
        self._pending[kind.what] = seen
        # A launch that failed before its first step is over: the next line with which a trainer starts begins another.
        if seen.is_serious and launch is not None and launch.last_step is None and launch.end == "unknown":
            launch.end = "stopped" if kind.is_stop else "failed"

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
        if run.facts.get("is_finished") or run.facts.get("has_unread_steps"):
            return
        if run.facts.get("is_cut"):
            place = "before the first step" if step is None else f"after step {step:,}"
            what = f"The file is cut off {place}: how the run went on is not known."
            run.add_failure(LogFailure(what, "Copy or download the whole file, and read that.", step=step))
        elif run.is_empty and run.facts.get("has_begun_training"):
            what = "The log ends before its first step and does not say why."
            run.add_failure(LogFailure(what, "The run was stopped or killed, is still running, or the log was cut."))
        elif run.is_empty:
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


def _causes(pending: list[_Occurrence]) -> list[_Occurrence]:
    """Returns the failures that are not consequences of others at the same time; warnings only if there is no other."""
    lowest = min((seen.kind.role for seen in pending), default=Role.CONSEQUENCE)
    causes = [seen for seen in pending if seen.kind.role == lowest]
    return [seen for seen in causes if not seen.kind.is_harmless_if_training_continues] or causes


def _to_failure(seen: _Occurrence, is_fatal: bool = False, outcome: str = "", ended: str = "") -> LogFailure:
    place = _place(seen.step)
    if seen.count > 1:
        # Several lines may show one failure, or several between two steps: each interval counts once.
        times = "twice" if seen.count == 2 else f"{seen.count:,} times"
        place = f"at least {times}, first {_place(seen.first_step)} and last {place}"
    what = seen.kind.what
    if outcome and seen.is_of_validation:
        what = "The validation script failed"
    elif outcome and seen.kind.role == Role.UNKNOWN_ERROR:
        what = "A program in the same log stopped with an error"
    elif outcome and seen.kind.is_at_start and seen.step is not None:
        what = f"Another start failed in the same log ({what[:1].lower()}{what[1:]})"
    launch = seen.launch.number if seen.launch else None
    cause = seen.kind.cause
    if seen.kind.role == Role.UNKNOWN_ERROR:
        message = clean_text(_ERROR_PREFIX.sub("", seen.evidence, count=1), _MAX_MESSAGE_CHARACTERS).rstrip(".")
        cause = f'The message is "{message}". {cause}'
    if not outcome:
        message = f"{what} {place}{' ' * bool(ended)}{ended}."
        return LogFailure(message, cause, seen.evidence, seen.step, launch, is_fatal)
    return LogFailure(f"{what} {place}; {outcome}.", cause, seen.evidence, seen.step, launch, is_fatal)


def _is_of_validation(line: str) -> bool:
    """Whether a line is the error of a script that evaluates the model."""
    lowered = line[:MAX_CHARACTERS].lower()
    return VALIDATION.search(lowered) is not None and _SCRIPT_ERROR.search(lowered) is not None


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
