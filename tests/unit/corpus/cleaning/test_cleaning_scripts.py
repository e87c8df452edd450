"""Scripts of languages, and shares of letters."""

import re

import pytest

from dragoman.corpus.cleaning.language import (
    NEUTRAL_RANGES,
    build_script_check,
    has_known_script,
    is_latin_1,
    is_mostly_without_spaces,
    length_in_letters,
)

SENTENCES = {
    "en": "Good morning",
    "de": "Grüße aus Köln – „schön“",
    "cs": "Příliš žluťoučký kůň",
    "vi": "Xin chào thế giới",
    "ru": "Доброе утро",
    "uk": "Доброго ранку, мʼята",
    "el": "Καλημέρα σας",
    "he": "בוקר טוב",
    "ar": "صباح الخير",
    "fa": "صبح بخیر می‌شود",
    "hi": "सुप्रभात",
    "bn": "সুপ্রভাত",
    "ta": "காலை வணக்கம்",
    "te": "శుభోదయం",
    "th": "สวัสดีตอนเช้า",
    "ka": "დილა მშვიდობისა",
    "hy": "Բարի լույս",
    "am": "እንደምን አደርክ",
    "km": "អរុណសួស្តី",
    "my": "မင်္ဂလာနံနက်ခင်း",
    "zh": "早上好",
    "ja": "おはようございます、カメラと漢字",
    "ko": "좋은 아침입니다",
}
SHARED = [{"en", "de", "cs", "vi"}, {"ru", "uk"}, {"ar", "fa"}, {"zh", "ja"}, {"zh", "ko"}]


def may_share_a_script(one: str, other: str) -> bool:
    return any({one, other} <= group for group in [*SHARED, {one}])


@pytest.mark.parametrize("language", SENTENCES)
def test_only_sentences_in_the_scripts_of_a_language_pass(language):
    is_in_other_script = build_script_check(language, 0.5)
    passing = {other for other, sentence in SENTENCES.items() if not is_in_other_script(sentence)}
    assert language in passing
    assert all(may_share_a_script(language, other) for other in passing)


@pytest.mark.parametrize(
    ("language", "text", "is_dropped"),
    [
        ("ru", "ab вг", False),
        ("ru", "abc вг", True),
        ("en", "abc вг", False),
        ("en", "ab вге", True),
        ("en", "12 – 34 € «»…", False),
        ("ru", "1,000 %", False),
        ("sr", "Добро jutro", False),
        ("de", "", False),
        ("en", "𝛼𝛽𝛾", True),
    ],
)
def test_half_of_the_letters_must_be_expected(language, text, is_dropped):
    assert build_script_check(language, 0.5)(text) is is_dropped


def test_unknown_languages_are_known_to_be_unknown():
    assert has_known_script("en")
    assert not has_known_script("qaa")


def test_neutral_characters_hold_no_letters():
    neutral = re.compile(f"[{NEUTRAL_RANGES}]")
    assert [hex(code) for code in range(0x3100) if neutral.match(chr(code)) and chr(code).isalpha()] == []


def test_all_letters_of_latin_1_are_taken_for_latin():
    is_in_other_script = build_script_check("en", 0.99)
    # The second text is beyond Latin-1, so that its letters are counted; what is more than Latin is one letter.
    letters = "".join(chr(code) for code in range(0x100) if chr(code).isalpha())
    assert not is_in_other_script(letters)
    assert not is_in_other_script(letters + "ж")
    assert is_latin_1(letters)
    assert not is_latin_1(letters + "ж")


@pytest.mark.parametrize(
    ("text", "expected"), [("hello", False), ("你好", True), ("hello 好", False), ("สวัสดี", True), ("привет", False)]
)
def test_scripts_without_spaces(text, expected):
    assert is_mostly_without_spaces(text) is expected


def test_a_chinese_character_is_worth_three_letters():
    assert length_in_letters("ab 你好") == 3 + 2 * 3
