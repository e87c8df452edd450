"""Sentences of many scripts, split and joined again: nothing is lost, and abbreviations do not end a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.tokenizer import Tokenizer, train_tokenizer
from dragoman.translation.lines.segments import cut_line
from dragoman.translation.lines.sentences import join_sentences, split_sentences

TEXTS = st.text(alphabet="aB3 .!?…。！؟।;\"')」漢字éЖ\u3000", max_size=80) | st.text(max_size=60)


@pytest.mark.parametrize(
    "marked",
    [
        "Dr. Smith went home. |He slept at 3.5 p.m. in the U.S. and ate. |“Good!” he said. |Then?",
        "Am 3. Mai kam z.B. Herr Prof. Maier. |Er blieb bis 1990. |Danach ging er.",
        "Он жил на ул. Ленина. |Потом уехал.",
        "Τι κάνεις; |Καλά. |Ευχαριστώ.",
        "今天天气很好。|我们去公园吧！|好吗？|「是的。」|他说。",
        "彼は3.5キロ走った。|そして寝た。",
        "هل أنت بخير؟ |نعم. |شكرا",
        "یہ ایک جملہ ہے۔ |یہ دوسرا ہے۔",
        "यह एक वाक्य है। |यह दूसरा है॥ |हाँ",
        "안녕하세요. |저는 학생입니다. |네.",
        "See http://a.b/?c=d. |J. K. Rowling wrote... and wrote. |(Really!) |Yes.",
        "สวัสดีครับ ผมชื่อสมชาย ผมมาจากกรุงเทพ",
        "a text in lower case. |it has no capitals! |none at all... |right? |yes",
        "One sentence",
        "",
    ],
)
def test_where_sentences_end(marked: str) -> None:
    assert split_sentences(marked.replace("|", "")) == [each for each in marked.split("|") if each]


@given(TEXTS)
def test_nothing_is_lost_by_splitting(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    assert all(sentences)


@pytest.fixture(scope="module")
def wide_tokenizer() -> Tokenizer:
    lines = ["the cat sat. a dog ran! 猫は寝た。犬は走った、そして。 ab ba", "the dog sat. a cat ran? 犬は寝た。"]
    return Tokenizer(train_tokenizer(lines, 60))


@given(st.text(alphabet="the catsdogrn. !?猫は寝た。犬走っ、", max_size=80), st.integers(1, 12))
def test_segments_hold_the_whole_line_and_fit(wide_tokenizer: Tokenizer, text: str, max_ids: int) -> None:
    text = " ".join(text.split())
    [ids] = wide_tokenizer.encode_lines([text])
    segments = cut_line(text, ids, wide_tokenizer, max_ids, with_words=True)
    assert all(len(segment.ids) <= max_ids for segment in segments)
    decoded = "".join(wide_tokenizer.decode_lines([segment.ids for segment in segments]))
    assert decoded.replace(" ", "") == text.replace(" ", "")
    words = [word for segment in segments for word in segment.words if word is not None]
    assert words == sorted(words)
    assert set(words) == set(range(len(text.split())))


def test_a_line_is_cut_between_sentences_and_only_a_long_sentence_inside(wide_tokenizer: Tokenizer) -> None:
    def cut(text: str, max_ids: int) -> list[str]:
        [ids] = wide_tokenizer.encode_lines([text])
        segments = cut_line(text, ids, wide_tokenizer, max_ids, with_words=False)
        return wide_tokenizer.decode_lines([segment.ids for segment in segments])

    assert cut("the cat sat. a dog ran! the dog sat.", 12) == ["the cat sat. a dog ran! the dog sat."]
    assert cut("the cat sat. a dog ran! the dog sat.", 11) == ["the cat sat.", "a dog ran!", "the dog sat."]
    assert cut("猫は寝た。犬は寝た。", 4) == ["猫は寝た。", "犬は寝た。"]
    assert cut("the cat sat. a dog ran a cat ran a", 4) == ["the cat sat.", "a dog ran a", "cat ran a"]


def test_translations_are_joined_as_their_script_is_written() -> None:
    assert join_sentences(["Eins.", "", " Zwei. "]) == "Eins. Zwei."
    assert join_sentences(["你好。", "世界。"]) == "你好。世界。"
    assert join_sentences(["안녕하세요.", "네."]) == "안녕하세요. 네."
    assert join_sentences([]) == ""
