"""Scores against numbers from sacreBLEU's own command line and from counting by hand."""

import math

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab

from dragoman.evaluation import scores
from dragoman.evaluation.scores import (
    bleu_counts,
    choose_tokenizer,
    parse_tokenizer,
    require_tokenizer,
    score_translations,
    teacher_forced_bleu,
)
from dragoman.run.errors import UsageError, UserError

REFERENCES = ["The cat sat on the mat.", "He went home, didn’t he?", "Ein Mann schläft auf der Bank."]
HYPOTHESES = ["The cat is on the mat.", "He went home, did he?", "Ein Mann schläft auf einer grünen Bank."]


def test_scores_are_those_of_the_command_line() -> None:
    """Golden: `sacrebleu references -i hypotheses -m bleu chrf -w 6`, version 2.6.0."""
    score = score_translations(HYPOTHESES, REFERENCES, "13a")
    assert score.bleu == pytest.approx(45.985579, abs=1e-6)
    assert score.chrf == pytest.approx(70.236419, abs=1e-6)


def test_signatures_are_complete() -> None:
    score, version = score_translations(HYPOTHESES, REFERENCES, "13a"), sacrebleu.__version__
    assert score.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    assert score.chrf_signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"


def test_bleu_by_hand() -> None:
    """Matches in the golden corpus: 18 of 22 words, 12 of 19 pairs, 6 of 16 triples, 3 of 13 fours."""
    expected = 100 * (18 / 22 * 12 / 19 * 6 / 16 * 3 / 13) ** 0.25  # longer than the references: no brevity penalty
    assert score_translations(HYPOTHESES, REFERENCES, "13a").bleu == pytest.approx(expected)


@pytest.mark.parametrize(("hypotheses", "bleu"), [(REFERENCES, 100.0), (["", "", ""], 0.0)])
def test_the_ends_of_the_scale(hypotheses: list[str], bleu: float) -> None:
    assert score_translations(hypotheses, REFERENCES, "13a").bleu == pytest.approx(bleu)


@pytest.mark.parametrize(
    ("score", "tokenizer"), [(score_translations, ["13a"]), (bleu_counts, ["13a"]), (teacher_forced_bleu, [])]
)
def test_unequal_or_empty_input_is_a_user_error(score, tokenizer) -> None:
    with pytest.raises(UserError, match="1 translations but 2 references"):
        score(["a"], ["a", "b"], *tokenizer)
    with pytest.raises(UserError, match="nothing to score"):
        score([], [], *tokenizer)


@pytest.mark.parametrize(
    ("predicted", "reference", "expected"),
    [
        ("▁a ▁b ▁c ▁d", "▁a ▁b ▁c ▁d", 1.0),
        ("▁a ▁b ▁c ▁d ▁e", "▁a ▁b ▁c ▁d ▁f", (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        ("▁a ▁b ▁c ▁d", "▁a ▁b ▁c ▁d ▁e", math.exp(1 - 5 / 4)),  # brevity penalty alone
        ("▁a ▁b ▁c ▁x", "▁a ▁b ▁c ▁d", 0.0),  # no four in common, and no smoothing
        ("▁a , . ▁d", "▁a , . ▁d", 1.0),  # no tokenization: punctuation is a subword like any other
        ("▁a \u00a0 ▁c ▁d", "▁a \u00a0 ▁c ▁d", 1.0),
        ("▁a \u00a0 ▁c ▁d ▁e", "▁a ▁c ▁d ▁e ▁f", 0.0),  # a subword that is a space counts too, so no four in common
    ],
)
def test_teacher_forced_bleu_by_hand(predicted: str, reference: str, expected: float) -> None:
    assert teacher_forced_bleu([predicted], [reference]) == pytest.approx(expected, abs=1e-9)


def test_teacher_forced_bleu_counts_over_the_corpus() -> None:
    """Matches are summed over sentences before they are divided, and a sentence of three subwords has no fours."""
    predicted, reference = ["▁a ▁b ▁c ▁d ▁e", "▁x ▁y ▁z"], ["▁a ▁b ▁c ▁d ▁e", "▁x ▁y ▁w"]
    expected = (7 / 8 * 5 / 6 * 3 / 4 * 2 / 2) ** 0.25
    assert teacher_forced_bleu(predicted, reference) == pytest.approx(expected)


# --- languages without spaces

JAPANESE = ["私は毎朝駅まで歩いて行きます。", "彼女は古い本を図書館で借りました。", "明日は雨が降るでしょう。"]
ALMOST_JAPANESE = ["私は毎朝駅まで歩きます。", "彼女は古い本を図書館で借りた。", "明日は雨が降るでしょう。"]
CHINESE = ["我每天早上走路去车站。", "她在图书馆借了一本旧书。", "明天会下雨。"]
KOREAN = ["나는 매일 아침 역까지 걸어갑니다.", "내일은 비가 올 것입니다."]
THAI = ["ฉันเดินไปสถานีทุกเช้า", "พรุ่งนี้ฝนจะตก"]


def test_good_japanese_scores_high() -> None:
    """13a takes each of these sentences for one word, and gave them 0."""
    tokenizer = choose_tokenizer("auto", "en-ja", JAPANESE)
    assert score_translations(ALMOST_JAPANESE, JAPANESE, tokenizer).bleu > 50
    assert score_translations(ALMOST_JAPANESE, JAPANESE, "char").bleu > 50
    assert score_translations(ALMOST_JAPANESE, JAPANESE, "13a").bleu == 0


@pytest.mark.parametrize("references", [JAPANESE, CHINESE, KOREAN, THAI])
def test_the_best_translations_score_100_and_the_signature_names_the_tokenizer(references) -> None:
    tokenizer = choose_tokenizer("auto", None, references)
    score = score_translations(references, references, tokenizer)
    assert score.bleu == pytest.approx(100)
    assert f"|tok:{tokenizer}" in score.signature


def test_counts_of_sentences_are_those_of_the_tokenizer() -> None:
    (by_characters,) = bleu_counts(["今日は雨"], ["今日は雪"], "char")
    assert by_characters == [4, 4, 3, 2, 1, 0, 4, 3, 2, 1]
    (by_words,) = bleu_counts(["今日は雨"], ["今日は雪"], "13a")
    assert by_words == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0]


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    monkeypatch.setattr(scores, "_FLORES_MODEL", tmp_path / "flores200sacrebleuspm")


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        ("en-ja", "ja-mecab"),
        ("eng-jpn", "ja-mecab"),
        ("en-ja_JP", "ja-mecab"),
        ("eng_Latn-jpn_Jpan", "ja-mecab"),
        ("en-zh", "zh"),
        ("en-zh_Hant", "zh"),
        ("en-cmn", "zh"),
        ("eng-zho", "zh"),
        ("en-yue", "zh"),
        ("en-lzh", "zh"),
        ("en-wuu", "zh"),
        ("en-de", "13a"),
        ("ja-en", "13a"),
        ("zh-ru", "13a"),
        ("en-vi", "13a"),
        ("en-ar", "13a"),
    ],
)
def test_the_target_language_decides(languages, expected) -> None:
    assert choose_tokenizer("auto", languages, ["What the text looks like does not matter."]) == expected


@pytest.mark.parametrize("languages", ["en-ja", "en-ko", "en-th", "en-lo", "en-km", "en-my", "en-bo", "en-dz"])
def test_single_characters_are_counted_where_nothing_is_installed(nothing_installed, languages) -> None:
    assert choose_tokenizer("auto", languages, []) == "char"


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        (JAPANESE, "char"),
        (CHINESE, "zh"),
        (KOREAN, "char"),
        (THAI, "char"),
        (["ဒီနေ့ မိုးရွာသည်"], "char"),
        (["ថ្ងៃនេះមានភ្លៀង"], "char"),
        (["ມື້ນີ້ຝົນຕົກ"], "char"),
        (["དེ་རིང་ཆར་པ་བབས།"], "char"),
        (["Today it rains in 東京."], "13a"),
        (["Сегодня дождь."], "13a"),
        (["1 2 3", "…"], "13a"),
        ([""], "13a"),
        ([], "13a"),
    ],
)
@pytest.mark.parametrize("languages", [None, "en-qaa"])
def test_without_a_known_language_the_script_decides(nothing_installed, references, languages, expected) -> None:
    assert choose_tokenizer("auto", languages, references) == expected


def test_a_tokenizer_that_was_set_is_used() -> None:
    assert choose_tokenizer("intl", "en-ja", JAPANESE) == "intl"


@pytest.mark.parametrize(("tokenizer", "extra"), [("ja-mecab", "ja"), ("ko-mecab", "ko")])
def test_missing_packages_are_named(nothing_installed, tokenizer, extra) -> None:
    with pytest.raises(UserError, match=rf"pip install 'dragoman\[{extra}\]'.*evaluation.tokenizer=char"):
        require_tokenizer(tokenizer)


def test_the_model_of_flores_is_not_downloaded(nothing_installed, tmp_path) -> None:
    with pytest.raises(UserError, match=r"its model is not at .*flores200sacrebleuspm"):
        require_tokenizer("flores200")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tokenizer", ["auto", "13a", "intl", "char", "zh", "none"])
def test_others_are_always_at_hand(nothing_installed, tokenizer) -> None:
    require_tokenizer(tokenizer)


def test_an_unknown_option_lists_the_known_ones() -> None:
    assert parse_tokenizer("zh") == "zh"
    with pytest.raises(UsageError, match=r"--tokenizer is 'mecab'; it can be auto, 13a, .* or none"):
        parse_tokenizer("mecab")


@given(st.none() | st.text(max_size=12), st.lists(st.text(max_size=30), max_size=4))
def test_a_tokenizer_is_chosen_for_any_text_and_language(languages, references) -> None:
    require_tokenizer(choose_tokenizer("auto", languages, references))
