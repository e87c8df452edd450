"""Charts as SVG: safe, repeatable, small, readable without colour."""

import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_report import HOSTILE, hostile_report, sample_comparison, sample_report

from dragoman.report.charts import MOST_POINTS, SMALL_SIZE, draw_chart, thin_chart
from dragoman.report.content import Chart, Mark, Series, plain_text

ALL_CHARTS = [
    chart
    for report in (sample_report(), sample_comparison(), hostile_report())
    for block in (*getattr(report, "answers", ()), *report.sections)
    for chart in block.charts
]
LOOKS = ["line", "points", "dashed", "band", "stack"]


def chart_of(*series: Series, **settings) -> Chart:
    return Chart("some-key", "Title", "step", "loss (nats)", series, **settings)


def line(y, look="line", name="loss", **others) -> Series:
    return Series(name, list(range(1, len(y) + 1)), y, look, **others)


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("text")]


@pytest.mark.parametrize("chart", ALL_CHARTS, ids=lambda chart: chart.key)
def test_every_chart_is_valid_svg_with_colours_of_the_page_and_without_addresses(chart):
    svg = draw_chart(chart)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label").startswith(plain_text(chart.title))
    assert {element.tag for element in root.iter()} <= {
        *("svg", "g", "defs", "path", "use", "text", "clipPath", "rect", "pattern")
    }
    assert "http" not in re.sub(r'>[^<]*<|aria-label="[^"]*"', "", svg)
    assert "nan" not in re.sub(r'>[^<]*<|aria-label="[^"]*"', "", svg)
    tags = "".join(re.findall(r"<[^>]*>", svg))
    assert re.findall(r"#[0-9a-fA-F]{6}\b|rgb\(", tags) == []
    assert "var(--series-1)" in tags
    assert "var(--ink)" in tags


def test_ids_start_with_the_key_and_each_reference_finds_its_id():
    svg = draw_chart(next(chart for chart in ALL_CHARTS if chart.key == "phases"))
    ids = re.findall(r' id="([^"]*)"', svg)
    assert len(ids) == len(set(ids)) > 0
    assert all(name.startswith("phases-") for name in ids)
    assert set(re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', svg)) <= {(name, "") for name in ids} | {
        ("", name) for name in ids
    }


def test_the_same_chart_gives_the_same_picture():
    for chart in ALL_CHARTS[:3]:
        assert draw_chart(chart) == draw_chart(chart)


def test_text_stays_text_with_units_and_thousands_separators():
    chart = chart_of(Series("loss", [0, 50_000, 100_000], [3.0, 2.0, 1.5]), marks=[Mark(50_000, "restart")])
    shown = texts(draw_chart(chart))
    assert {"step", "loss (nats)", "restart", "20,000", "100,000"} <= set(shown)
    assert "loss" not in shown, "one series needs no legend"
    assert {"a", "b"} <= set(texts(draw_chart(chart_of(line([1, 2], name="a"), line([2, 3], name="b")))))


def test_dollars_are_money_not_formulas():
    assert "from $3 to $4" in texts(draw_chart(chart_of(line([1, 2], name="from $3 to $4"), line([1, 2]))))


def test_series_differ_without_colour():
    svg = draw_chart(chart_of(*(line([float(number)] * 100, name=str(number)) for number in range(4))))
    dashes = re.findall(r'style="fill: none;( stroke-dasharray: [^;]*;)?[^"]*stroke: var\(--series-(\d)\)', svg)
    assert len({dash for dash, _ in dashes}) == 4
    stacks = draw_chart(chart_of(*(line([1.0] * 9, "stack", str(number)) for number in range(4))))
    assert len(re.findall("<pattern ", stacks)) == 3, "the first is plain, the others are hatched"


def test_a_band_has_the_colour_of_its_line():
    band = draw_chart(chart_of(line([1, 2]), line([2, 3], "dashed"), line([3, 4], "band", low=[1, 2])))
    assert re.search(r"fill: var\(--series-2\); fill-opacity", band)
    assert "--series-3" not in band


def test_many_marks_lose_their_labels_and_near_ones_do_not_overlap():
    many = draw_chart(chart_of(line([1.0] * 20), marks=[Mark(x, f"mark {x}") for x in range(1, 10)]))
    assert not any(text.startswith("mark") for text in texts(many))
    near = draw_chart(chart_of(line([1.0] * 100), marks=[Mark(50 + x / 10, f"mark {x}") for x in range(8)]))
    labels = re.findall(r'x="([\d.]+)" y="([\d.]+)">mark', near)
    assert 1 < len(labels) < 8
    assert len({y for _, y in labels}) == len(labels)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("y", [[], [None, None], [math.nan, math.inf]])
def test_an_empty_chart_is_left_out(look, y):
    assert draw_chart(chart_of(line(y, look, low=[0.0] * len(y)))) == ""
    assert draw_chart(chart_of()) == ""


def test_log_axes_drop_what_they_cannot_show():
    chart = Chart("k", "t", "x", "y", [Series("s", [-1, 0, 1, 10], [1, 1, 0, 5])], is_x_log=True, is_y_log=True)
    assert thin_chart(chart).series[0].x == [1, 10]
    assert thin_chart(chart).series[0].y == [None, 5]
    assert draw_chart(chart)


def test_gaps_stay_gaps_and_a_single_value_is_visible():
    y = [1.0] * 50 + [None, 2.0, None] + [1.0] * 50
    svg = draw_chart(chart_of(line(y)))
    curve = max(re.findall(r' d="([^"]*)"', svg), key=lambda path: path.count("L"))
    assert curve.count("M") >= 2
    assert svg.count("<use") > draw_chart(chart_of(line([1.0] * 50 + [None] * 3 + [1.0] * 50))).count("<use")


def test_thinning_keeps_ends_and_spikes():
    y = [math.sin(x / 3000) for x in range(100_000)]
    y[54_321], y[77_777] = 50.0, -50.0
    thinned = thin_chart(chart_of(line(y))).series[0]
    assert len(thinned.x) == len(thinned.y) <= MOST_POINTS
    assert {50.0, -50.0, y[0], y[-1]} <= set(thinned.y)
    assert thinned.x == sorted(thinned.x)


def test_thinning_keeps_stacks_together_and_clouds_dense():
    stacks = [line([float(x % 7) for x in range(5000)], "stack"), line([1.0] * 5000, "stack")]
    first, second = thin_chart(chart_of(*stacks)).series
    assert first.x == second.x
    assert len(first.x) <= MOST_POINTS
    cloud = thin_chart(chart_of(line([float(x % 2) for x in range(5000)], "points"))).series[0]
    assert len(cloud.x) == MOST_POINTS


def test_stacks_with_different_x_values_are_added():
    chart = chart_of(Series("a", [0, 2], [1, 1], "stack"), Series("b", [1, 2], [2, 2], "stack"))
    first, second = thin_chart(chart).series
    assert (first.x, first.y) == ([0, 1, 2], [1, 1, 1])
    assert (second.x, second.y) == ([0, 1, 2], [0, 2, 2])


def test_drawing_is_quick_and_small():
    chart = chart_of(*(line([math.sin(x * number) for x in range(20_000)], name=str(number)) for number in range(1, 4)))
    draw_chart(chart)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        svg = draw_chart(chart)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.4, "80 ms of CPU time on one machine"
    assert len(svg) < 50_000


def test_a_small_chart_keeps_its_text_inside():
    chart = chart_of(line([1.0, 2.0], name="training loss"), line([2.0, 3.0], name="dev loss"))
    svg = draw_chart(chart, SMALL_SIZE)
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    assert width == SMALL_SIZE.width
    assert height < 260
    assert {"step", "training loss", "dev loss"} <= set(texts(svg))
    assert all(0 <= float(x) <= width for x in re.findall(r'<text [^>]*x="([\d.-]+)"', svg))


def test_charts_may_be_drawn_in_several_threads():
    charts = [replace(chart, key=f"chart-{number}") for number, chart in enumerate(ALL_CHARTS[:4])]
    alone = list(map(draw_chart, charts))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw_chart, charts)) == alone


def test_control_characters_are_spelled_out():
    assert plain_text("a\x1b[31m\x00\u202eb\ud800\r\nc\td") == "a\\x1b[31m\\x00\\u202eb\\ud800\nc\td"
    assert plain_text("Straße 10\u00a0000 日本 👩\u200d💻") == "Straße 10\u00a0000 日本 👩\u200d💻"


VALUES = st.none() | st.floats() | st.integers(-(10**9), 10**9)


@st.composite
def any_series(draw):
    y = draw(st.lists(VALUES, max_size=8))
    x = draw(st.lists(st.floats(), min_size=len(y), max_size=len(y)))
    low = draw(st.lists(st.floats(), min_size=len(y), max_size=len(y)))
    return Series(draw(st.text(max_size=20)), x, y, draw(st.sampled_from(LOOKS)), low)


def test_stacks_out_of_order_are_put_in_order():
    chart = chart_of(Series("a", [2, 1, math.nan, 3], [20, 10, 99, 30], "stack"), is_y_log=True)
    thinned = thin_chart(chart)
    assert (thinned.series[0].x, thinned.series[0].y) == ([1, 2, 3], [10, 20, 30])
    assert not thinned.is_y_log


@pytest.mark.filterwarnings("error::RuntimeWarning")  # numpy's, of values that it cannot compute with
@settings(max_examples=25)
@given(
    st.lists(any_series(), max_size=3),
    st.lists(st.builds(Mark, st.floats(), st.text(max_size=9)), max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_values_and_names_give_valid_svg_or_nothing(series, marks, is_x_log, is_y_log, y_from_zero):
    chart = Chart("k", "t", "x", "y", series, marks, is_x_log, is_y_log, y_from_zero)
    svg = draw_chart(chart)
    if svg:
        ElementTree.fromstring(svg)


@settings(max_examples=12)
@example(HOSTILE)
@given(st.text(max_size=60))
def test_any_text_stays_text(text):
    chart = chart_of(line([1, 2], name=text), line([2, 3]), marks=[Mark(1, text)], note=text)
    svg = draw_chart(replace(chart, title=text, x_label=text, y_label=text))
    tags = {element.tag for element in ElementTree.fromstring(svg).iter()}
    assert tags <= {"svg", "g", "defs", "path", "use", "text", "clipPath", "rect"}
