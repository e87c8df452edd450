"""The page of differences in a real browser: no errors, no requests, quick with thousands of sentences."""

import pytest
from chromium import MARKS, Browser

from dragoman.evaluation.difference_page import render_difference_page
from dragoman.evaluation.evaluation_set import EvaluationSet
from dragoman.evaluation.scores import Judge
from dragoman.evaluation.significance import ComparedSystem, compare_systems

pytestmark = MARKS
HOSTILE = "<img src=x onerror=alert(1)> </script> مرحبا 😀"
NUM_SENTENCES = 2_000
REFERENCES = [HOSTILE, "two small cats", "今日は雨", *(f"sentence {n} is here" for n in range(NUM_SENTENCES - 3))]
FIRST = [HOSTILE, "two dogs", "今日は雪", *(f"sentence {n} was here" for n in range(NUM_SENTENCES - 3))]
SECOND = ["x", "two small dogs", "明日は雨", *(f"sentence {n} is here" for n in range(NUM_SENTENCES - 3))]
ROWS = "document.querySelectorAll('#rows li').length"
FIRST_ROW = "document.querySelector('#rows li').innerText"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    test_set = EvaluationSet(HOSTILE, REFERENCES, [REFERENCES])
    judge = Judge(test_set.references, "13a")
    systems = [ComparedSystem(HOSTILE, FIRST), ComparedSystem("second", SECOND), ComparedSystem("third", FIRST)]
    comparison = compare_systems(systems, judge, ["bootstrap"], num_samples=2)
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_difference_page(comparison, test_set, judge), encoding="utf-8")
    return path.as_uri()


def choose(browser: Browser, name: str, value: str) -> None:
    browser.evaluate(
        f"""document.getElementById({name!r}).value = {value!r};
        document.getElementById({name!r}).dispatchEvent(new Event('input', {{bubbles: true}}))"""
    )


@pytest.mark.parametrize("width", [1280, 375])
def test_it_shows_some_of_the_sentences_without_errors_or_requests(browser, page, width):
    browser.open(page, width)
    assert browser.evaluate(ROWS) == 50
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.complaints() == []
    assert [url for url in browser.requests() if url not in (page, "data:,")] == []
    browser.evaluate("document.getElementById('more').click()")
    assert browser.evaluate(ROWS) == 100


def test_sentences_are_sorted_filtered_and_searched(browser, page):
    browser.open(page)
    choose(browser, "order", "line")
    browser.wait_for(f"{FIRST_ROW}.includes('Line 1:')")
    choose(browser, "kind", "worse")
    browser.wait_for(f"{ROWS} < 50")
    assert "onerror" in browser.evaluate(FIRST_ROW)
    choose(browser, "kind", "all")
    choose(browser, "search", "sentence 1321 ")
    browser.wait_for(f"{FIRST_ROW}.includes('Line 1,325')")
    assert browser.evaluate(ROWS) == 1
    choose(browser, "search", "")
    choose(browser, "other", "2")
    browser.wait_for("document.getElementById('count').textContent.includes('third is better in 0 and worse in 0')")
    choose(browser, "kind", "different")
    browser.wait_for(f"{ROWS} === 0")


def test_words_that_differ_are_marked(browser, page):
    browser.open(page)
    marks = (
        "[...document.querySelectorAll('#rows dd mark')].map((mark) => `${mark.className} ${mark.textContent}`).join()"
    )
    choose(browser, "search", "two small")
    browser.wait_for(f"{ROWS} === 1")
    assert browser.evaluate(marks) == "right small"
    choose(browser, "search", "今日")
    browser.wait_for(f"{FIRST_ROW}.includes('今日')")
    assert browser.evaluate(marks) == "right 今,wrong 雪,wrong 明,right 雨"
