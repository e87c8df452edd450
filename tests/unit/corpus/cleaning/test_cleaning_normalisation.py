"""Normalisation (NFC, single spaces), and keys of near-duplicates."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.cleaning.normalisation import near_key, normalise, strip_only

# Rich in what is special: white space of all kinds, characters that compose, invisible ones.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(" \t\n\r\x0b\x1c\x85\u00a0\u1680\u2000\u2001\u2028\u202f\u3000\u200b\u00ad\ufeff"),
        st.sampled_from("aeu\u0301\u0308\u0323\u0345\u1100\u1161\u11a8\u212b\u0340\u1fef"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)


@given(TEXTS)
def test_normalising_twice_changes_nothing_more(text):
    assert normalise(normalise(text)) == normalise(text)


@given(TEXTS)
def test_white_space_becomes_single_inner_spaces(text):
    result = normalise(text)
    assert all(character == " " for character in result if character.isspace())
    assert "  " not in result
    assert result == result.strip()


@given(TEXTS)
def test_the_words_are_those_of_the_text_in_nfc(text):
    assert normalise(text).split() == unicodedata.normalize("NFC", text).split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (" \t\u00a0 ", ""),
        ("a b", "a b"),
        ("a  b", "a b"),
        (" a b ", "a b"),
        ("  a \t b\u3000\u2009c\n", "a b c"),
        ("a\x1cb", "a b"),
        ("u\u0308ber", "über"),
        ("a\u200bb\u00adc", "a\u200bb\u00adc"),
        ("ﬁ ½", "ﬁ ½"),
    ],
)
def test_examples(text, expected):
    assert normalise(text) == expected


def test_without_normalisation_only_the_ends_are_stripped():
    assert strip_only("\t a  b\u00a0c u\u0308 \n") == "a  b\u00a0c u\u0308"


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
def test_near_duplicates_share_a_key(one, other):
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
def test_other_sentences_have_other_keys(one, other):
    assert near_key(one, "x") != near_key(other, "x")


def test_the_border_between_source_and_target_is_kept():
    assert near_key("ab", "c") != near_key("a", "bc")


@given(st.text(), st.text())
def test_the_key_is_empty_only_for_empty_text(source, target):
    source_key, _, target_key = near_key(source, target).partition("\t")
    assert bool(source_key or target_key) == bool(source or target)


@given(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1), st.sampled_from(["ж", "„", "é", ""]))
def test_a_character_of_another_alphabet_does_not_change_how_the_rest_is_read(text, addition):
    """There are three code paths (ASCII, Latin-1, others); they must agree."""
    decorated = "- ".join(text) + " 123"
    assert near_key(decorated + addition, "x") == near_key(text + "0" + addition, "x")
