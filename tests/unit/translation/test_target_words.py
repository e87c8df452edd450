"""Words that a translation must begin with, contain or avoid, and the alignment of words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.tokenizer import NUM_SPECIAL_IDS, UNK_ID, Tokenizer, TokenizerDesign, train_tokenizer
from dragoman.run.errors import UsageError
from dragoman.translation.lines.target_words import TargetWords
from dragoman.translation.lines.word_alignment import format_alignment, pair_words, words_of_subwords
from dragoman.translation.possible_outputs import has_forbidden
from dragoman.translation.search import Hypothesis, Sampling, SearchSettings
from dragoman.translation.translator import LineTranslator, SourceLine


@pytest.fixture(scope="module")
def quoted() -> Tokenizer:
    """A vocabulary of text with quotation marks, in which some subwords join punctuation and letters."""
    lines = ['the "cat" sat (the mat) 12', "a cat-the 猫は寝た 「猫」", "co-cat the-mat 猫は猫 1"] * 3
    return Tokenizer(train_tokenizer(lines, 48, TokenizerDesign(symbols=("-cat", "-c", "(th"))))


@pytest.fixture(scope="module")
def mixed() -> Tokenizer:
    return Tokenizer(train_tokenizer(["the cat sat 0 12", "a cat 猫は寝た 猫", "the mat 猫は猫"] * 3, 40))


def test_a_required_word_has_the_form_it_has_inside_a_sentence(mixed: Tokenizer) -> None:
    words = TargetWords(mixed)
    assert mixed.subwords(words.required("cat"))[0].startswith("▁")
    inside = mixed.subwords(words.required("猫"))
    assert "".join(inside) == "猫"
    assert TargetWords(mixed).prefix("  ") == ()
    assert mixed.decode_lines([words.prefix("the c")]) == ["the c"]


@given(st.data())
def test_a_forbidden_word_is_forbidden_in_every_spelling_and_no_other_word_is(quoted: Tokenizer, data) -> None:
    ids = data.draw(st.lists(st.integers(NUM_SPECIAL_IDS, quoted.num_subwords - 1), max_size=8))
    word = data.draw(st.sampled_from(["cat", "th", "猫", "猫は", "12", "the cat", "-", "a"]))
    words = TargetWords(quoted)
    [text] = quoted.decode_lines([ids])
    assert has_forbidden(ids, words.forbid([word], SearchSettings())) is words.has_forbidden(text, word)


def test_a_word_without_subwords_needs_no_rule(quoted: Tokenizer) -> None:
    settings = TargetWords(quoted).forbid(["漢"], SearchSettings())
    assert settings.forbidden == settings.forbidden_starts == ()


@pytest.mark.parametrize(
    ("text", "word", "is_there"),
    [
        ("the cats", "cat", True),
        ("a bobcat", "cat", False),
        ("a bobcat saw a cat", "cat", True),
        ('a "cat"', "cat", True),
        ("(cat", "cat", True),
        ("寝た猫", "猫", True),
        ("the cat", "Cat", False),
        ("किताब", "ताब", False),  # after a vowel sign
    ],
)
def test_forbidden_words_are_found_in_translations(mixed: Tokenizer, text: str, word: str, is_there: bool) -> None:
    assert TargetWords(mixed).has_forbidden(text, word) is is_there


@pytest.mark.parametrize("word", ["☃", "a☃"])
def test_what_the_model_cannot_write_is_refused(mixed: Tokenizer, word: str) -> None:
    with pytest.raises(UsageError, match="cannot write '☃'"):
        TargetWords(mixed).required(word)
    with pytest.raises(UsageError, match="cannot write"):
        TargetWords(mixed).prefix(word)


def test_empty_words_are_refused(mixed: Tokenizer) -> None:
    with pytest.raises(UsageError, match="empty"):
        TargetWords(mixed).required(" ")
    with pytest.raises(UsageError, match="empty"):
        TargetWords(mixed).forbid([""], SearchSettings())


@given(st.lists(st.text("thecas", min_size=1, max_size=6), min_size=1, max_size=6))
def test_subwords_belong_to_the_words_between_blanks(mixed: Tokenizer, words: list[str]) -> None:
    [ids] = mixed.encode_lines([" ".join(words)])
    found = words_of_subwords(mixed, ids)
    for number, word in enumerate(words):
        own = [subword for subword, place in zip(mixed.subwords(ids), found, strict=True) if place == number]
        assert "".join(own).replace("▁", "") == word
    assert words_of_subwords(mixed, ids, 7) == [None if word is None else word + 7 for word in found]


def test_unknown_characters_and_blanks_keep_the_numbers_right(mixed: Tokenizer) -> None:
    blank = mixed.blank_id
    the = mixed.encode_lines(["the"])[0]
    assert words_of_subwords(mixed, [*the, UNK_ID, *the]) == [*[0] * len(the), 1, *[2] * len(the)]
    assert words_of_subwords(mixed, [blank, *the])[0] is None


def test_the_end_of_the_source_and_blanks_are_aligned_to_nothing() -> None:
    assert pair_words([0, 0, None, 1], [0, None, 1, 2], [0, 1, 3, 4]) == {(0, 0), (1, 1)}
    assert format_alignment(((0, 0), (1, 2))) == "0-0 1-2"


class Mirror:
    """A backend that translates each source into itself, aligned one to one, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list = []

    def search_batches(self, batches, settings):
        for index, batch in enumerate(batches):
            self.asked += [(segment, settings.forbidden) for segment in batch]
            aligned = [list(range(len(segment.ids))) if settings.with_alignment else None for segment in batch]
            yield (
                index,
                [[Hypothesis(each.ids, -1.0, -1.0, places)] for each, places in zip(batch, aligned, strict=True)],
            )


@pytest.fixture
def mirror(mixed: Tokenizer):
    backend = Mirror()
    settings = SearchSettings(with_alignment=True)
    return backend, LineTranslator(backend, mixed, mixed, settings, max_source_tokens=5)


def test_alignments_of_a_cut_line_count_words_of_the_whole_line(mirror) -> None:
    _, translator = mirror
    text = "the cat sat. the mat sat. a cat sat"
    [[found]] = translator.translate_lines([SourceLine(text.replace(".", ""))])
    assert found.text == text.replace(".", "")
    assert found.alignment == tuple((number, number) for number in range(9))


def test_demands_reach_the_segment_they_belong_to(mirror, mixed: Tokenizer) -> None:
    backend, translator = mirror
    lines = [
        SourceLine("the cat sat the mat sat", "the", ("mat", "a"), ("cat",)),
        SourceLine("a cat"),
        SourceLine(""),
    ]
    translations = translator.translate_lines(lines)
    assert translations[2][0].text == ""
    first = [segment for segment, _ in backend.asked if segment.number == 1]
    assert len(first) > 1
    by_text = sorted(first, key=lambda segment: not segment.prefix)
    assert [bool(segment.prefix) for segment in by_text] == [True, *[False] * (len(first) - 1)]
    words = TargetWords(mixed)
    required = [sequence for segment in first for sequence in segment.required]
    assert sorted(required) == sorted([words.required("mat"), words.required("a")])
    assert {bool(forbidden) for segment, forbidden in backend.asked if segment.number == 1} == {True}
    assert {bool(forbidden) for segment, forbidden in backend.asked if segment.number == 2} == {False}


def test_a_translation_has_no_more_subwords_than_asked_for(mirror, mixed: Tokenizer) -> None:
    backend, translator = mirror
    text = "a cat sat"
    num_subwords = len(mixed.encode_lines([text])[0])
    for most in range(1, num_subwords + 2):
        settings = replace(translator.settings, max_subwords=most + 1)  # EOS counts
        [[found]] = LineTranslator(backend, mixed, mixed, settings).translate_lines([SourceLine(text)])
        assert len(mixed.encode_lines([found.text])[0]) == min(most, num_subwords)
    settings = replace(translator.settings, max_subwords=2)
    [[found]] = LineTranslator(backend, mixed, mixed, settings).translate_lines([SourceLine(text, prefix="a cat")])
    assert found.text == "a cat"  # the beginning always fits


def test_broken_demands_are_said(mixed: Tokenizer) -> None:
    said: list[str] = []
    translator = LineTranslator(Mirror(), mixed, mixed, SearchSettings(), say=said.append)
    lines = [SourceLine("the cat", required=("cat",), forbidden=("mat",)), SourceLine("", required=("cat",))]
    translator.translate_lines(lines)
    assert said == []
    translator.translate_lines([SourceLine("the mat", required=("cat",), forbidden=("mat",))], first_number=5)
    assert said == [
        "Line 5: its translation lacks 'cat', which is required.",
        "Line 5: its translation has 'mat', which is forbidden.",
    ]


def test_translations_that_become_equal_by_the_limit_are_written_once(mixed: Tokenizer) -> None:
    class Two(Mirror):
        def search_batches(self, batches, settings):
            for index, [segment] in enumerate(batches):
                ids = segment.ids
                yield index, [[Hypothesis(ids, -1.0, -1.0), Hypothesis([*ids, *ids], -2.0, -2.0)]]

    settings = SearchSettings(num_best=2, max_subwords=2)
    assert len(LineTranslator(Two(), mixed, mixed, settings).translate_lines([SourceLine("a cat")])[0]) == 1
    drawn = replace(settings, sampling=Sampling())
    assert len(LineTranslator(Two(), mixed, mixed, drawn).translate_lines([SourceLine("a cat")])[0]) == 2


def test_a_demand_that_cannot_be_met_names_its_line(mirror) -> None:
    _, translator = mirror
    with pytest.raises(UsageError, match=r"^Line 8: The model cannot write '☃'"):
        translator.translate_lines([SourceLine("a cat"), SourceLine("a cat", prefix="☃")], first_number=7)


def test_a_prefix_that_is_longer_than_any_sentence_is_refused(mirror) -> None:
    _, translator = mirror
    with pytest.raises(UsageError, match=r"^Line 1: its prefix has [\d,]+ subwords; at most 4 are possible"):
        translator.translate_lines([SourceLine("a cat", prefix="the cat " * 3)])
