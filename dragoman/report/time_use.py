"""Where the time of a run went: training, evaluations, saving and standstill, which add up to the whole.

Logs of other trainers are read interval by interval, from one logged step to the next: what an interval took beyond its
steps is the evaluation or the checkpoint in it, or, if it is far longer than all others, a standstill.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dragoman.report.evidence import Evidence
from dragoman.run.records import CheckpointRecord, EvaluationRecord, Record, RestartRecord, TrainRecord

PHASES = {
    "training": "training steps",
    "evaluation": "evaluations",
    "saving": "saving checkpoints",
    "standstill": "standstill",
    "lost": "steps trained again and downtime after faults",
    "unseen": "steps that the log does not show",
    "other": "start-up and the rest",
}
"""Words for each part of the time."""
_SLOW_FACTOR = 3.0
"""An interval whose steps took longer than this many medians holds something else than steps."""
_SHORTEST_STANDSTILL = 600.0
"""Seconds; a shorter break is work between the steps."""
_STANDSTILL_FACTOR = 5.0
"""A break within an interval with an evaluation is a standstill if it is longer than this many typical ones."""
_GAP_FACTOR = 3
"""An interval of more steps than this many typical ones lacks lines, which may have shown evaluations."""


@dataclass
class TimeUse:
    """Seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    is_estimated: bool = False
    """Whether evaluations and saving were worked out from intervals that took longer."""

    @property
    def whole(self) -> float:
        """The sum of all parts."""
        return sum(self.seconds.values())

    def share(self, phase: str) -> float:
        """Share of the whole that a part took."""
        return self.seconds[phase] / self.whole if self.whole else 0.0


@dataclass(frozen=True)
class _Interval:
    """What happened from one logged step to the next."""

    num_steps: int
    step_seconds: float
    span: float
    """Seconds of the whole interval."""
    evaluations: list[EvaluationRecord]
    checkpoints: list[CheckpointRecord]
    has_restart: bool = False

    def rest(self) -> float:
        """Seconds that steps and events of known length do not explain; negative where the clock is too coarse."""
        return self.span - self.num_steps * self.step_seconds - _known(self.evaluations) - _known(self.checkpoints)


def _known(records: Iterable[EvaluationRecord | CheckpointRecord]) -> float:
    return float(sum(record.seconds or 0.0 for record in records))


def use_of_own_run(evidence: Evidence, whole: float, pauses: float) -> TimeUse:
    """Splits the time of our own run, which records how long everything took."""
    found = TimeUse()
    steps = zip(evidence.train, evidence.train_steps, strict=True)
    found.seconds["training"] = sum(num * (record.seconds_per_step or 0.0) for record, num in steps)
    found.seconds["evaluation"] = _known(evidence.evaluations)
    found.seconds["saving"] = _known(evidence.checkpoints)
    lost = sum(each.repeated_seconds + (each.silent_seconds or 0.0) for each in evidence.restarts)
    found.seconds["lost"] = max(0.0, lost - pauses)
    return _fill_up(found, whole)


def use_of_imported_run(evidence: Evidence, median: float) -> TimeUse:
    """Splits the time of a log of another trainer; `median` is the time of a typical step."""
    has_clock = evidence.facts.clock != "reconstructed"
    intervals = list(_intervals(evidence, median, has_clock))
    found = TimeUse(is_estimated=True)
    usual = [each for each in intervals if each.evaluations and not each.has_restart and each.rest() > 0]
    longest_evaluation = _STANDSTILL_FACTOR * float(np.median([each.rest() for each in usual])) if usual else 0.0
    usual_steps = float(np.median([each.num_steps for each in intervals])) if intervals else 0.0
    for interval in intervals:
        if evidence.is_gap(interval.num_steps):
            found.seconds["unseen"] += interval.span
            continue
        longest = longest_evaluation if interval.evaluations else 0.0
        longest = np.inf if interval.num_steps > _GAP_FACTOR * usual_steps else max(_SHORTEST_STANDSTILL, longest)
        _add_interval(found, interval, longest)
    return found


def _add_interval(found: TimeUse, interval: _Interval, longest_break: float) -> None:
    """Adds the parts of an interval, which never exceed its span."""
    parts = {
        "evaluation": _known(interval.evaluations),
        "saving": _known(interval.checkpoints),
        "training": interval.num_steps * interval.step_seconds,
    }
    rest = interval.rest()
    if rest > longest_break:
        parts["standstill"] = rest
    elif any(record.seconds is None for record in interval.evaluations):
        parts["evaluation"] += rest
    elif any(record.seconds is None for record in interval.checkpoints):
        parts["saving"] += rest
    else:
        parts["other"] = rest
    parts = {name: max(0.0, seconds) for name, seconds in parts.items()}
    scale = interval.span / total if (total := sum(parts.values())) > interval.span else 1.0
    for name, seconds in parts.items():
        found.seconds[name] += scale * seconds


def _intervals(evidence: Evidence, median: float, has_clock: bool) -> Iterator[_Interval]:
    """Yields the intervals in the order of the log; each holds the evaluations and checkpoints since the last step."""
    before: TrainRecord | None = None
    events: list[Record] = []
    for record in evidence.records:
        if not isinstance(record, TrainRecord):
            events.append(record)
            continue
        yield _interval(evidence, before, record, events, median, has_clock)
        before, events = record, []
    if before is not None and events and has_clock:
        yield _last_interval(before, events, median)


def _interval(
    evidence: Evidence,
    before: TrainRecord | None,
    record: TrainRecord,
    events: Sequence[Record],
    median: float,
    has_clock: bool,
) -> _Interval:
    if before is None:
        num_steps = evidence.train_steps[0] if evidence.train else 0
    else:
        restarts = [event.step for event in events if isinstance(event, RestartRecord)]
        num_steps = max(0, record.step - (restarts[-1] if restarts else before.step))
    logged = median if record.seconds_per_step is None else record.seconds_per_step
    evaluations, checkpoints = _of_events(events)
    is_mixed = bool(evaluations or checkpoints) and bool(evidence.facts.step_time_includes_evaluation)
    step_seconds = min(logged, median) if is_mixed or logged > _SLOW_FACTOR * median else logged
    span = _span(evidence, before, record) if has_clock else None
    span = num_steps * logged if span is None else span
    has_restart = any(isinstance(event, RestartRecord) for event in events)
    return _Interval(num_steps, step_seconds, span, evaluations, checkpoints, has_restart)


def _span(evidence: Evidence, before: TrainRecord | None, record: TrainRecord) -> float | None:
    """Seconds since the last logged step, or since the run began; None where the log does not tell."""
    if before is None and evidence.facts.started is None:
        return None if evidence.unseen_steps else record.training_seconds
    begin = evidence.facts.started if before is None else before.time
    return None if begin is None or record.time is None else max(0.0, record.time - begin)


def _last_interval(before: TrainRecord, events: Sequence[Record], median: float) -> _Interval:
    """What followed the last logged step."""
    end = max((record.time for record in events if record.time is not None), default=before.time)
    span = 0.0 if end is None or before.time is None else max(0.0, end - before.time)
    num_steps = max(0, max(record.step for record in events) - before.step)
    return _Interval(num_steps, median, span, *_of_events(events))


def _of_events(events: Sequence[Record]) -> tuple[list[EvaluationRecord], list[CheckpointRecord]]:
    evaluations = [record for record in events if isinstance(record, EvaluationRecord)]
    return evaluations, [record for record in events if isinstance(record, CheckpointRecord)]


def _fill_up(found: TimeUse, whole: float) -> TimeUse:
    """Makes the parts add up to the whole: the rest is named, and clocks that disagree do not exceed it."""
    total = found.whole
    if total > whole > 0:
        found.seconds = {name: seconds * whole / total for name, seconds in found.seconds.items()}
    else:
        found.seconds["other"] += max(0.0, whole - total)
    return found
