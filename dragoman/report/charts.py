"""Draws charts as inline SVG: text stays text, colours are CSS variables of the page, and no chart needs colour."""

import io
import itertools
import logging
import math
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.report.content import Chart, Mark, Series, plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MOST_POINTS = 600
"""Most points of a series: a chart is about as many pixels wide."""
LARGEST, SMALLEST = 1e100, 1e-100
"""Values beyond these limits are not drawn: the arithmetic of axes would overflow."""
_MOST_MARK_LABELS = 8
NUM_COLOURS = 8

_FONT_SIZE = 13.0
"""Space is reserved for text of this size; the page shows smaller text where the chart is wide."""
_CHARACTER_WIDTH, _LINE_HEIGHT = 0.58 * _FONT_SIZE, 1.45 * _FONT_SIZE
_RIGHT, _BOTTOM = 14.0, 2.35 * _LINE_HEIGHT
_LEGEND_HANDLE, _LEGEND_GAP = 26.0, 18.0
_MOST_LANES = 3
_LONGEST_NAME = 60
_DASHES: tuple[tuple[float, ...], ...] = ((), (7, 2), (7, 2, 1.5, 2), (1.5, 1.5), (12, 3), (4, 1.5, 1.5, 1.5, 1.5, 1.5))
_DASHED = (4, 3)
_MARKERS = "os^DvPX*"
_HATCHES = ("", "//", "\\\\", "--", "xx", "||", "++", "///")
"""Hatches of lines only: each dot of a dotted hatch would be a path of its own in the file."""
_FEW_POINTS, _MANY_POINTS = 30, 300
"""Series with few points show a marker at each; series with many are drawn with a thinner line."""

# Unusual colours, so that each can be found in the SVG and replaced by a CSS variable.
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
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so text is measured the same everywhere
    "hatch.linewidth": 1.1,
    "axes.unicode_minus": True,
    "path.simplify": True,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_DRAWING = threading.Lock()
"""The settings of matplotlib belong to the whole process, so one chart is drawn at a time."""


@dataclass(frozen=True)
class ChartSize:
    """Size of a chart in pixels."""

    width: float
    plot_height: float


NORMAL_SIZE = ChartSize(520, 210)
SMALL_SIZE = ChartSize(360, 150)
"""For two charts beside each other in half a page."""


@dataclass(frozen=True)
class _Style:
    """Look of a series, with and without colour."""

    colour: str
    dash: tuple[float, ...]
    marker: str
    hatch: str


def draw_chart(chart: Chart, size: ChartSize = NORMAL_SIZE) -> str:
    """Draws one SVG element; empty where no value can be drawn."""
    chart = thin_chart(chart)
    if not chart.series:
        return ""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no notice about a home folder that cannot be written
    import matplotlib as mpl

    with _DRAWING, mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # Glyphs that this font lacks are shown by the reader's own fonts.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure, axes = _draw_axes(chart, size)
        with io.StringIO() as file:
            figure.savefig(file, format="svg", metadata=_NO_METADATA)
            svg = file.getvalue()
    return _opening_tag(chart, figure, axes) + _tidy_svg(svg, chart.key, _VARIABLES)


def _draw_axes(chart: Chart, size: ChartSize) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size.width / 72, 1), dpi=72)  # 72: a point of the SVG is a pixel of the figure
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
    num_ticks = 6 if size.width >= NORMAL_SIZE.width else 4
    _set_ticks(axes.xaxis, axes.get_xlim(), chart.is_x_log, is_counted, num_ticks)
    labels = _set_ticks(axes.yaxis, axes.get_ylim(), chart.is_y_log, is_counted=False, num_ticks=num_ticks)
    _set_frame(axes)
    left = 12 + _CHARACTER_WIDTH * max((len(label) for label in labels), default=1)
    _arrange(figure, axes, chart, styles, left, size)
    return figure, axes


def _set_scales(axes: "Axes", chart: Chart) -> None:
    if chart.is_x_log:
        axes.set_xscale("log")
    if chart.is_y_log:
        axes.set_yscale("log")
    axes.margins(x=0.02, y=0.06)


def _starts_at_zero(axes: "Axes", chart: Chart) -> bool:
    lowest = min(value for series in chart.series for value in series.y if value is not None)
    has_area = any(series.look == "stack" for series in chart.series)
    return (chart.y_from_zero or has_area) and not chart.is_y_log and lowest >= 0 and axes.get_ylim()[1] > 0


def _styles(all_series: Sequence[Series]) -> Iterator[_Style]:
    """Yields the style of each series; a band shares the colour of the series before it (a first one, of the next)."""
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
    for series, style in zip(all_series, styles, strict=True):
        x, y = _numbers_of(series.x), _numbers_of(series.y)
        match series.look:
            case "band":
                where = np.isfinite(y).tolist()
                axes.fill_between(x, _numbers_of(series.low), y, where=where, alpha=0.25, color=style.colour, zorder=2)
            case "stack":
                top = floor + np.nan_to_num(y)
                axes.fill_between(x, floor, top, **_area(style), zorder=2)
                floor = top
            case "points":
                is_cloud = np.isfinite(y).sum() > _FEW_POINTS
                axes.plot(x, y, **_marker(style), markersize=4 if is_cloud else 5.5, alpha=0.75 if is_cloud else 1)
            case _:
                _draw_line(axes, x, y, style, has_markers=_shows_points(series))


def _draw_line(
    axes: "Axes", x: "NDArray[np.float64]", y: "NDArray[np.float64]", style: _Style, has_markers: bool
) -> None:
    axes.plot(x, y, **_line(style, is_thin=len(x) > _MANY_POINTS))
    is_shown = np.isfinite(y)
    if not has_markers:
        # A value between two gaps is visible only with a marker.
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


def _set_ticks(axis: "Axis", limits: tuple[float, float], is_log: bool, is_counted: bool, num_ticks: int) -> list[str]:
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = limits
    if is_log:
        is_wide = math.log10(high) - math.log10(low) > 3
        locator: Any = LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0), numticks=num_ticks + 1)
    else:
        locator = MaxNLocator(num_ticks, steps=[1, 2, 2.5, 5, 10], integer=is_counted and high - low >= 4)
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
    """Formats a number as short as possible: 200,000, 0.05, 5e-05."""
    return f"{value:,.0f}" if 1 <= abs(value) < 1e7 and value == round(value) else f"{value:.4g}"


def _set_frame(axes: "Axes") -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", color=_MUTED, labelcolor=_INK, length=4)
    axes.tick_params(axis="y", length=0, labelcolor=_INK, pad=6)


def _arrange(
    figure: "Figure", axes: "Axes", chart: Chart, styles: Sequence[_Style], left: float, size: ChartSize
) -> None:
    """Places, from the top: legend, y label, labels of marks, the plot, its x axis."""
    width = size.width - left - _RIGHT
    legend = _legend_places(chart.series, size.width) if len(chart.series) > 1 else []
    lanes = _mark_lanes(axes, chart.marks, width)
    num_legend_lines = max((line for line, _ in legend), default=-1) + 1
    num_lanes = max((lane for _, _, lane in lanes), default=-1) + 1
    top = (num_legend_lines + 1 + num_lanes) * _LINE_HEIGHT + 8
    height = top + size.plot_height + _BOTTOM
    figure.set_size_inches(size.width / 72, height / 72)
    axes.set_position((left / size.width, _BOTTOM / height, width / size.width, size.plot_height / height))
    _draw_legend(figure, legend, chart.series, styles)
    _write(figure, 0, num_legend_lines, chart.y_label, _MUTED)
    _write(figure, size.width - _RIGHT, height / _LINE_HEIGHT - 1.0, chart.x_label, _MUTED, "right")
    for mark, place, lane in lanes:
        align = "left" if place + _text_width(mark.label) < width else "right"
        _write(figure, left + place, num_legend_lines + num_lanes - lane + 0.1, mark.label, _MUTED, align)


def _write(figure: "Figure", x: float, line: float, text: str, colour: str, align: str = "left") -> None:
    """Writes text; lines are counted from the top."""
    y = 1 - (line + 0.8) * _LINE_HEIGHT / (72 * figure.get_figheight())
    figure.text(x / (72 * figure.get_figwidth()), y, _shorten(text), color=colour, horizontalalignment=align)


def _legend_places(all_series: Sequence[Series], full_width: float) -> list[tuple[int, float]]:
    """Returns line and x of each entry, wrapped like words in a paragraph."""
    places, line, x = [], 0, 0.0
    for series in all_series:
        width = _LEGEND_HANDLE + _text_width(series.name)
        if x > 0 and x + width > full_width:
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
    """Draws the line, marker or area of a legend entry as in the plot."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    ends = [x, x + _LEGEND_HANDLE - 6]
    if series.look in ("band", "stack"):
        is_band = series.look == "band"
        area = {"color": style.colour, "alpha": 0.25} if is_band else _area(style)
        figure.add_artist(Rectangle((x, y - 5), ends[1] - x, 10, transform=None, **area))
        return
    if series.look != "points":
        figure.add_artist(Line2D(ends, [y, y], transform=None, **_line(style)))
    if _shows_points(series):
        figure.add_artist(Line2D([x + 10], [y], transform=None, markersize=4.5, **_marker(style)))


def _mark_lanes(axes: "Axes", marks: Sequence[Mark], width: float) -> list[tuple[Mark, float, int]]:
    """Returns marks with the x of their label and a lane without overlaps; marks that fit into no lane are left out."""
    if len(marks) > _MOST_MARK_LABELS:
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
    return _CHARACTER_WIDTH * len(_shorten(text))


def _opening_tag(chart: Chart, figure: "Figure", axes: "Axes") -> str:
    """Returns the svg tag, with a label for screen readers and the axes for the page's script."""
    width, height = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    box = axes.get_position()
    frame = (box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height)
    scales = f"{'log' if chart.is_x_log else 'linear'} {'log' if chart.is_y_log else 'linear'}"
    label = escape(plain_text(f"{chart.title}. {chart.note}" if chart.note else chart.title))
    return (
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.1f}" role="img" aria-label="{label}" '
        f'data-frame="{" ".join(f"{edge:.1f}" for edge in frame)}" data-scales="{scales}" '
        f'data-x="{" ".join(map(repr, map(float, axes.get_xlim())))}" '
        f'data-y="{" ".join(map(repr, map(float, axes.get_ylim())))}">'
    )


def thin_chart(chart: Chart, most_points: int = MOST_POINTS) -> Chart:
    """Returns the chart with only the values that its axes can show, thinned to a number that can be seen."""
    stacked = [series for series in chart.series if series.look == "stack" and np.isfinite(_numbers_of(series.y)).any()]
    # Stacks need a linear axis: on a log axis, equal values look smaller the higher they are stacked.
    chart = replace(chart, is_y_log=chart.is_y_log and not stacked)
    put_together = dict(zip(map(id, stacked), _share_grid(stacked), strict=True))
    thinned = [_thin(put_together.get(id(series), series), chart, most_points) for series in chart.series]
    marks = [mark for mark in chart.marks if abs(mark.x) <= LARGEST and (mark.x > SMALLEST or not chart.is_x_log)]
    return replace(chart, series=[series for series in thinned if series.x], marks=marks)


def _share_grid(stacked: Sequence[Series]) -> list[Series]:
    """Interpolates stacks at common x values, where they can be added, and thins them by their sum."""
    if not stacked:
        return []
    points = [(_numbers_of(series.x), np.nan_to_num(_numbers_of(series.y))) for series in stacked]
    orders = [np.argsort(x)[: np.isfinite(x).sum()] for x, _ in points]  # NaN is sorted to the end
    points = [(x[order], y[order]) for (x, y), order in zip(points, orders, strict=True)]
    grid = np.unique(np.concatenate([x for x, _ in points]))
    layers = [np.interp(grid, x, y, left=0, right=0) if x.size else np.zeros_like(grid) for x, y in points]
    kept = _extreme_indices(np.sum(layers, axis=0), MOST_POINTS)
    return [
        replace(series, x=grid[kept].tolist(), y=layer[kept].tolist())
        for series, layer in zip(stacked, layers, strict=True)
    ]


def _thin(series: Series, chart: Chart, most_points: int) -> Series:
    x, y = _numbers_of(series.x), _numbers_of(series.y)
    low = _numbers_of(series.low) if series.look == "band" else y
    y = np.where(np.isfinite(low), y, np.nan)
    if chart.is_y_log:
        y = np.where((y > SMALLEST) & (low > SMALLEST), y, np.nan)
    is_on_axis = np.isfinite(x) & ((x > SMALLEST) | (not chart.is_x_log))
    x, y, low = x[is_on_axis], y[is_on_axis], low[is_on_axis]
    if not np.isfinite(y).any():
        return replace(series, x=[], y=[], low=[])
    choose = _even_indices if series.look in ("points", "stack") else _extreme_indices
    kept = choose(y, most_points)
    return replace(
        series,
        x=x[kept].tolist(),
        y=[value if math.isfinite(value) else None for value in y[kept].tolist()],
        low=low[kept].tolist() if series.look == "band" else [],
    )


def _numbers_of(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Returns values as an array, with NaN for None and for values beyond the limits."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)


def _even_indices(values: NDArray[np.float64], most_points: int) -> NDArray[np.intp]:
    """Returns indices at even distances: extremes would make a cloud of points look wider."""
    return np.unique(np.linspace(0, len(values) - 1, min(most_points, len(values))).astype(np.intp))


def _extreme_indices(values: NDArray[np.float64], most_points: int) -> NDArray[np.intp]:
    """Returns the ends, and the smallest and largest value of each stretch between them, so that no spike is lost."""
    if len(values) <= most_points:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(1, (most_points - 2) // 2) + 1).astype(np.intp)
    kept = {0, len(values) - 1}
    for start, stop in itertools.pairwise(edges):
        stretch = values[start:stop]
        if np.isfinite(stretch).any():
            kept |= {int(start + np.nanargmin(stretch)), int(start + np.nanargmax(stretch))}
        else:
            kept.add(int(start))
    return np.array(sorted(kept), dtype=np.intp)


def _tidy_svg(svg: str, key: str, colours: Mapping[str, str]) -> str:
    """Removes from the output of matplotlib what a page must not repeat: ids, fonts, global style rules."""
    svg = svg[svg.index("<svg") :]
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'url\(#(\w+)\)|href="#(\w+)"', svg))
    names = {name for pair in used for name in pair if name}
    svg = re.sub(r"<[^>]*>", lambda match: _tidy_tag(match[0], key, names, colours), svg)
    svg = re.sub(r">\s+<", "><", svg)
    previous = ""
    while previous != svg:
        previous, svg = svg, re.sub(r"<(g|defs)></\1>|<(g|defs)/>", "", svg)
    return svg.strip()


def _tidy_tag(tag: str, key: str, names: set[str], colours: Mapping[str, str]) -> str:
    prefix = re.sub(r"[^A-Za-z0-9-]", "-", key)
    tag = re.sub(r' id="([^"]*)"', lambda match: f' id="{prefix}-{match[1]}"' if match[1] in names else "", tag)
    tag = re.sub(r'(url\(|href=")#(\w+)', rf"\g<1>#{prefix}-\2", tag).replace("xlink:href", "href")
    tag = re.sub(r"font-(size|family|weight|style): [^;\"]*;? ?", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r' (d|x|y|width|height)="([^"]*)"', _round_numbers, tag)
    tag = re.sub(r' (fill|stroke)="(#[0-9a-f]{6})"', r' style="\1: \2"', tag)
    return re.sub(r"#[0-9a-f]{6}", lambda match: colours.get(match[0], match[0]), tag)


def _round_numbers(attribute: re.Match[str]) -> str:
    name, numbers = attribute.groups()
    # Short paths are markers and hatches, which are so small that a tenth is visible.
    digits = 1 if len(numbers) > 400 or name != "d" else 2
    rounded = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.{digits}f}".removesuffix(".0"), numbers)
    return f' {name}="{" ".join(rounded.split())}"'
