"""The live view of a run in a terminal, from the files of its folder alone: read as they grow, drawn twice a second."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dragoman.monitoring.live_nodes import node_rows
from dragoman.monitoring.live_parts import (
    NodeView,
    RunView,
    Verdict,
    attribution_rows,
    chart_rows,
    header_rows,
    log_rows,
    number_at,
    prediction_rows,
    verdict_rows,
)
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.following import LineFollower, Observation
from dragoman.run.status import ENDED_STATES
from dragoman.run.summary import (
    NUM_RECENT_RECORDS,
    LastRecords,
    Record,
    describe_observation,
    parse_record,
    progress_figures,
)

Judge = Callable[[RunFolder], Verdict]
Clock = Callable[[], float]
Points = deque[tuple[float, float]]

NUM_CHART_RECORDS = 2_000
"""Train records that the loss curve is drawn from; more would take long to parse and could not be told apart."""
TRAIN_MARK = '"kind": "train"'
JUDGE_EVERY_SECONDS = 5.0
LARGEST_JUDGING_SHARE = 0.1
"""Of the time that may be spent on verdicts, where one takes long."""
BUSY_BYTES_PER_SECOND = 10**5
"""Less traffic is chatter of the machine; to people it would be 0.1 MB/s."""
BUSY_SECONDS = 30
"""An interface stays in view for so long after its last traffic: between gradients there is none."""
LAUNCH_LEEWAY_SECONDS = 60.0
"""By so much the clocks of machines may differ."""

Build = Callable[[RunView, int, int], list[Text]]
ROWS_BY_IMPORTANCE: tuple[tuple[Build, int], ...] = (
    # What each part needs to be of use, the most important first.
    (header_rows, 3),
    (verdict_rows, 1),
    (attribution_rows, 2),
    (node_rows, 2),
    (prediction_rows, 1),
    (chart_rows, 5),
    (log_rows, 3),
    # What each part makes good use of, where there are more.
    (attribution_rows, 3),
    (verdict_rows, 2),
    (node_rows, 100),
    (attribution_rows, 5),
    (verdict_rows, 4),
    (log_rows, 100),
    (chart_rows, 20),
)
"""Parts of the view and how many rows they may have, in the order in which they take them."""
TOP_TO_BOTTOM: tuple[Build, ...] = (
    header_rows,
    chart_rows,
    attribution_rows,
    node_rows,
    prediction_rows,
    verdict_rows,
    log_rows,
)


def lay_out(view: RunView, width: int, height: int) -> list[Text]:
    """The rows of the whole view, no more than there is room for."""
    rows: dict[Build, list[Text]] = {build: [] for build in TOP_TO_BOTTOM}
    room = height
    for build, most in ROWS_BY_IMPORTANCE:
        room += len(rows[build])
        rows[build] = build(view, width, min(most, room))
        room -= len(rows[build])
    return _with_blank_rows([rows[build] for build in TOP_TO_BOTTOM if rows[build]], room)


def _with_blank_rows(parts: list[list[Text]], room: int) -> list[Text]:
    """All rows, the parts set apart as far as there is room."""
    rows: list[Text] = []
    for number, part in enumerate(parts):
        rows += [Text("")] if 0 < number <= room else []
        rows += part
    return rows


@dataclass
class NodeData:
    """The samples of one node, as they come."""

    path: Path
    follower: LineFollower
    opened: float
    """By the watcher's clock, as the next."""
    arrived: float | None = None
    """When a sample came while we watched."""
    sample: Record = field(default_factory=dict)
    last_traffic: dict[str, float] = field(default_factory=dict)
    """When each interface was busy last, by the node's clock."""

    @property
    def name(self) -> str:
        """The node's, from the name of the file."""
        return unquote(self.path.name.removeprefix("system.").removesuffix(".jsonl"))

    @property
    def time(self) -> float:
        """Of the last sample, by the node's clock."""
        return number_at(self.sample, "time") or 0.0

    def read(self, now: float) -> None:
        """Takes in new samples; a file that cannot be read has none."""
        is_first_look = not self.sample
        with suppress(UserError):
            for sample in filter(None, map(parse_record, self.follower.read_lines())):
                self.sample = sample
                self.arrived = None if is_first_look else now
                self._note_traffic()

    def look(self, now: float) -> NodeView:
        """How the node is now."""
        since = max(now - self.time, now - self.opened) if self.arrived is None else now - self.arrived
        # Before a sample has come while we watch only its own clock tells its age, and a clock may be wrong.
        names = [name for name, when in self.last_traffic.items() if self.time - when <= BUSY_SECONDS]
        names.sort(key=lambda name: -self._traffic(name))
        return NodeView(self.name, self.sample, max(0.0, since), names)

    def _note_traffic(self) -> None:
        network = self.sample.get("network")
        for name in network if isinstance(network, dict) else ():
            if self._traffic(name) >= BUSY_BYTES_PER_SECOND:
                self.last_traffic[name] = self.time

    def _traffic(self, interface: str) -> float:
        rates = (
            number_at(self.sample, "network", interface, f"{way}_bytes_per_second") for way in ("received", "sent")
        )
        return max(rate or 0.0 for rate in rates)


class ViewData:
    """What the files of a run say, read as they grow."""

    def __init__(self, run: RunFolder, num_log_lines: int, clock: Clock = time.time) -> None:
        self._run, self._clock = run, clock
        self._files = ExitStack()
        self._log = self._files.enter_context(LineFollower(run.log, num_log_lines))
        self._metrics = self._files.enter_context(LineFollower(run.metrics, NUM_RECENT_RECORDS))
        self._log_lines: deque[str] = deque(maxlen=num_log_lines)
        self._last: LastRecords = {}
        self._losses: Points = deque(maxlen=NUM_CHART_RECORDS)
        self._dev_losses: Points = deque(maxlen=NUM_CHART_RECORDS)
        self._nodes: dict[Path, NodeData] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def look(self, observation: Observation) -> RunView:
        """Reads what is new; returns everything there is to show."""
        self._log_lines.extend(self._log.read_lines())
        self._read_records()
        status = observation.status
        return RunView(
            name=str(self._run.path),
            state=observation.state,
            description=describe_observation(observation),
            figures=progress_figures(self._run, observation, self._last),
            num_restarts=status.num_restarts if status else 0,
            train=self._last.get("train", {}),
            prediction=self._last.get("prediction", {}),
            losses=self._losses,
            dev_losses=self._dev_losses,
            nodes=list(self._look_at_nodes(observation)),
            log_lines=list(self._log_lines),
        )

    def _read_records(self) -> None:
        """Most train records of a long run are never shown, so only the last are parsed."""
        train: deque[str] = deque(maxlen=NUM_CHART_RECORDS)
        others: deque[str] = deque(maxlen=NUM_CHART_RECORDS)
        for line in self._metrics.read_lines():
            (train if TRAIN_MARK in line else others).append(line)
        for record in filter(None, map(parse_record, (*others, *train))):
            self._take(record)

    def _take(self, record: Record) -> None:
        kind = record.get("kind")
        if not isinstance(kind, str):
            return
        self._last[kind] = record
        if kind == "train":
            _add_point(self._losses, record)
        elif kind == "evaluation":
            _add_point(self._dev_losses, record)

    def _look_at_nodes(self, observation: Observation) -> Iterator[NodeView]:
        now = self._clock()
        for path in self._run.system_files():
            if path not in self._nodes:
                with suppress(UserError):
                    follower = self._files.enter_context(LineFollower(path, BUSY_SECONDS))
                    self._nodes[path] = NodeData(path, follower, now)
        for node in self._nodes.values():
            node.read(now)
            if node.sample and not _is_of_an_earlier_launch(node, observation):
                view = node.look(now)
                # Where the run has ended nobody expects samples.
                yield replace(view, seconds_silent=0.0) if observation.state in ENDED_STATES else view


def _is_of_an_earlier_launch(node: NodeData, observation: Observation) -> bool:
    """Whether a node took part only before the run was continued elsewhere."""
    status = observation.status
    return node.arrived is None and status is not None and node.time < status.started - LAUNCH_LEEWAY_SECONDS


def _add_point(points: Points, record: dict[str, Any]) -> None:
    step, loss = number_at(record, "step"), number_at(record, "loss")
    if step is None or loss is None:
        return
    # A run that went back to a checkpoint takes later steps again.
    while points and points[-1][0] >= step:
        points.pop()
    points.append((step, loss))


class PatientJudge:
    """Asks for the verdict now and then: it reads much of a run, which may take longer than to draw it."""

    def __init__(self, run: RunFolder, judge: Judge | None, clock: Clock = time.monotonic) -> None:
        self._run, self._judge, self._clock = run, judge, clock
        self._next = clock()
        self.verdict: Verdict | None = None

    def ask(self, is_last: bool) -> bool:
        """Renews the verdict if that is due or it will be the last; whether it was."""
        start = self._clock()
        if self._judge is None or (start < self._next and not is_last):
            return False
        try:
            self.verdict = self._judge(self._run)
        except Exception:
            # Whatever it stumbles over in a damaged run, the rest of the view is still worth seeing.
            self.verdict = None
        end = self._clock()
        self._next = max(start + JUDGE_EVERY_SECONDS, end + (end - start) / LARGEST_JUDGING_SHARE)
        return True


class LiveView:
    """The view on a terminal inside a `with` block; what it showed last stays."""

    def __init__(self, run: RunFolder, num_log_lines: int, judge: Judge | None, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._size = self._console.size
        self._data = ViewData(run, num_log_lines)
        self._judge = PatientJudge(run, judge)
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._data.close()

    def show(self, observation: Observation) -> None:
        """Draws how the run is now."""
        view = self._data.look(observation)
        self._draw(view)
        # Only now, so that the first view need not wait for it.
        if self._judge.ask(is_last=observation.has_ended):
            self._draw(view)

    def _draw(self, view: RunView) -> None:
        if self._console.size != self._size:
            # The terminal has wrapped the old rows anew, so there is no telling where they are.
            self._size = self._console.size
            self._console.clear()
        # One row is left for the words that follow the view.
        rows = lay_out(replace(view, verdict=self._judge.verdict), self._size.width, self._size.height - 1)
        self._live.update(Group(*rows), refresh=True)
