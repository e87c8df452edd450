"""Data of the live view, read from the files of a run as they grow."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from dragoman.diagnosis.verdict import Verdict
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import (
    EvaluationRecord,
    InterfaceSample,
    MachineSample,
    PredictionRecord,
    Record,
    TrainRecord,
    parse_records,
    parse_sample,
)
from dragoman.run.status import ENDED_STATES, Observation
from dragoman.run.summary import NUM_RECENT_RECORDS, LastRecords, describe_observation, progress_figures

Points = Sequence[tuple[float, float]]
"""(step, loss), by rising steps."""
Judge = Callable[[RunFolder], Verdict]
Clock = Callable[[], float]

_NUM_CHART_RECORDS = 2_000
"""Train records that the loss curve is drawn from; more would take long to parse and would not change the curve."""
_TRAIN_MARK = '"kind": "train"'
SILENT_SECONDS = 10.0
"""A machine that wrote no sample for longer is marked as silent."""
_BUSY_BYTES_PER_SECOND = 10**5
"""Less traffic is background noise; the view would show it as 0.1 MB/s."""
_BUSY_SECONDS = 30
"""An interface stays in view for this time after its last traffic: between two all-reduces there is none."""
_CLOCK_TOLERANCE_SECONDS = 60.0
"""Largest difference expected between the clocks of two machines."""
VERDICT_EVERY_SECONDS = 5.0
_LARGEST_VERDICT_SHARE = 0.1
"""Largest share of the time that is spent on verdicts, where one takes long."""


@dataclass(frozen=True)
class NodeView:
    """One machine of a run."""

    name: str
    sample: MachineSample
    """The last sample of this machine."""
    seconds_silent: float = 0.0
    busy_interfaces: Sequence[str] = ()
    """Interfaces with traffic in the last seconds, the busiest first."""

    @property
    def is_silent(self) -> bool:
        """Whether samples are missing."""
        return self.seconds_silent > SILENT_SECONDS


@dataclass(frozen=True)
class RunView:
    """Everything to show of a run at one moment."""

    name: str
    state: str
    description: str
    """The state with its cause."""
    figures: dict[str, Any]
    """Result of `progress_figures`."""
    num_restarts: int = 0
    train: TrainRecord | None = None
    """The last train record."""
    prediction: PredictionRecord | None = None
    """The last prediction."""
    losses: Points = ()
    dev_losses: Points = ()
    nodes: Sequence[NodeView] = ()
    log_lines: Sequence[str] = ()
    verdict: Verdict | None = None


class NodeData:
    """Follows the samples of one machine."""

    def __init__(self, path: Path, opened: float) -> None:
        self.name = unquote(path.name.removeprefix("system.").removesuffix(".jsonl"))
        self.follower = LineFollower(path, _BUSY_SECONDS)
        self.sample: MachineSample | None = None
        self.arrived: float | None = None
        """Time of arrival of the last sample; None if it was there before this view was opened."""
        self._opened = opened
        self._last_traffic: dict[str, float] = {}
        """Time of the last traffic of each interface, by the machine's clock."""

    def read(self, now: float) -> None:
        """Reads new samples; a file that cannot be read has none."""
        is_first_read = self.sample is None
        with suppress(UserError):
            for sample in filter(None, map(parse_sample, self.follower.read_lines())):
                self.sample = sample
                self.arrived = None if is_first_read else now
                for name, interface in sample.network.items():
                    if _traffic(interface) >= _BUSY_BYTES_PER_SECOND:
                        self._last_traffic[name] = sample.time

    def view(self, sample: MachineSample, now: float) -> NodeView:
        """Returns the machine as it is now."""
        # Until a sample arrives, only the machine's own clock tells the age of the last one, and it may be wrong.
        silent = max(now - sample.time, now - self._opened) if self.arrived is None else now - self.arrived
        names = [name for name, when in self._last_traffic.items() if sample.time - when <= _BUSY_SECONDS]
        names.sort(key=lambda name: -_traffic(sample.network.get(name, InterfaceSample())))
        return NodeView(self.name, sample, max(0.0, silent), names)


def _traffic(interface: InterfaceSample) -> float:
    return max(interface.received_bytes_per_second or 0.0, interface.sent_bytes_per_second or 0.0)


class ViewData:
    """Follows the files of a run."""

    def __init__(self, run: RunFolder, num_log_lines: int, clock: Clock = time.time) -> None:
        self._run, self._clock = run, clock
        self._files = ExitStack()
        self._log = self._files.enter_context(LineFollower(run.log, num_log_lines))
        self._metrics = self._files.enter_context(LineFollower(run.metrics, NUM_RECENT_RECORDS))
        self._log_lines: deque[str] = deque(maxlen=num_log_lines)
        self._last: LastRecords = {}
        self._train: TrainRecord | None = None
        self._prediction: PredictionRecord | None = None
        self._losses: deque[tuple[float, float]] = deque(maxlen=_NUM_CHART_RECORDS)
        self._dev_losses: deque[tuple[float, float]] = deque(maxlen=_NUM_CHART_RECORDS)
        self._nodes: dict[Path, NodeData] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def read(self, observation: Observation) -> RunView:
        """Reads new lines of all files; returns everything to show."""
        self._log_lines.extend(self._log.read_lines())
        self._read_records()
        status = observation.status
        return RunView(
            name=str(self._run.path),
            state=observation.state,
            description=describe_observation(observation),
            figures=progress_figures(self._run, observation, self._last),
            num_restarts=status.num_restarts if status else 0,
            train=self._train,
            prediction=self._prediction,
            losses=self._losses,
            dev_losses=self._dev_losses,
            nodes=list(self._read_nodes(observation)),
            log_lines=list(self._log_lines),
        )

    def _read_records(self) -> None:
        # Only the last train records of a long run are shown, so only these are parsed.
        train: deque[str] = deque(maxlen=_NUM_CHART_RECORDS)
        others: deque[str] = deque(maxlen=_NUM_CHART_RECORDS)
        for line in self._metrics.read_lines():
            (train if _TRAIN_MARK in line else others).append(line)
        for record in parse_records((*others, *train)):
            self._add(record)

    def _add(self, record: Record) -> None:
        self._last[record.kind] = record
        match record:
            case TrainRecord():
                self._train = record
                _add_point(self._losses, record.step, record.loss)
            case EvaluationRecord():
                _add_point(self._dev_losses, record.step, record.loss)
            case PredictionRecord():
                self._prediction = record

    def _read_nodes(self, observation: Observation) -> Iterator[NodeView]:
        now = self._clock()
        for path in self._run.system_files():
            if path not in self._nodes:
                with suppress(UserError):
                    self._nodes[path] = NodeData(path, now)
                    self._files.enter_context(self._nodes[path].follower)
        for node in self._nodes.values():
            node.read(now)
            if node.sample is not None and not _is_of_an_earlier_launch(node, node.sample, observation):
                view = node.view(node.sample, now)
                # No samples are expected after the end of a run.
                yield replace(view, seconds_silent=0.0) if observation.state in ENDED_STATES else view


def _is_of_an_earlier_launch(node: NodeData, sample: MachineSample, observation: Observation) -> bool:
    """Whether a machine took part only before the run was continued on others."""
    status = observation.status
    return node.arrived is None and status is not None and sample.time < status.started - _CLOCK_TOLERANCE_SECONDS


def _add_point(points: deque[tuple[float, float]], step: int, loss: float | None) -> None:
    if loss is None:
        return
    # A run that went back to a checkpoint repeats steps.
    while points and points[-1][0] >= step:
        points.pop()
    points.append((step, loss))


@dataclass
class VerdictTimer:
    """Renews the verdict now and then: it reads many records, which may take longer than to draw the view."""

    run: RunFolder
    judge: Judge | None
    clock: Clock = time.monotonic
    verdict: Verdict | None = None
    _next: float = field(default=float("-inf"), init=False)

    def renew(self, is_last: bool) -> bool:
        """Renews the verdict if it is due or if this is the last time; returns whether it did."""
        start = self.clock()
        if self.judge is None or (start < self._next and not is_last):
            return False
        try:
            self.verdict = self.judge(self.run)
        except Exception:
            # A damaged run may make it fail in any way; the rest of the view is still useful.
            self.verdict = None
        end = self.clock()
        self._next = max(start + VERDICT_EVERY_SECONDS, end + (end - start) / _LARGEST_VERDICT_SHARE)
        return True
