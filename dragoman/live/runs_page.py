"""The live pages of a folder of runs: a card for each run, and their comparison."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import numpy as np

from dragoman.live.live_page import (
    ASK_AGAIN_SECONDS,
    LivePage,
    PageBuilder,
    PageText,
    Strip,
    live_part,
    render_own_page,
)
from dragoman.live.run_page import READING, RunPage, describe_step, file_signature
from dragoman.monitoring.live_data import RunView
from dragoman.report.comparison import compare_runs
from dragoman.report.evidence import read_evidence
from dragoman.report.findings import Findings
from dragoman.report.rendering import render_page
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.units import format_duration, format_figure

MAX_RUNS = 50
"""Cards of a folder; the newest runs are shown."""
MAX_COMPARED = 8
"""Runs of the comparison: as many as its charts have colours."""
FEWEST_COMPARED = 2
_ASK_IDLE_SECONDS = 10
_CURVE_WIDTH, _CURVE_HEIGHT = 240, 60
_MOST_POINTS = 120
_MOODS: dict[str, tuple[Literal["good", "neutral", "bad"], str]] = {
    "finished": ("good", "✓"),
    "failed": ("bad", "✗"),
    "lost": ("bad", "✗"),
    "running": ("neutral", "▶"),
}
RunPages = Callable[[], "dict[str, RunPage]"]


@dataclass(frozen=True)
class Card:
    """One run, in a few words."""

    name: str
    address: str
    state: str
    mood: str
    sign: str
    share: float | None
    """Share of the planned steps that are done."""
    figures: dict[str, str]
    points: str
    """The loss curve, as points of an SVG line."""


class RunsPage(LivePage):
    """A card for each run of a folder."""

    def __init__(self, folder: Path, pages: RunPages) -> None:
        self._folder, self._pages = folder, pages

    def strip(self) -> Strip:
        """Returns how many runs there are and how many go on."""
        pages = self._pages()
        num_alive = sum(not page.has_ended for page in pages.values() if page.look())
        items = [f"{len(pages):,} runs", f"{num_alive:,} not ended"]
        # New runs may begin at any time.
        seconds = ASK_AGAIN_SECONDS if num_alive else _ASK_IDLE_SECONDS
        return Strip(items, ask_again_seconds=seconds, version=self.page().version)

    def page(self) -> PageText:
        """Returns the cards."""
        pages = self._pages()
        cards = [make_card(name, page, view) for name, page in pages.items() if (view := page.look())]
        summary = f"The runs in {self._folder}, the newest first."
        if len(pages) == MAX_RUNS:
            summary = f"The {MAX_RUNS} newest runs in {self._folder}."
        return render_own_page(
            "runs.html.j2",
            self._folder.resolve().name,
            summary=summary,
            cards=cards,
            address_of_comparison="compare/" if len(cards) >= FEWEST_COMPARED else "",
        )


class ComparisonPage(LivePage):
    """The newest runs of a folder side by side."""

    def __init__(self, pages: RunPages, slots: threading.Semaphore) -> None:
        self._pages = pages
        self._builder = PageBuilder(self._render, slots)

    def strip(self) -> Strip:
        """Returns which runs are compared; starts to build the page if it is old."""
        pages = self._renew()
        return Strip(
            items=[f"{len(pages)} runs compared"],
            ask_again_seconds=_ASK_IDLE_SECONDS if all(page.has_ended for page in pages) else ASK_AGAIN_SECONDS,
            note=self._builder.note,
            version=self._builder.version,
            links=[("../", "All runs")],
        )

    def page(self) -> PageText:
        """Returns the comparison."""
        self._renew()
        waiting = self._builder.note or READING
        return self._builder.wait() or render_own_page("waiting.html.j2", "Comparison", messages=[waiting])

    def _compared(self) -> list[RunPage]:
        found = [page for page in self._pages().values() if (view := page.look()) and (view.train or view.dev_losses)]
        return found[:MAX_COMPARED]

    def _renew(self) -> list[RunPage]:
        pages = self._compared()
        states = [view.state for page in pages if (view := page.look())]
        self._builder.renew(" ".join(states), tuple((page.run.path, file_signature(page.run)) for page in pages))
        return pages

    def _render(self) -> str:
        runs = [page.run for page in self._compared()]
        if len(runs) < FEWEST_COMPARED:
            raise UserError("Fewer than two runs have logged a step: there is nothing to compare yet.")
        return render_page(compare_runs([Findings(read_evidence(run)) for run in runs]), live_part())


def find_runs(folder: Path) -> list[RunFolder]:
    """Finds the run folders in a folder, the newest first."""
    try:
        found = [RunFolder(path) for path in folder.iterdir() if RunFolder(path).exists]
    except OSError:
        return []
    return sorted(found, key=lambda run: (-_changed(run), run.path.name))[:MAX_RUNS]


def _changed(run: RunFolder) -> float:
    try:
        return run.config.stat().st_mtime
    except OSError:
        return 0.0


def make_card(name: str, page: RunPage, view: RunView) -> Card:
    """Returns the card of a run."""
    is_imported = page.run.imported.exists()
    mood, sign = ("neutral", "◐") if is_imported else _MOODS.get(view.state, ("neutral", "◐"))
    step, planned, left = (view.figures[key] for key in ("step", "max_steps", "seconds_left"))
    figures = {
        "step": describe_step(view).removeprefix("step "),
        "loss": format_figure("{:.3f}", view.figures["loss"]),
        "dev loss": format_figure("{:.3f}", view.figures["dev_loss"]),
        "BLEU": format_figure("{:.1f}", view.figures["bleu"]),
        "time left": "" if left is None else format_duration(left),
    }
    return Card(
        name=name,
        address=f"runs/{quote(name, safe='')}/",
        state="read from a log" if is_imported else view.state,
        mood=mood,
        sign=sign,
        share=min(1.0, step / planned) if step is not None and planned else None,
        figures={key: text for key, text in figures.items() if text},
        points=draw_curve(view.losses),
    )


def draw_curve(points: Sequence[tuple[float, float]]) -> str:
    """Returns a line through the points, as SVG writes it; empty where there are fewer than two."""
    values = np.array(points, dtype=np.float64).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) < 2:
        return ""
    values = values[np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(int))]
    low, high = values.min(axis=0), values.max(axis=0)
    placed = (values - low) / np.where(high > low, high - low, 1.0)
    return " ".join(f"{x * _CURVE_WIDTH:.1f},{(1 - y) * _CURVE_HEIGHT:.1f}" for x, y in placed.tolist())
