"""Charts as inline SVG: text stays text, colours are CSS variables of the page, nothing relies on colour alone."""

import io
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.diagnosis.report.parts import Chart, Mark, Series
from dragoman.diagnosis.report.plain_text import plain_text
from dragoman.diagnosis.report.svg import tidy_svg
from dragoman.diagnosis.report.thinning import numbers_of, thin_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_MARK_LABELS = 8
NUM_COLOURS = 8

_WIDTH, _PLOT_HEIGHT = 520.0, 210.0
_FONT_SIZE = 13.0
"""Room is kept for letters of this size; the page shows smaller ones where the chart is wide."""
_LETTER_WIDTH, _LINE_HEIGHT = 0.58 * _FONT_SIZE, 1.45 * _FONT_SIZE
_RIGHT, _BOTTOM = 14.0, 2.35 * _LINE_HEIGHT
_LEGEND_HANDLE, _LEGEND_GAP = 26.0, 18.0
_MOST_LANES = 3
_LONGEST_NAME = 60
_DASHES: tuple[tuple[float, ...], ...] = ((), (7, 2), (7, 2, 1.5, 2), (1.5, 1.5), (12, 3), (4, 1.5, 1.5, 1.5, 1.5, 1.5))
_DASHED = (4, 3)
_MARKERS = "os^DvPX*"
_HATCHES = ("", "//", "\\\\", "--", "xx", "||", "++", "///")
"""Only of lines: each dot of a hatch is a path of its own in the file."""
_FEW_POINTS, _MANY_POINTS = 30, 300
"""Few are shown one by one besides the line through them; many make a busy line, which is drawn thinner."""

# Colours that nobody would choose, so that each can be found again and replaced.
_INK, _MUTED, _GRID, _PAPER = "#fe01d0", "#fe01d1", "#fe01d2", "#fe01d3"
_SERIES = tuple(f"#fe02d{number}" for number in range(NUM_COLOURS))
_VARIABLES = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--grid)",
    _PAPER: "var(--paper)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(_SERIES, 1)},
}
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dragoman",
    "text.parse_math": False,  # "$34 … $50" is money
    "font.size": _FONT_SIZE,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: measured alike everywhere
    "hatch.linewidth": 1.1,
    "axes.unicode_minus": True,
    "path.simplify": True,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class _Style:
    """How a series differs from the others, with and without colour."""

    colour: str
    dash: tuple[float, ...]
    marker: str
    hatch: str


def draw_chart(chart: Chart) -> str:
    """One SVG element, or nothing where no value can be drawn."""
    chart = thin_chart(chart)
    if not chart.series:
        return ""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # Letters that the measuring font lacks are shown by the reader's own fonts.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure, axes = _draw_axes(chart)
        with io.StringIO() as file:
            figure.savefig(file, format="svg", metadata=_NO_METADATA)
            svg = file.getvalue()
    return _opening_tag(chart, figure, axes) + tidy_svg(svg, chart.key, _VARIABLES)


def _draw_axes(chart: Chart) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH / 72, 1), dpi=72)  # 72: a point of the SVG is a pixel of the figure
    figure.patch.set_visible(False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.patch.set_visible(False)
    _set_scales(axes, chart)
    styles = list(_styles(chart.series))
    _draw_series(axes, chart.series, styles)
    for mark in chart.marks:
        axes.axvline(mark.x, color=_MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    if _starts_at_zero(axes, chart):
        axes.set_ylim(bottom=0)
    is_counted = all(float(x).is_integer() for series in chart.series for x in series.x)
    _set_ticks(axes.xaxis, axes.get_xlim(), chart.is_x_log, is_counted)
    labels = _set_ticks(axes.yaxis, axes.get_ylim(), chart.is_y_log, is_counted=False)
    _set_frame(axes)
    left = 12 + _LETTER_WIDTH * max((len(label) for label in labels), default=1)
    _arrange(figure, axes, chart, styles, left)
    return figure, axes


def _set_scales(axes: "Axes", chart: Chart) -> None:
    if chart.is_x_log:
        axes.set_xscale("log")
    if chart.is_y_log:
        axes.set_yscale("log")
    axes.margins(x=0.02, y=0.06)


def _starts_at_zero(axes: "Axes", chart: Chart) -> bool:
    lowest = min(value for series in chart.series for value in series.y if value is not None)
    has_area = any(series.look in ("stack", "bars") for series in chart.series)
    return (chart.y_from_zero or has_area) and not chart.is_y_log and lowest >= 0 and axes.get_ylim()[1] > 0


def _styles(all_series: Sequence[Series]) -> Iterator[_Style]:
    """A band belongs to the series before it and shares its colour; a first band to the one after it."""
    num_coloured = 0
    for series in all_series:
        number = max(0, num_coloured - 1) if series.look == "band" else num_coloured
        num_coloured += series.look != "band"
        yield _Style(
            colour=_SERIES[number % len(_SERIES)],
            dash=_DASHED if series.look == "dashed" else _DASHES[number % len(_DASHES)],
            marker=_MARKERS[number % len(_MARKERS)],
            hatch=_HATCHES[number % len(_HATCHES)],
        )


def _draw_series(axes: "Axes", all_series: Sequence[Series], styles: Sequence[_Style]) -> None:
    floor: NDArray[np.float64] | float = 0.0
    bars = [series for series in all_series if series.look == "bars"]
    for series, style in zip(all_series, styles, strict=True):
        x, y = numbers_of(series.x), numbers_of(series.y)
        match series.look:
            case "band":
                where = np.isfinite(y).tolist()
                axes.fill_between(x, numbers_of(series.low), y, where=where, alpha=0.25, color=style.colour, zorder=2)
            case "stack":
                top = floor + np.nan_to_num(y)
                axes.fill_between(x, floor, top, **_area(style), zorder=2)
                floor = top
            case "bars":
                width = _bar_width(bars)
                offset = (bars.index(series) - (len(bars) - 1) / 2) * width
                axes.bar(x + offset, y, width, **_area(style), zorder=2)
            case "points":
                axes.plot(x, y, **_marker(style), markersize=4, alpha=0.75)
            case _:
                _draw_line(axes, x, y, style, has_markers=_shows_points(series))


def _draw_line(
    axes: "Axes", x: "NDArray[np.float64]", y: "NDArray[np.float64]", style: _Style, has_markers: bool
) -> None:
    axes.plot(x, y, **_line(style, is_thin=len(x) > _MANY_POINTS))
    is_shown = np.isfinite(y)
    if not has_markers:
        # A value between two gaps has no line to be seen by.
        padded = np.concatenate([[False], is_shown, [False]])
        is_shown &= ~(padded[:-2] | padded[2:])
    if is_shown.any():
        axes.plot(x[is_shown], y[is_shown], **_marker(style), markersize=4.5)


def _shows_points(series: Series) -> bool:
    num_values = sum(value is not None for value in series.y)
    return series.look == "points" or (series.look == "line" and num_values <= _FEW_POINTS)


def _line(style: _Style, is_thin: bool = False) -> dict[str, Any]:
    dash = (0, style.dash) if style.dash else "solid"
    return {"color": style.colour, "linewidth": 1.2 if is_thin else 1.7, "linestyle": dash, "zorder": 3}


def _marker(style: _Style) -> dict[str, Any]:
    return {"linestyle": "none", "marker": style.marker, "color": style.colour, "markeredgewidth": 0, "zorder": 4}


def _area(style: _Style) -> dict[str, Any]:
    return {"facecolor": style.colour, "edgecolor": _PAPER, "hatch": style.hatch, "linewidth": 0.6}


def _bar_width(bars: Sequence[Series]) -> float:
    places = np.unique(np.concatenate([numbers_of(series.x) for series in bars]))
    spacing = float(np.diff(places).min()) if len(places) > 1 else 1.0
    return 0.86 * spacing / len(bars)


def _set_ticks(axis: "Axis", limits: tuple[float, float], is_log: bool, is_counted: bool) -> list[str]:
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = limits
    if is_log:
        is_wide = math.log10(high) - math.log10(low) > 3
        locator: Any = LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0), numticks=7)
    else:
        locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=is_counted and high - low >= 4)
    ticks = [tick for tick in locator.tick_values(low, high).tolist() if low <= tick <= high]
    labels = _tick_labels(ticks, is_log)
    axis.set_ticks(ticks, labels=labels)
    axis.set_ticks([], minor=True)
    return labels


def _tick_labels(ticks: Sequence[float], is_log: bool) -> list[str]:
    largest = max(map(abs, ticks), default=0.0)
    unit, divisor = next(
        (pair for pair in ((" T", 1e12), (" G", 1e9), (" M", 1e6)) if largest >= 10 * pair[1]), ("", 1)
    )
    if is_log or largest >= 1e16 or largest < 1e-3:
        return [_brief(tick) for tick in ticks]
    scaled = [tick / divisor for tick in ticks]
    spacing = min((abs(b - a) for a, b in itertools.pairwise(scaled)), default=1.0)
    decimals = next((d for d in range(8) if all(abs(round(t, d) - t) <= 0.01 * spacing for t in scaled)), 8)
    return [f"{tick:,.{decimals}f}{unit if tick else ''}".replace("-", "−") for tick in scaled]


def _brief(value: float) -> str:
    """As short as it can be said: 200,000, 0.05, 5e-05."""
    return f"{value:,.0f}" if 1 <= abs(value) < 1e7 and value == round(value) else f"{value:.4g}"


def _set_frame(axes: "Axes") -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", color=_MUTED, labelcolor=_INK, length=4)
    axes.tick_params(axis="y", length=0, labelcolor=_INK, pad=6)


def _arrange(figure: "Figure", axes: "Axes", chart: Chart, styles: Sequence[_Style], left: float) -> None:
    """From the top: legend, what is measured, labels of marks, the plot, its x axis."""
    width = _WIDTH - left - _RIGHT
    legend = _legend_places(chart.series) if len(chart.series) > 1 else []
    lanes = _mark_lanes(axes, chart.marks, width)
    num_legend_lines = max((line for line, _ in legend), default=-1) + 1
    num_lanes = max((lane for _, _, lane in lanes), default=-1) + 1
    top = (num_legend_lines + 1 + num_lanes) * _LINE_HEIGHT + 8
    height = top + _PLOT_HEIGHT + _BOTTOM
    figure.set_size_inches(_WIDTH / 72, height / 72)
    axes.set_position((left / _WIDTH, _BOTTOM / height, width / _WIDTH, _PLOT_HEIGHT / height))
    _draw_legend(figure, legend, chart.series, styles)
    _write(figure, 0, num_legend_lines, chart.y_label, _MUTED)
    _write(figure, _WIDTH - _RIGHT, height / _LINE_HEIGHT - 1.0, chart.x_label, _MUTED, "right")
    for mark, place, lane in lanes:
        align = "left" if place + _text_width(mark.label) < width else "right"
        _write(figure, left + place, num_legend_lines + num_lanes - lane + 0.1, mark.label, _MUTED, align)


def _write(figure: "Figure", x: float, line: float, text: str, colour: str, align: str = "left") -> None:
    """Lines are counted from the top."""
    y = 1 - (line + 0.8) * _LINE_HEIGHT / (72 * figure.get_figheight())
    figure.text(x / _WIDTH, y, _shorten(text), color=colour, horizontalalignment=align)


def _legend_places(all_series: Sequence[Series]) -> list[tuple[int, float]]:
    """Line and x of each entry, as words are set in a paragraph."""
    places, line, x = [], 0, 0.0
    for series in all_series:
        width = _LEGEND_HANDLE + _text_width(series.name)
        if x > 0 and x + width > _WIDTH:
            line, x = line + 1, 0.0
        places.append((line, x))
        x += width + _LEGEND_GAP
    return places


def _draw_legend(
    figure: "Figure", places: Sequence[tuple[int, float]], all_series: Sequence[Series], styles: Sequence[_Style]
) -> None:
    height = 72 * figure.get_figheight()
    for (line, x), series, style in zip(places, all_series, styles, strict=False):
        _draw_handle(figure, x, height - (line + 0.52) * _LINE_HEIGHT, series, style)
        _write(figure, x + _LEGEND_HANDLE, line, series.name, _INK)


def _draw_handle(figure: "Figure", x: float, y: float, series: Series, style: _Style) -> None:
    """The same line, marker or area as in the plot."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    ends = [x, x + _LEGEND_HANDLE - 6]
    if series.look in ("band", "stack", "bars"):
        is_band = series.look == "band"
        area = {"color": style.colour, "alpha": 0.25} if is_band else _area(style)
        figure.add_artist(Rectangle((x, y - 5), ends[1] - x, 10, transform=None, **area))
        return
    if series.look != "points":
        figure.add_artist(Line2D(ends, [y, y], transform=None, **_line(style)))
    if _shows_points(series):
        figure.add_artist(Line2D([x + 10], [y], transform=None, markersize=4.5, **_marker(style)))


def _mark_lanes(axes: "Axes", marks: Sequence[Mark], width: float) -> list[tuple[Mark, float, int]]:
    """Marks with the x of their label inside the plot and a lane in which it meets no other; some may find none."""
    if len(marks) > MOST_MARK_LABELS:
        return []
    to_scale = axes.xaxis.get_transform().transform
    low, high = to_scale(np.array(axes.get_xlim()))
    lanes: list[tuple[Mark, float, int]] = []
    ends = [-_LEGEND_GAP] * _MOST_LANES
    for mark in sorted(marks, key=lambda mark: mark.x):
        place = float((to_scale(np.array([mark.x]))[0] - low) / (high - low)) * width
        text_width = _text_width(mark.label)
        start = place if place + text_width < width else place - text_width
        lane = next((lane for lane, end in enumerate(ends) if start > end + 6), None)
        if lane is not None:
            ends[lane] = start + text_width
            lanes.append((mark, place, lane))
    return lanes


def _shorten(text: str) -> str:
    text = " ".join(plain_text(text).split())
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"


def _text_width(text: str) -> float:
    return _LETTER_WIDTH * len(_shorten(text))


def _opening_tag(chart: Chart, figure: "Figure", axes: "Axes") -> str:
    """Says to a screen reader what is drawn, and to the page's script where a value is."""
    height = 72 * figure.get_figheight()
    box = axes.get_position()
    frame = (box.x0 * _WIDTH, (1 - box.y1) * height, box.x1 * _WIDTH, (1 - box.y0) * height)
    scales = f"{'log' if chart.is_x_log else 'linear'} {'log' if chart.is_y_log else 'linear'}"
    label = escape(plain_text(f"{chart.title}. {chart.note}" if chart.note else chart.title))
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:.0f} {height:.1f}" role="img" aria-label="{label}" '
        f'data-frame="{" ".join(f"{edge:.1f}" for edge in frame)}" data-scales="{scales}" '
        f'data-x="{" ".join(map(repr, map(float, axes.get_xlim())))}" '
        f'data-y="{" ".join(map(repr, map(float, axes.get_ylim())))}">'
    )
