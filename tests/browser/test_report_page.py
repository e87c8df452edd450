"""The page of a report in a real browser: no errors, no requests, values under the pointer, light, dark and print."""

import base64
import json
from dataclasses import replace

import matplotlib.image
import pytest
from chromium import MARKS, Browser
from sample_report import hostile_report, sample_comparison, sample_report

from dragoman.report.rendering import render_page

HOVER_TEXT = "document.querySelector('.hover')?.innerText"
pytestmark = MARKS


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    reports = {"sample": sample_report(), "comparison": sample_comparison(), "hostile": hostile_report()}
    for name, report in reports.items():
        (folder / f"{name}.html").write_text(render_page(report), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in reports}


@pytest.mark.parametrize("name", ["sample", "comparison", "hostile"])
@pytest.mark.parametrize("width", [1280, 375, 320])
def test_a_page_has_no_errors_makes_no_request_and_fits_the_screen(browser, pages, name, width):
    browser.open(pages[name], width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('figure svg').length") > 0
    assert browser.complaints() == []
    assert [url for url in browser.requests() if url not in (pages[name], "data:,")] == []


def test_hostile_text_makes_no_element(browser, pages):
    browser.open(pages["hostile"])
    assert browser.evaluate("document.querySelectorAll('img, [onerror]').length") == 0
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert browser.evaluate("document.body.textContent.includes('<script>alert(1)</script>')") is True


def test_the_first_screen_shows_state_curves_verdict_answers_and_warnings(browser, pages):
    browser.open(pages["sample"], 1280, 800)
    for thing in (".state", "figure svg", ".verdict", "nav li:last-child", ".warnings h2"):
        bottom = f"document.querySelector('{thing}').getBoundingClientRect().bottom"
        assert 0 < browser.evaluate(bottom) <= 800, thing


TILE_ROWS = """
    const tiles = [...document.querySelectorAll('.tiles > div')].map((tile) => tile.getBoundingClientRect());
    const box = document.querySelector('.tiles').getBoundingClientRect();
    const rows = Object.groupBy(tiles, (tile) => Math.round(tile.top));
    const reaches = (row) => Math.abs(row[0].left - box.left) < 1 && Math.abs(row.at(-1).right - box.right) < 1;
    Object.values(rows).every(reaches)
"""


@pytest.mark.parametrize("width", [320, 600, 800, 1280])
def test_every_row_of_tiles_is_full(browser, tmp_path, width):
    for number in range(10):
        figures = {f"figure {each}": "1,234" for each in range(number)}
        report = replace(sample_report(), figures=figures, answers=[], sections=[], overview=[])
        (tmp_path / f"{number}.html").write_text(render_page(report), encoding="utf-8")
        browser.open((tmp_path / f"{number}.html").as_uri(), width)
        assert browser.evaluate("{" + TILE_ROWS + "}"), number


def chart_centre(browser: Browser, key: str) -> tuple[float, float]:
    chart = f"document.querySelector('figure[data-chart={key}] svg')"
    browser.evaluate(f"document.documentElement.style.scrollBehavior = 'auto'; {chart}.scrollIntoView()")
    box = browser.evaluate(f"JSON.stringify({chart}.getBoundingClientRect())")
    size = json.loads(box)
    return size["x"] + size["width"] / 2, size["y"] + size["height"] / 2


def test_values_under_the_pointer(browser, pages):
    browser.open(pages["sample"])
    x, y = chart_centre(browser, "bleu")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    text = browser.wait_for(HOVER_TEXT)
    assert "step: 60,000" in text
    assert "newstest2013\n24.4" in text
    assert "newstest2014\n25.6" in text
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.wait_for("document.querySelector('.hover') === null")


def test_values_by_keyboard(browser, pages):
    browser.open(pages["sample"])
    browser.evaluate("document.querySelector('figure[data-chart=bleu] svg').focus()")
    for _ in range(2):
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    browser.wait_for(f"({HOVER_TEXT} || '').includes('step: 20,000')")


def test_hostile_names_are_shown_as_text_under_the_pointer(browser, pages):
    browser.open(pages["hostile"])
    x, y = chart_centre(browser, "evil")
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x - 100, y=y)
    assert "<img src=x onerror=alert(2)>" in browser.wait_for(HOVER_TEXT)
    assert browser.complaints() == []


def paper_and_ink(browser: Browser) -> tuple[str, str]:
    return tuple(browser.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))


def test_dark_where_preferred_or_chosen_and_light_in_print(browser, pages):
    browser.open(pages["sample"])
    light = paper_and_ink(browser)
    browser.emulate(scheme="dark")
    dark = paper_and_ink(browser)
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    browser.evaluate("document.getElementById('theme').click()")
    assert paper_and_ink(browser) == light
    browser.evaluate("document.getElementById('theme').click()")
    assert paper_and_ink(browser) == dark
    browser.emulate(media="print", scheme="dark")
    assert paper_and_ink(browser) == light


def test_print_shows_folded_text(browser, pages):
    browser.open(pages["sample"])
    assert browser.evaluate("document.querySelectorAll('details[open]').length") == 0
    browser.evaluate(
        "addEventListener('beforeprint', () => { window.opened = document.querySelectorAll('details[open]').length })"
    )
    pdf = base64.b64decode(browser.ask("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
    assert browser.evaluate("window.opened") == 3, "two warnings and the configuration"
    browser.wait_for("document.querySelectorAll('details[open]').length === 0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_in_the_right_colours(browser, pages, tmp_path, scheme):
    browser.emulate(scheme=scheme)
    browser.open(pages["sample"])
    chart_centre(browser, "forecast")
    browser.save_screenshot(tmp_path / "page.png")
    picture = matplotlib.image.imread(tmp_path / "page.png")[..., :3]
    paper = picture[5, 5]
    share_drawn = (abs(picture - paper).max(axis=2) > 0.1).mean()
    assert (paper.mean() > 0.5) == (scheme == "light")
    assert 0.01 < share_drawn < 0.5
