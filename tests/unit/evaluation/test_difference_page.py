"""The page of differences holds all sentences as data; text of the systems cannot become markup."""

import html
import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.evaluation.difference_page import render_difference_page
from dragoman.evaluation.evaluation_set import EvaluationSet
from dragoman.evaluation.scores import Judge
from dragoman.evaluation.significance import ComparedSystem, compare_systems

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'"


def render(name: str, sources: list[str] | None, references: list[str], first: list[str], second: list[str]) -> str:
    test_set = EvaluationSet(name, sources, [references])
    judge = Judge(test_set.references, "13a")
    systems = [ComparedSystem(name, first), ComparedSystem("other", second)]
    return render_difference_page(compare_systems(systems, judge, num_samples=3), test_set, judge, ["a note"])


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="sentences">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_has_verdicts_scores_signatures_and_sentences():
    page = render("base", ["eins", "zwei"], ["one cat", "two cats"], ["one cat", "a dog"], ["one cat", "two cat"])
    sentence = data_of(page)["sentences"][1]
    assert sentence["texts"] == ["a dog", "two cat"]
    assert (sentence["line"], sentence["source"], sentence["references"]) == (2, "zwei", ["two cats"])
    assert len(sentence["scores"]) == 2
    for words in ("base compared with other", "2 sentences of base", "bs:3|seed:12345", "a note", "p, randomisation"):
        assert words in html.unescape(page)
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)


def test_hostile_text_stays_text():
    page = render(HOSTILE, [HOSTILE], [HOSTILE], [HOSTILE], ["x"])
    assert "<script>alert" not in page
    assert "<img" not in page
    assert data_of(page)["sentences"][0]["texts"][0] == HOSTILE


@settings(max_examples=20)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_arrives_as_it_is(text):
    data = data_of(render("base", [text], ["reference"], [text], ["x"]))
    assert data["sentences"][0]["source"] == data["sentences"][0]["texts"][0] == text
