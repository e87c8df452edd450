"""Detection of scripts and languages: text that is clearly wrong is found, unclear text is kept."""

import re

import pytest

from dragoman.corpus.cleaning.filters import language_code, split_languages
from dragoman.corpus.cleaning.language import (
    NEUTRAL_RANGES,
    are_similar,
    build_language_check,
    build_script_check,
    has_known_script,
    is_known_language,
    is_latin_1,
    is_mostly_without_spaces,
    language_name,
    length_in_letters,
    main_script,
    scripts_of,
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
        ("ja", "GitHub Actionsを設定する", False),
        ("zh", "我用Windows电脑", False),
        ("ko", "Windows를 사용한다", False),
        ("ja", "He went to 東京 yesterday with his friends", True),
    ],
)
def test_half_of_the_letters_must_be_expected(language, text, is_dropped):
    assert build_script_check(language, 0.5)(text) is is_dropped


def test_scripts_of_unknown_languages_are_unknown():
    assert has_known_script("en")
    assert not has_known_script("qaa")


def test_neutral_characters_hold_no_letters():
    neutral = re.compile(f"[{NEUTRAL_RANGES}]")
    assert [hex(code) for code in range(0x3100) if neutral.match(chr(code)) and chr(code).isalpha()] == []


def test_all_letters_of_latin_1_count_as_latin():
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


@pytest.mark.parametrize(
    ("code", "name"),
    [("de", "German"), ("he", "Hebrew"), ("zh", "Chinese"), ("zh-Hant", "Chinese (traditional)"), ("xyz", "xyz")],
)
def test_languages_have_english_names(code: str, name: str):
    assert language_name(code) == name


def test_a_chinese_character_counts_as_three_letters():
    assert length_in_letters("ab 你好") == 3 + 2 * 3


EN = "The committee has adopted the report of the parliament today."
DE = "Der Ausschuss hat den Bericht des Parlaments heute angenommen."
NO = "Jeg vet ikke hva jeg skal gjøre med alle disse bøkene som står her."
DA = "Jeg ved ikke, hvad jeg skal gøre med alle disse bøger, som står her."
HR = "Europska unija je danas usvojila izvještaj o stanju u gospodarstvu."


@pytest.mark.parametrize(
    ("language", "other", "text", "is_dropped"),
    [
        ("en", "de", EN, False),
        ("en", "de", DE, True),
        ("de", "en", DE, False),
        ("de", "en", EN, True),
        ("nb", "en", NO, False),
        ("nn", "en", NO, False),
        ("da", "en", DA, False),
        ("da", "en", DE, True),
        ("no", "da", DA, True),
        ("no", "da", NO, False),
        ("da", "no", NO, True),
        ("no", "en", DA, False),
        ("sr", "en", HR, False),
        ("sh", "en", HR, False),
        ("he", "en", "הוועדה אישרה היום את הדוח של הפרלמנט", False),
        ("zh", "en", "委員會今天通過了議會的報告,並感謝所有人的努力工作。", False),
        ("zh", "ja", "昨天晚上我們在臺北的一家餐廳吃飯，那裡的食物非常好吃，我們都很喜歡。", False),
        ("zh", "en", "委員会は本日、議会の報告書を採択しました。ありがとうございます。", True),
        ("ja", "en", "委员会今天通过了议会的报告,并感谢所有人的努力工作。", True),
    ],
)
def test_text_clearly_in_another_language_is_found(language, other, text, is_dropped):
    assert build_language_check(language, other, 10)(text) is is_dropped


def test_short_text_is_not_checked():
    assert build_language_check("en", "de", len(DE))(DE)
    assert not build_language_check("en", "de", len(DE) + 1)(DE)


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\ufffe", "\U0010ffff", "\ud800"])
def test_text_that_cld2_refuses_is_kept(character):
    assert not build_language_check("en", "de", 5)(character + DE)


@pytest.mark.parametrize("text", ["12345 67890 12345 67890 12345", "!!! ??? ... --- !!! ??? ...", "x" * 60])
def test_text_in_no_language_is_kept(text):
    assert not build_language_check("en", "de", 25)(text)


@pytest.mark.parametrize("code", ["en", "de", "he", "jv", "nb", "nn", "sh", "tl", "zh", "sr", "ceb"])
def test_known_languages(code):
    assert is_known_language(code)


@pytest.mark.parametrize("code", ["qaa", "xx", "un", ""])
def test_unknown_languages(code):
    assert not is_known_language(code)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("en", "en"),
        ("eng", "en"),
        ("DEU", "de"),
        ("ger", "de"),
        ("pt_BR", "pt"),
        ("zh-Hant", "zh"),
        ("cmn", "zh"),
        ("iw", "he"),
        ("fil", "tl"),
        ("nob", "nb"),
        ("ceb", "ceb"),
        ("qaa", "qaa"),
    ],
)
def test_codes(name, code):
    assert language_code(name) == code


def test_the_target_is_after_the_last_hyphen():
    assert split_languages("zh-Hant-eng") == ("zh", "en")


@pytest.mark.parametrize("language", SENTENCES)
def test_the_main_script_of_a_sentence_is_one_of_its_language(language):
    assert main_script(SENTENCES[language]) in scripts_of(language)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("", None),
        ("12 – 34 €", None),
        ("I live in 東京.", "Latin"),
        ("東京に住んでいる Tom", "Kana"),
        ("ソニー", "Kana"),
        ("我住在东京", "Han"),
        ("我每天都喝一瓶优の良品酸奶然后走路去公司上班", "Han"),
        ("나는 大韓民國 사람이다", "Hangul"),
        ("ꦲꦏ꧀ꦱꦫꦗꦮ", "Javanese"),
    ],
)
def test_the_script_of_most_letters_counts_and_kana_make_text_japanese(text, script):
    assert main_script(text) == script


@pytest.mark.parametrize(("one", "other"), [("da", "nb"), ("hr", "sr"), ("sh", "bs"), ("id", "ms"), ("en", "en")])
def test_similar_languages(one, other):
    assert are_similar(one, other)
    assert are_similar(other, one)
    assert not are_similar(one, "fr")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("ja", "NASAのJames Webb Space Telescopeが新しい画像を公開した。"),
        ("zh", "他在Massachusetts Institute of Technology学习了很长的时间，然后回到了中国。"),
        ("ru", "Сегодня мы подробно обсудим, как работает Windows Server Update Services."),
    ],
)
def test_latin_names_do_not_make_text_english(language, text):
    assert not build_language_check(language, "en", 25)(text)
    assert build_language_check(language, "en", 25)("This sentence is in English, whatever else one may say.")
