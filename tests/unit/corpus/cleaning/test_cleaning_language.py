"""Language identification: what is surely wrong is found, what is doubtful is kept."""

import pytest

from dragoman.corpus.cleaning.filters import language_code, split_languages
from dragoman.corpus.cleaning.language import build_language_check, is_known_language

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
def test_text_surely_in_another_language_is_found(language, other, text, is_dropped):
    assert build_language_check(language, other, 10)(text) is is_dropped


def test_short_text_is_not_judged():
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


def test_the_target_stands_after_the_last_hyphen():
    assert split_languages("zh-Hant-eng") == ("zh", "en")
