import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.serving import long_lines
from dragoman.serving.long_lines import MAX_PIECE_CHARACTERS, join_pieces, split_line
from dragoman.translation.translator import Translation

SENTENCE = "The cat sat on the mat. "


def test_a_short_line_stays_whole():
    assert split_line(SENTENCE * 2) == [SENTENCE * 2]


def test_a_long_line_is_cut_between_sentences_and_nothing_is_lost():
    pieces = split_line((SENTENCE * 2_000).strip())
    assert max(map(len, pieces)) <= MAX_PIECE_CHARACTERS
    assert "".join(pieces) == (SENTENCE * 2_000).strip()


@pytest.mark.parametrize("unit", ["word ", "a", "好"])
def test_a_line_without_sentences_or_blanks_is_cut_too(unit):
    line = (unit * 30_000).strip()
    pieces = split_line(line)
    assert max(map(len, pieces)) <= MAX_PIECE_CHARACTERS
    assert "".join(pieces) == line


@settings(max_examples=30)
@given(st.lists(st.text("ab .", min_size=1), min_size=1).map("".join))
def test_nothing_is_lost_or_added(text):
    assert "".join(split_line(text * 300)) == text * 300


def test_translations_are_joined_by_rank_with_their_words_counted_on():
    found = [
        [Translation("x y.", -1.0, ((0, 1), (1, 0))), Translation("second", -2.0, ())],
        [Translation("z.", -3.0, ((1, 0),))],
    ]
    best, second = join_pieces(["a b. ", "c d."], found)
    assert best == Translation("x y. z.", -2.0, ((0, 1), (1, 0), (3, 2)))
    assert second.text == "second z."


def test_without_blanks_the_last_and_the_first_word_are_one():
    found = [[Translation("猫。", 0.0, ((0, 0),))], [Translation("犬。", 0.0, ((0, 0),))]]
    (joined,) = join_pieces(["cat. ", "dog."], found)
    assert joined == Translation("猫。犬。", 0.0, ((0, 0), (1, 0)))


def test_a_word_that_was_cut_is_one_word_of_the_source():
    found = [[Translation("x", 0.0, ((0, 0),))], [Translation("y z", 0.0, ((0, 0), (1, 1)))]]
    (joined,) = join_pieces(["wo", "rd next"], found)
    assert joined.alignment == ((0, 0), (0, 1), (1, 2))


def test_a_long_line_is_answered_as_one_line(client, monkeypatch):
    monkeypatch.setattr(long_lines, "MAX_PIECE_CHARACTERS", 60)
    wanted = {"q": SENTENCE * 20, "source": "en", "target": "de", "alignment": True}
    answer = client.post("/translate", json=wanted).json()
    assert "\n" not in answer["translatedText"]
    assert len(answer["alignment"]) == 1
    words = len(answer["translatedText"].split())
    assert max(target for _, target in answer["alignment"][0]) < words
