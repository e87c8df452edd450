"""Words encoded once and remembered give the ids that SentencePiece gives for whole lines."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.tokenizer import Tokenizer, TokenizerDesign, WordEncoder, train_tokenizer

TEXT = ["the cat sat on the mat", "a dog ran over the cats", "hello  there world 12 34 <bt>", "Ä ö ü ß 日 本 . , -"] * 3
DESIGNS = {
    "bpe": TokenizerDesign(),
    "unigram": TokenizerDesign("unigram"),
    "bytes": TokenizerDesign(byte_fallback=True),
    "tags": TokenizerDesign(symbols=("<bt>",)),
}
SIZES = {"bpe": 70, "unigram": 40, "bytes": 330, "tags": 70}
LINES = st.lists(
    st.one_of(
        st.text(st.sampled_from("thecatso日ÄQ \t\u00a0<>b1"), max_size=20),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=10),
    ),
    max_size=8,
)


@cache
def load_tokenizer(design: str) -> Tokenizer:
    return Tokenizer(train_tokenizer(TEXT, SIZES[design], DESIGNS[design]))


def unpack(packed: list[bytes]) -> list[list[int]]:
    return [np.frombuffer(ids, "<u2").tolist() for ids in packed]


@pytest.mark.parametrize("design", DESIGNS)
@given(lines=LINES)
def test_same_ids_as_sentencepiece(design: str, lines: list[str]) -> None:
    tokenizer = load_tokenizer(design)
    encoder = WordEncoder(tokenizer, "<u2")
    assert unpack(encoder.encode(lines)) == tokenizer.encode_lines(lines)
    assert unpack(encoder.encode(lines)) == tokenizer.encode_lines(lines)  # from memory


def test_words_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.corpus.tokenizer.MAX_WORDS", 3)
    tokenizer = load_tokenizer("bpe")
    encoder = WordEncoder(tokenizer, "<u2")
    for line in TEXT:
        assert unpack(encoder.encode([line])) == tokenizer.encode_lines([line])
    assert len(encoder._ids) < 15


def test_a_vocabulary_with_pieces_across_blanks_is_left_to_sentencepiece() -> None:
    class Glued(Tokenizer):
        has_subwords_across_blanks = True

    lines = ["the cat sat", "the cat"]
    tokenizer = Glued(train_tokenizer(TEXT, 70))
    encoder = WordEncoder(tokenizer, "<u2")
    assert unpack(encoder.encode(lines)) == tokenizer.encode_lines(lines)
    assert not encoder._ids


def test_where_the_two_ways_differ_sentencepiece_decides() -> None:
    class Odd(Tokenizer):
        """Encodes the second word of a line in another way than the word alone."""

        def encode_lines(self, lines, num_threads=1):
            ids = super().encode_lines(lines, num_threads)
            return [found[:-1] if " " in line else found for line, found in zip(lines, ids, strict=True)]

    tokenizer = Odd(train_tokenizer(TEXT, 70))
    encoder = WordEncoder(tokenizer, "<u2")
    encoder.check(["the cat sat"])
    assert unpack(encoder.encode(["the cat"])) == tokenizer.encode_lines(["the cat"])
