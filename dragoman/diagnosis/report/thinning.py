"""What of a chart can be seen: values its axes can show, and no more of them than it is pixels wide."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dragoman.diagnosis.report.parts import Chart, Series

MOST_POINTS = 600
"""A series has no more: a chart is about as many pixels wide."""
LARGEST, SMALLEST = 1e100, 1e-100
"""What is larger, or on a log axis smaller, is no measurement, and the arithmetic of axes would overflow."""


def thin_chart(chart: Chart, most_points: int = MOST_POINTS) -> Chart:
    """The chart with only what can be seen: values its axes can show, and few enough of them."""
    stacked = [series for series in chart.series if series.look == "stack" and np.isfinite(numbers_of(series.y)).any()]
    # Heights are added in a stack; on a log axis a part of the same height would look smaller, the higher it stands.
    chart = replace(chart, is_y_log=chart.is_y_log and not stacked)
    put_together = dict(zip(map(id, stacked), _share_grid(stacked), strict=True))
    thinned = [_thin(put_together.get(id(series), series), chart, most_points) for series in chart.series]
    marks = [mark for mark in chart.marks if abs(mark.x) <= LARGEST and (mark.x > SMALLEST or not chart.is_x_log)]
    return replace(chart, series=[series for series in thinned if series.x], marks=marks)


def _share_grid(stacked: Sequence[Series]) -> list[Series]:
    """Stacks on one common x axis, thinned by their sum, because they can only be added there."""
    if not stacked:
        return []
    points = [(numbers_of(series.x), np.nan_to_num(numbers_of(series.y))) for series in stacked]
    orders = [np.argsort(x)[: np.isfinite(x).sum()] for x, _ in points]  # what is not a number comes last
    points = [(x[order], y[order]) for (x, y), order in zip(points, orders, strict=True)]
    grid = np.unique(np.concatenate([x for x, _ in points]))
    layers = [np.interp(grid, x, y, left=0, right=0) if x.size else np.zeros_like(grid) for x, y in points]
    kept = _extreme_indices(np.sum(layers, axis=0), MOST_POINTS)
    return [
        replace(series, x=grid[kept].tolist(), y=layer[kept].tolist())
        for series, layer in zip(stacked, layers, strict=True)
    ]


def _thin(series: Series, chart: Chart, most_points: int) -> Series:
    x, y = numbers_of(series.x), numbers_of(series.y)
    low = numbers_of(series.low) if series.look == "band" else y
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


def numbers_of(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Values as an array; what is none, or no measurement, is not a number."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)


def _even_indices(values: NDArray[np.float64], most_points: int) -> NDArray[np.intp]:
    """A cloud keeps its density: the smallest and largest value of each stretch would make it look wider."""
    return np.unique(np.linspace(0, len(values) - 1, min(most_points, len(values))).astype(np.intp))


def _extreme_indices(values: NDArray[np.float64], most_points: int) -> NDArray[np.intp]:
    """The ends, and the smallest and largest value of each stretch in between: no spike is lost."""
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
