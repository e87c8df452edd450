"""Tests of the tokenizer: text comes back unchanged, training is reproducible, errors are clear."""

import io
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.formats.blocks import MAX_LINE_BYTES
from dragoman.corpus.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    TokenizerDesign,
    VocabularyTooLarge,
    VocabularyTooSmall,
    WordEncoder,
    padded_vocab_size,
    train_tokenizer,
)
from dragoman.run.errors import UserError

UNUSUAL = "äß€漢😀\u2028\u0085\u00a0\u3000\u200b\ufeff\ufffd\x0b\r⁇</>"
# SentencePiece learns nothing from a literal "<pad>", so its characters also stand elsewhere in the lines.
WORDS = ["the", "cat", "sat", "Straße", "on", "mat", "pads", "unk", "<s>", "</s>", "<unk>", "<pad>"]
CHARACTERS = sorted(set("".join(WORDS) + UNUSUAL + "0123456789 "))


def make_lines() -> list[str]:
    randomness = random.Random(1)
    lines = [" ".join(randomness.choices(WORDS, k=6)) + f" {number}" for number in range(300)]
    return [*lines, f"x{UNUSUAL}x"]


LINES = make_lines()
VOCAB_SIZE = 90


DESIGNS = [
    TokenizerDesign(),
    TokenizerDesign("unigram"),
    TokenizerDesign(byte_fallback=True),
    TokenizerDesign("unigram", byte_fallback=True),
    TokenizerDesign(symbols=("<bt>", "<2de>")),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(LINES, VOCAB_SIZE))


@pytest.fixture(scope="module")
def tokenizers() -> list[Tokenizer]:
    """One of every design."""
    return [Tokenizer(train_tokenizer(LINES, 64 + 256 * design.byte_fallback, design)) for design in DESIGNS]


def test_special_subwords_have_their_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.subwords([PAD_ID, EOS_ID, BOS_ID, UNK_ID]) == ["<pad>", "</s>", "<s>", "<unk>"]
    assert (PAD_ID, EOS_ID, BOS_ID, UNK_ID) == (0, 1, 2, 3)


@given(st.lists(st.text(st.sampled_from(CHARACTERS), max_size=30).map(normalise), max_size=5))
def test_decoding_an_encoded_line_gives_it_back(tokenizer: Tokenizer, lines: list[str]) -> None:
    id_lines = tokenizer.encode_lines(lines)
    assert tokenizer.decode_lines(id_lines) == lines
    assert all(UNK_ID < subword_id < tokenizer.num_subwords for ids in id_lines for subword_id in ids)


@given(st.lists(st.text(st.sampled_from(CHARACTERS), max_size=30), max_size=5))
def test_tokenizers_of_every_design_give_lines_back(tokenizers: list[Tokenizer], lines: list[str]) -> None:
    for tokenizer in tokenizers:
        assert tokenizer.decode_lines(tokenizer.encode_lines(lines)) == lines
        assert tokenizer.decode_subwords(tokenizer.encode_as_subwords(lines)) == lines


@given(st.text(st.characters(exclude_characters="\n\0▁▅", exclude_categories=["Cs"]), max_size=20))
def test_with_byte_fallback_no_character_is_unknown(tokenizers: list[Tokenizer], line: str) -> None:
    for tokenizer, design in zip(tokenizers, DESIGNS, strict=True):
        if design.byte_fallback:
            [ids] = tokenizer.encode_lines([line])
            assert UNK_ID not in ids
            assert tokenizer.decode_lines([ids]) == [line]


def test_symbols_are_one_subword_anywhere(tokenizers: list[Tokenizer]) -> None:
    [subwords] = tokenizers[-1].encode_as_subwords(["<bt> the<2de>cat"])
    assert {"<bt>", "<2de>"} < set(subwords)


def test_rare_characters_become_bytes_where_coverage_is_below_one() -> None:
    design = TokenizerDesign(byte_fallback=True, character_coverage=0.99)
    tokenizer = Tokenizer(train_tokenizer(LINES, 320, design))
    [subwords] = tokenizer.encode_as_subwords(["漢"])
    assert subwords == ["▁", "<0xE6>", "<0xBC>", "<0xA2>"]
    assert tokenizer.decode_lines(tokenizer.encode_lines(LINES)) == LINES


def test_subword_bytes_add_up_to_a_file_of_subwords(tokenizer: Tokenizer) -> None:
    [subwords], [ids] = tokenizer.encode_as_subwords(["the Straße 12"]), tokenizer.encode_lines(["the Straße 12"])
    assert tokenizer.subword_bytes[ids].sum() + len(ids) == len((" ".join(subwords) + "\n").encode())


def test_spaces_are_not_changed(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode_lines(tokenizer.encode_lines(["  the   cat "])) == ["  the   cat "]


def test_special_subwords_in_text_are_plain_text(tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode_lines(["<s> the </s> <pad>"])
    assert not {PAD_ID, EOS_ID, BOS_ID} & set(ids)


def test_numbers_are_cut_into_digits(tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode_lines(["the 123"])
    assert tokenizer.subwords(ids)[-3:] == ["1", "2", "3"]


def test_reserved_characters_do_not_come_back(tokenizer: Tokenizer) -> None:
    """The reason why cleaning leaves such pairs out; if this fails, it need not any more."""
    assert tokenizer.decode_lines(tokenizer.encode_lines(["the▁cat"])) == ["the cat"]
    assert tokenizer.decode_lines(tokenizer.encode_lines(["the ▅"])) != ["the ▅"]


def test_decoding_ignores_special_and_padding_ids(tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode_lines(["the cat"])
    padding_id = tokenizer.vocab_size - 1
    assert padding_id >= tokenizer.num_subwords
    assert tokenizer.decode_lines([[BOS_ID, *ids, padding_id, EOS_ID, PAD_ID], []]) == ["the cat", ""]
    assert tokenizer.decode_lines([np.array(ids, dtype=np.uint16)]) == ["the cat"]
    assert tokenizer.subwords([padding_id]) == [f"<unused {padding_id}>"]


def test_threads_do_not_change_the_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_lines(LINES, num_threads=2) == tokenizer.encode_lines(LINES)


@pytest.mark.parametrize(("num_subwords", "padded"), [(1, 8), (8, 8), (9, 16), (32768, 32768)])
def test_padded_vocab_size(num_subwords: int, padded: int) -> None:
    assert padded_vocab_size(num_subwords) == padded


def test_same_lines_give_the_same_bytes() -> None:
    assert train_tokenizer(LINES, VOCAB_SIZE) == train_tokenizer(iter(LINES), VOCAB_SIZE)


def test_training_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    train_tokenizer(LINES, VOCAB_SIZE)
    with pytest.raises(VocabularyTooLarge):
        train_tokenizer(LINES, 10_000)
    assert capfd.readouterr() == ("", "")


def test_longest_lines_are_not_skipped() -> None:
    longest = "q" * (MAX_LINE_BYTES - 2) + " z"
    tokenizer = Tokenizer(train_tokenizer(["a b", longest], 9))
    assert UNK_ID not in tokenizer.encode_lines(["q z"])[0]


@pytest.mark.parametrize("asked", [1000, 2**31 - 1, 10**12])
def test_too_large_vocabulary_names_the_largest(asked: int) -> None:
    with pytest.raises(VocabularyTooLarge) as failure:
        train_tokenizer(LINES, asked)
    largest = failure.value.largest
    assert str(asked) in str(failure.value)
    assert f"use --vocab-size {largest} or less" in str(failure.value)
    assert Tokenizer(train_tokenizer(LINES, largest)).num_subwords == largest


@pytest.mark.parametrize("asked", [1, 3, 4, 20])
def test_too_small_vocabulary_names_the_smallest(asked: int) -> None:
    with pytest.raises(VocabularyTooSmall, match=f"of {asked} subwords") as failure:
        train_tokenizer(LINES, asked)
    smallest = failure.value.smallest
    assert f"use --vocab-size {smallest} or more" in str(failure.value)
    assert Tokenizer(train_tokenizer(LINES, smallest)).num_subwords == smallest


@pytest.mark.parametrize("design", DESIGNS)
def test_errors_name_sizes_that_fit_for_every_design(design: TokenizerDesign) -> None:
    with pytest.raises(VocabularyTooLarge) as too_large:
        train_tokenizer(LINES, 5000, design)
    with pytest.raises(VocabularyTooSmall) as too_small:
        train_tokenizer(LINES, 2, design)
    for fitting in (too_large.value.largest, too_small.value.smallest):
        assert Tokenizer(train_tokenizer(LINES, fitting, design)).num_subwords == fitting


@pytest.mark.parametrize("lines", [[], [""]])
def test_no_text_is_refused(lines: list[str]) -> None:
    with pytest.raises(UserError, match="no text to train a tokenizer on"):
        train_tokenizer(lines, 100)


def test_saved_tokenizer_loads_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.model")
    again = Tokenizer.load(tmp_path / "tokenizer.model")
    assert again.encode_lines(LINES[:5]) == tokenizer.encode_lines(LINES[:5])
    assert again.num_subwords == VOCAB_SIZE


@pytest.mark.parametrize("damage", [lambda model: b"", lambda model: model[: len(model) // 2], lambda model: b"text\n"])
def test_damaged_model_is_refused_quietly(
    tmp_path: Path, damage: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(damage(train_tokenizer(LINES, VOCAB_SIZE)))
    with pytest.raises(UserError, match=r"tokenizer\.model is damaged"):
        Tokenizer.load(path)
    assert capfd.readouterr() == ("", "")


def test_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.model does not exist"):
        Tokenizer.load(tmp_path / "none.model")


def test_model_with_other_special_ids_is_refused(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=150, hard_vocab_limit=False, minloglevel=2
    )
    path = tmp_path / "foreign.model"
    path.write_bytes(model.getvalue())
    with pytest.raises(UserError, match=r"foreign\.model .*PAD, EOS, BOS and UNK"):
        Tokenizer.load(path)


# --- the encoder that remembers words

ENCODER_TEXT = [
    "the cat sat on the mat",
    "a dog ran over the cats",
    "hello  there world 12 34 <bt>",
    "Ä ö ü ß 日 本 . , -",
] * 3
ENCODER_DESIGNS = {
    "bpe": TokenizerDesign(),
    "unigram": TokenizerDesign("unigram"),
    "bytes": TokenizerDesign(byte_fallback=True),
    "tags": TokenizerDesign(symbols=("<bt>",)),
}
ENCODER_SIZES = {"bpe": 70, "unigram": 40, "bytes": 330, "tags": 70}
ANY_LINES = st.lists(
    st.one_of(
        st.text(st.sampled_from("thecatso日ÄQ \t\u00a0<>b1"), max_size=20),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=10),
    ),
    max_size=8,
)


@cache
def load_tokenizer(design: str) -> Tokenizer:
    return Tokenizer(train_tokenizer(ENCODER_TEXT, ENCODER_SIZES[design], ENCODER_DESIGNS[design]))


def unpack(packed: list[bytes]) -> list[list[int]]:
    return [np.frombuffer(ids, "<u2").tolist() for ids in packed]


@pytest.mark.parametrize("design", ENCODER_DESIGNS)
@given(lines=ANY_LINES)
def test_word_encoder_gives_the_ids_of_sentencepiece(design: str, lines: list[str]) -> None:
    tokenizer = load_tokenizer(design)
    encoder = WordEncoder(tokenizer, "<u2")
    assert unpack(encoder.encode(lines)) == tokenizer.encode_lines(lines)
    assert unpack(encoder.encode(lines)) == tokenizer.encode_lines(lines)  # from memory


def test_words_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.corpus.tokenizer.MAX_WORDS", 3)
    tokenizer = load_tokenizer("bpe")
    encoder = WordEncoder(tokenizer, "<u2")
    for line in ENCODER_TEXT:
        assert unpack(encoder.encode([line])) == tokenizer.encode_lines([line])
    assert len(encoder._ids) < 15


def test_sentencepiece_encodes_if_subwords_contain_blanks() -> None:
    class Glued(Tokenizer):
        has_subwords_across_blanks = True

    lines = ["the cat sat", "the cat"]
    tokenizer = Glued(train_tokenizer(ENCODER_TEXT, 70))
    encoder = WordEncoder(tokenizer, "<u2")
    assert unpack(encoder.encode(lines)) == tokenizer.encode_lines(lines)
    assert not encoder._ids


def test_sentencepiece_encodes_if_the_encoder_differs() -> None:
    class Odd(Tokenizer):
        """Encodes the second word of a line in another way than the word alone."""

        def encode_lines(self, lines, num_threads=1):
            ids = super().encode_lines(lines, num_threads)
            return [found[:-1] if " " in line else found for line, found in zip(lines, ids, strict=True)]

    tokenizer = Odd(train_tokenizer(ENCODER_TEXT, 70))
    encoder = WordEncoder(tokenizer, "<u2")
    encoder.check(["the cat sat"])
    assert unpack(encoder.encode(["the cat"])) == tokenizer.encode_lines(["the cat"])
