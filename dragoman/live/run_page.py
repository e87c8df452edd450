"""The live page of one run: its report, and above it what the run and its machines do at this moment."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dragoman.live.live_page import (
    ASK_AFTER_END_SECONDS,
    ASK_AGAIN_SECONDS,
    LivePage,
    MachineRow,
    PageBuilder,
    PageText,
    Signature,
    Strip,
    live_part,
    render_own_page,
)
from dragoman.monitoring.live_data import NodeView, RunView, ViewData
from dragoman.report.compose import build_report
from dragoman.report.rendering import render_page
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.records import GpuSample, InterfaceSample
from dragoman.run.status import Observation, observe_run
from dragoman.run.summary import describe_end, describe_observation, with_full_stop
from dragoman.run.units import format_bytes, format_duration, format_figure

NUM_LOG_LINES = 15
LOOK_EVERY_SECONDS = 1.0
"""Requests within this time get the same answer: many tabs cost as much as one."""
LOOK_AFTER_END_SECONDS = 10.0
"""A run that has ended may be resumed, but a folder may hold many of them."""
READING = "The files of this run are being read."
_MACHINE_COLUMNS = ("machine", "CPU", "GPUs", "memory", "network", "remark")


class RunPage(LivePage):
    """The page of one run, which may not exist yet."""

    def __init__(self, run: RunFolder, slots: threading.Semaphore, links: Sequence[tuple[str, str]] = ()) -> None:
        self.run, self._links = run, links
        self._builder = PageBuilder(lambda: render_page(build_report(run), live_part()), slots)
        self._lock = threading.RLock()
        self._data: ViewData | None = None
        self._view: RunView | None = None
        self._observation = Observation("unstarted")
        self._problem = ""
        self._looked_at = float("-inf")

    def look(self) -> RunView | None:
        """Returns the run as it is now; None where there is none yet."""
        with self._lock:
            pause = LOOK_AFTER_END_SECONDS if self._view is not None and self.has_ended else LOOK_EVERY_SECONDS
            if time.monotonic() - self._looked_at >= pause:
                try:
                    self._read()
                    self._problem = ""
                except (UserError, OSError) as error:
                    self._problem = str(error)
                self._looked_at = time.monotonic()
            return self._view

    def _read(self) -> None:
        if not self.run.exists:
            self.close()
            return
        if self._data is None:
            self._data = ViewData(self.run, NUM_LOG_LINES)
        self._observation = observe_run(self.run)
        self._view = self._data.read(self._observation)

    def close(self) -> None:
        """Closes the files."""
        with self._lock:
            if self._data is not None:
                self._data.close()
            self._data = self._view = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is expected of the run."""
        return self.run.imported.exists() or self._observation.has_ended

    def strip(self) -> Strip:
        """Returns state, progress and machines; starts to build the page if it is old."""
        view = self.look()
        if view is None:
            return Strip(["Waiting for the run"], note=self._problem, version=self.page().version, links=self._links)
        page = self._waiting_page(view)
        if page is None:
            self._builder.renew(view.state, file_signature(self.run))
        return Strip(
            items=[*self._describe(view), *(describe_progress(view) if not self.has_ended else [])],
            has_ended=self.has_ended,
            ask_again_seconds=ASK_AFTER_END_SECONDS if self.has_ended else ASK_AGAIN_SECONDS,
            note=" ".join(filter(None, (with_full_stop(self._problem) if self._problem else "", self._builder.note))),
            version=page.version if page else self._builder.version,
            machines=[] if self.has_ended else [_machine_row(node) for node in view.nodes],
            machine_columns=_MACHINE_COLUMNS,
            links=self._links,
        )

    def _describe(self, view: RunView) -> list[str]:
        if self.run.imported.exists():
            return ["Read from a log of another trainer"]
        if self._observation.has_ended:
            return [describe_end(self.run, self._observation, view.figures["step"])]
        return [describe_observation(self._observation).capitalize()]

    def page(self) -> PageText:
        """Returns the report; a page that says so where there is nothing to report yet."""
        view = self.look()
        if view is None:
            return self._plain_page(
                [f"There is no run in {self.run.path} yet. This page shows it as soon as it begins."]
            )
        waiting = self._waiting_page(view)
        if waiting is not None:
            return waiting
        self._builder.renew(view.state, file_signature(self.run))
        return self._builder.wait() or self._plain_page([self._builder.note or READING])

    def _waiting_page(self, view: RunView) -> PageText | None:
        """Returns what to show of a run that goes on but has no figures; None where there are some."""
        if self.has_ended or view.train is not None or view.dev_losses:
            return None
        return self._plain_page([f"No step has been logged yet. State of the run: {view.description}."], view.log_lines)

    def _plain_page(self, messages: Sequence[str], log_lines: Sequence[str] = ()) -> PageText:
        name = self.run.path.resolve().name
        return render_own_page("waiting.html.j2", name, messages=messages, log_lines=log_lines)


def file_signature(run: RunFolder) -> Signature:
    """Returns times and sizes of the files that a report is made from."""
    paths = (run.config, run.metrics, run.scores, run.translations, run.imported, run.corpus_facts, run.checkpoints)
    return tuple(map(_time_and_size, paths))


def _time_and_size(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def describe_progress(view: RunView) -> list[str]:
    """Describes step, quality and remaining time; what is not known is left out."""
    figures = view.figures
    items = [
        describe_step(view),
        format_figure("training loss {:.3f}", figures["loss"]),
        format_figure("dev loss {:.3f}", figures["dev_loss"]),
        format_figure("BLEU {:.1f}", figures["bleu"]),
        "" if figures["seconds_left"] is None else f"{format_duration(figures['seconds_left'])} left",
    ]
    return [item for item in items if item]


def describe_step(view: RunView) -> str:
    """Describes how far the run is."""
    step, planned = view.figures["step"], view.figures["max_steps"]
    if step is None:
        return ""
    return f"step {step:,}" + (f" of {planned:,.0f} ({min(1.0, step / planned):.0%})" if planned else "")


def _machine_row(node: NodeView) -> MachineRow:
    sample = node.sample
    used, total = sample.memory.used_bytes, sample.memory.total_bytes
    memory = "" if used is None else format_bytes(used) + ("" if total is None else f" of {format_bytes(total)}")
    others = sample.cpu.other_cores
    remarks = [
        f"silent for {format_duration(node.seconds_silent)}" if node.is_silent else "",
        f"other programs use {others:.1f} cores" if others and others >= 1 else "",
    ]
    cells = [
        format_figure("{:.0%}", sample.cpu.share),
        _describe_gpus(sample.gpus),
        memory,
        ", ".join(_describe_interface(name, sample.network[name]) for name in node.busy_interfaces[:2]),
        ", ".join(filter(None, remarks)),
    ]
    return MachineRow(node.name, cells)


def _describe_gpus(gpus: Sequence[GpuSample]) -> str:
    return ", ".join(format_figure("{:.0%}", gpu.utilisation) or "–" for gpu in gpus)


def _describe_interface(name: str, interface: InterfaceSample) -> str:
    sent, received = interface.sent_bytes_per_second or 0.0, interface.received_bytes_per_second or 0.0
    return f"{name} {sent / 1e6:.1f} MB/s out, {received / 1e6:.1f} MB/s in"
