"""Each filter by a table of pairs that it drops and pairs that it keeps."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.cleaning.clean import build_checks
from dragoman.corpus.cleaning.filters import Rules

EN = "The committee has adopted the report of the parliament today."
DE = "Der Ausschuss hat den Bericht des Parlaments heute angenommen."


def drops(rules: Rules, source: str, target: str) -> bool:
    return any(fails(source, target) for _, fails in build_checks(rules))


def drops_either_way(rules: Rules, one: str, other: str) -> bool:
    forth, back = drops(rules, one, other), drops(rules, other, one)
    assert forth == back
    return forth


@pytest.mark.parametrize(("text", "is_dropped"), [("", True), ("a", False)])
def test_empty(text, is_dropped):
    assert drops_either_way(Rules(empty=True), text, "b") is is_dropped


@pytest.mark.parametrize(("text", "is_dropped"), [("a▁b", True), ("▅", True), ("a _ ▂ b", False)])
def test_reserved_characters(text, is_dropped):
    assert drops_either_way(Rules(), text, "b") is is_dropped
    assert not drops_either_way(Rules(reserved_characters=False), text, "b")


DAMAGED = ["\x00", "\x1b", "\x7f", "\x9f", "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\ue000", "\U000f0000", "\U0001ffff"]
DAMAGED += ["\U000efffe", "\U0010ffff", "\ud800", "\udfff"]
WHOLE = ["ü", "\u200d", "\u200c", "\u00ad", "\u200f", "\u0378", "😀", "\ufeff", "\U00020000", "\t", "\u00a0"]


@pytest.mark.parametrize(
    ("character", "is_dropped"), [(bad, True) for bad in DAMAGED] + [(good, False) for good in WHOLE]
)
def test_control_characters(character, is_dropped):
    assert drops_either_way(Rules(control_characters=True), f"a {character} b", "b") is is_dropped


@given(st.characters())
def test_control_characters_go_by_unicodes_categories(character):
    is_noncharacter = ord(character) & 0xFFFE == 0xFFFE or "\ufdd0" <= character <= "\ufdef"
    is_control = unicodedata.category(character) in ("Cc", "Co", "Cs") and character != "\t"
    expected = is_control or is_noncharacter or character == "\ufffd"
    assert drops(Rules(control_characters=True), character, "b") is expected


@pytest.mark.parametrize(
    ("text", "is_dropped"), [("", True), ("a", True), ("a b", False), ("a b c", False), ("a b c d", True)]
)
def test_length_words(text, is_dropped):
    assert drops_either_way(Rules(length_words=(2, 3)), text, "a b") is is_dropped


def test_words_of_text_that_is_not_normalised_are_runs_between_white_space():
    assert not drops_either_way(Rules(length_words=(2, 3), normalise=False), "a  b\u00a0\tc", "a b")
    assert drops_either_way(Rules(length_words=(2, 3), normalise=False), "a  b\u00a0\tc\u3000d", "a b")


@pytest.mark.parametrize(("text", "is_dropped"), [("ab", True), ("äbc", False), ("abcd", False), ("abcde", True)])
def test_length_characters(text, is_dropped):
    assert drops_either_way(Rules(length_characters=(3, 4)), text, "abc") is is_dropped


@pytest.mark.parametrize(
    ("one", "other", "is_dropped"),
    [
        ("a b c d", "a", False),
        ("a b c d e", "a", True),
        ("a b c d e", "Rindfleischetikettierungsüberwachungsaufgabe b", False),
        ("", "a", True),
        ("", "", False),
        # One "word" of Chinese, Japanese or Thai is a sentence.
        ("我们今天通过了议会的报告。", EN, False),
        ("委員会は本日、議会の報告書を採択しました。", EN, False),
        ("คณะกรรมการได้รับรองรายงานของรัฐสภาในวันนี้", EN, False),
        ("我们今天通过了议会的报告。我们今天通过了议会的报告。", "Yes, sir.", True),
        ("我", EN, True),
        # A quotation does not make a text Chinese.
        ("The word 好 means good", "好 heißt gut", False),
        ("a b c 好", "a", False),
    ],
)
def test_length_ratio(one, other, is_dropped):
    assert drops_either_way(Rules(length_ratio=4.0), one, other) is is_dropped


@pytest.mark.parametrize(("target", "is_dropped"), [("Berlin", True), ("berlin", False)])
def test_identical(target, is_dropped):
    assert drops(Rules(identical=True), "Berlin", target) is is_dropped


@pytest.mark.parametrize(
    ("source", "target", "is_dropped"),
    [
        ("It cost 1,000.5 dollars.", "Es kostete 1.000,5 Dollar.", False),
        ("It cost 1,000 dollars.", "Es kostete 1'000 Dollar.", False),
        ("It cost 1,000,000.", "Es kostete 1 000 000.", False),
        ("It cost 10,000.", "Es kostete 10\u00a0000.", False),
        ("It cost 10,000.", "Es kostete 10\u202f000.", False),
        ("In 2001 15 came.", "15 kamen im Jahr 2001.", False),
        ("In 2001, 150 came.", "2001 150 kamen", False),
        ("Article 12", "Artikel 13", True),
        ("2 and 2", "2", True),
        ("3 of 4", "4 of 3", False),
        ("no number", "keine Zahl", False),
        ("٣٤ and १२", "12 und 34", False),
        ("007", "7", True),
    ],
)
def test_numbers(source, target, is_dropped):
    assert drops_either_way(Rules(numbers=True), source, target) is is_dropped


def test_script_and_language_judge_each_side_by_its_own_language():
    rules = Rules(script=0.5, language=25, languages=("en", "de"))
    assert not drops(rules, EN, DE)
    assert drops(rules, DE, EN)
    assert drops(rules, EN, EN)
    assert drops(rules, DE, DE)
    assert drops(rules, "Москва", "Moskau")


def test_a_side_whose_language_is_unknown_is_not_judged():
    rules = Rules(script=0.5, language=25, languages=("qaa", "de"))
    assert not drops(rules, "Парламент сегодня принял доклад комитета.", DE)
    assert drops(rules, EN, EN)
