"""Filters of single pairs, and cleaning of blocks: no pair is lost or counted twice."""

import random
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dragoman.corpus.cleaning.clean import CleanBlock, Dropped, Example, build_checks, clean_block
from dragoman.corpus.cleaning.filters import Rules, resolve_rules
from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.settings import PrepareSettings

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


@given(st.characters(exclude_characters="▁▅"))  # SentencePiece's own marks, which another rule drops
def test_control_characters_follow_unicode_categories(character):
    is_noncharacter = ord(character) & 0xFFFE == 0xFFFE or "\ufdd0" <= character <= "\ufdef"
    is_control = unicodedata.category(character) in ("Cc", "Co", "Cs") and character != "\t"
    expected = is_control or is_noncharacter or character == "\ufffd"
    assert drops(Rules(control_characters=True), character, "b") is expected


@pytest.mark.parametrize(
    ("text", "is_dropped"), [("", True), ("a", True), ("a b", False), ("a b c", False), ("a b c d", True)]
)
def test_length_words(text, is_dropped):
    assert drops_either_way(Rules(length_words=(2, 3)), text, "a b") is is_dropped


def test_words_of_unnormalised_text_are_split_at_white_space():
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


def test_script_and_language_check_each_side_for_its_own_language():
    rules = Rules(script=0.5, language=25, languages=("en", "de"))
    assert not drops(rules, EN, DE)
    assert drops(rules, DE, EN)
    assert drops(rules, EN, EN)
    assert drops(rules, DE, DE)
    assert drops(rules, "Москва", "Moskau")


def test_a_side_in_an_unknown_language_is_not_checked():
    rules = Rules(script=0.5, language=25, languages=("qaa", "de"))
    assert not drops(rules, "Парламент сегодня принял доклад комитета.", DE)
    assert drops(rules, EN, EN)


STRICT = resolve_rules(PrepareSettings(cleaning="strict", languages="en-de"))
LINES = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from("ab1 \t\u00a0▁é好\x1b\u200d"), max_size=12),
    st.sampled_from(["Good morning", "Guten Morgen", "", "  "]),
)
PAIRS = st.lists(st.tuples(LINES, LINES), max_size=12)

RECORDS = TypeAdapter(Dropped)


def clean(pairs: list[tuple[str, str]], rules: Rules) -> CleanBlock:
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    return clean_block(sources, targets, rules, lambda index: f"my.en, line {index + 1}")


def is_subsequence(part: list, whole: list) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


@given(PAIRS, st.sampled_from([STRICT, Rules(), Rules(empty=True, numbers=True)]))
def test_each_pair_is_kept_or_dropped_once_and_order_is_kept(pairs, rules):
    block = clean(pairs, rules)
    survivors = list(zip(block.sources, block.targets, strict=True))
    assert len(survivors) + sum(dropped.num_pairs for dropped in block.dropped.values()) == len(pairs)
    assert is_subsequence(survivors, [(normalise(source), normalise(target)) for source, target in pairs])
    assert [(normalise(pairs[index][0]), normalise(pairs[index][1])) for index in block.indices] == survivors
    assert set(block.dropped) <= {name for name, _ in build_checks(rules)}
    # What is left has nothing more to be dropped.
    assert clean(survivors, rules).dropped == {}


def test_a_pair_is_counted_for_the_first_filter_it_fails():
    pairs = [("", ""), ("a▁\x1b", "a▁\x1b"), ("\x1b", "\x1b"), ("a", "a"), ("a", "b")]
    block = clean(pairs, Rules(empty=True, control_characters=True, identical=True))
    assert {name: dropped.num_pairs for name, dropped in block.dropped.items()} == {
        "empty": 1,
        "reserved_characters": 1,
        "control_characters": 1,
        "identical": 1,
    }
    assert (block.sources, block.targets) == (["a"], ["b"])


def test_the_first_three_are_examples_with_their_places():
    block = clean([("x", "y"), *[(f"▁{number}", "z") for number in range(5)]], Rules())
    dropped = block.dropped["reserved_characters"]
    assert dropped.num_pairs == 5
    assert dropped.examples == [Example(f"my.en, line {number + 2}", f"▁{number}", "z") for number in range(3)]


def test_kept_pairs_can_be_counted_and_removed_later():
    block = clean([("▁", "x"), ("a", "1"), ("b", "2"), ("▁", "y"), ("c", "3")], Rules())
    assert block.indices == [1, 2, 4]
    block.count("duplicates", [0, 2], lambda index: f"line {index + 1}")
    block.count("overlap", [], str)
    block.remove([0, 2])
    assert block.dropped["duplicates"] == Dropped(2, [Example("line 2", "a", "1"), Example("line 5", "c", "3")])
    assert "overlap" not in block.dropped
    assert (block.sources, block.targets, block.indices) == (["b"], ["2"], [2])


def test_places_are_requested_for_examples_only():
    asked = []
    clean_block(["▁"] * 5 + ["a"], ["b"] * 6, Rules(), lambda index: asked.append(index) or "")
    assert asked == [0, 1, 2]


def test_examples_are_cut_but_survivors_are_not():
    block = clean([("▁" * 500, "a" * 200), ("b" * 500, "c")], Rules())
    example = block.dropped["reserved_characters"].examples[0]
    assert example.source == "▁" * 199 + "…"
    assert example.target == "a" * 200
    assert block.sources == ["b" * 500]


def test_without_normalisation_text_stays_as_it_is():
    block = clean([(" a  b\u00a0c ", "u\u0308\tx ")], Rules(normalise=False))
    assert (block.sources, block.targets) == (["a  b\u00a0c"], ["u\u0308\tx"])


def test_sides_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        clean_block(["a"], [], Rules(), str)


@given(PAIRS)
def test_what_was_dropped_survives_json(pairs):
    for dropped in clean(pairs, STRICT).dropped.values():
        assert RECORDS.validate_json(RECORDS.dump_json(dropped)) == dropped


def test_lone_surrogates_in_examples_can_be_written():
    block = clean([("a \ud800", "b")], Rules(control_characters=True))
    assert block.dropped["control_characters"].examples[0].source.encode() == b"a ?"


def survives_moses(source: str, target: str) -> bool:
    """Implements clean-corpus-n with 1 80 again: 1 to 80 words between white space, and a ratio of at most 9."""
    num_source, num_target = (len(re.findall(r"\S+", line)) for line in (source, target))
    if min(num_source, num_target) < 1 or max(num_source, num_target) > 80:
        return False
    return num_source / num_target <= 9 and num_target / num_source <= 9


def moses_line(num_words: int, chance: random.Random) -> str:
    blanks = [" ", "  ", "\t", " \t ", "\u00a0", "\u2003", "\u3000", "\r", "\u2028"]
    words = [chance.choice(["a", "Wort", "été", "слово", "1,5", "|", "--", "\u200b"]) for _ in range(num_words)]
    ends = chance.choice(["", " ", "\t", "\u00a0 "]), chance.choice(["", " ", " \n"])
    return ends[0] + "".join(word + chance.choice(blanks) for word in words) + ends[1]


@pytest.mark.parametrize("normalises", [True, False])
def test_moses_is_the_rule_of_clean_corpus_n(normalises):
    chance = random.Random(5)
    lengths = [0, 1, 2, 8, 9, 10, 11, 18, 19, 72, 73, 79, 80, 81, 82]
    pairs = [(moses_line(one, chance), moses_line(other, chance)) for one in lengths for other in lengths]
    expected = [pair for pair in pairs if survives_moses(*pair)]
    assert 50 < len(expected) < len(pairs) - 50
    block = clean(pairs, resolve_rules(PrepareSettings(cleaning="moses", normalise=normalises)))
    survivors = list(zip(block.sources, block.targets, strict=True))
    assert [tuple(map(str.split, pair)) for pair in survivors] == [tuple(map(str.split, pair)) for pair in expected]
