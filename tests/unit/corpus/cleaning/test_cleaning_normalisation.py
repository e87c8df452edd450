"""Normalisation: NFC and single plain spaces, once and for all."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.cleaning.normalisation import normalise, strip_only

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
def test_only_single_inner_spaces_are_left_of_white_space(text):
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
