"""Keys of near-duplicates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.cleaning.normalisation import near_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello, world!", "hello world"),
        ("„Grüße“ aus Köln …", "GRÜSSE aus «Köln»"),
        ("Page 12 of 300", "page 7 of 9"),
        ("1,000.50 dollars", "3 dollars"),
        ("Ａｒｔｉｃｌｅ　１２", "article 5"),
        ("صفحة ٣٤", "صفحة 7"),
        ("co\u00adoperate\u00a0now", "cooperate now"),
        ("Что это?", "что — это"),
        ("你好。", "你好!"),
    ],
)
def test_near_duplicates_meet(one, other):
    assert near_key(one, "x") == near_key(other, "x")
    assert near_key("x", one) == near_key("x", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello world", "Hello word"),
        ("Über", "Uber"),
        # Vowels of Hindi are marks, not letters.
        ("की", "का"),
        ("...", "!!!"),
        ("page 5", "page"),
    ],
)
def test_other_sentences_do_not(one, other):
    assert near_key(one, "x") != near_key(other, "x")


def test_the_border_between_source_and_target_is_kept():
    assert near_key("ab", "c") != near_key("a", "bc")


@given(st.text(), st.text())
def test_any_text_has_a_key_with_something_of_each_side_in_it(source, target):
    source_key, _, target_key = near_key(source, target).partition("\t")
    assert bool(source_key or target_key) == bool(source or target)


@given(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1), st.sampled_from(["ж", "„", "é", ""]))
def test_a_character_of_another_alphabet_does_not_change_how_the_rest_is_read(text, addition):
    """Text takes three ways (ASCII, Latin-1, others); they must come to the same."""
    decorated = "- ".join(text) + " 123"
    assert near_key(decorated + addition, "x") == near_key(text + "0" + addition, "x")
