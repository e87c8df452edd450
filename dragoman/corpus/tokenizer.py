"""The tokenizer (a SentencePiece model), and an encoder that is many times as fast because it remembers words.

No subword of our vocabularies contains a blank between words, so the subwords of a line are those of its words. If a
vocabulary has other subwords, or the encoder and SentencePiece differ on the text, SentencePiece encodes all of it.
"""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, filterfalse
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from dragoman.corpus.formats.blocks import MAX_LINE_BYTES
from dragoman.corpus.shards import IdDtype, pack_ids
from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import write_then_rename
from dragoman.run.input_files import open_input

PAD_ID = 0
EOS_ID = 1
BOS_ID = 2
UNK_ID = 3
NUM_SPECIAL_IDS = 4
_NUM_BYTE_SUBWORDS = 256
_BLANK = "▁"
RESERVED_CHARACTERS = "▁▅"
"""SentencePiece's own marks for a blank and for the unknown: a line that contains one could not be restored."""
_MAX_VOCAB_SIZE = 2**22

# The model file records the number of threads, so one number for all machines keeps its bytes the same everywhere.
_NUM_TRAINING_THREADS = 4
_LOG_ERRORS_ONLY = 2


class VocabularyTooLarge(UserError):  # noqa: N818 - the name says what is wrong
    """The text has fewer different subwords than were asked for."""

    def __init__(self, asked: int, largest: int) -> None:
        self.asked, self.largest = asked, largest
        super().__init__(
            f"A vocabulary of {asked} subwords was asked for, but this text gives at most {largest}; "
            f"use --vocab-size {largest} or less."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Needed to send it from a worker process.
        return type(self), (self.asked, self.largest)


class VocabularyTooSmall(UserError):  # noqa: N818 - the name says what is wrong
    """The text has more different characters than subwords were asked for."""

    def __init__(self, asked: int, smallest: int) -> None:
        self.asked, self.smallest = asked, smallest
        super().__init__(
            f"A vocabulary of {asked} subwords was asked for, but the different characters of this text alone need "
            f"{smallest}; use --vocab-size {smallest} or more, or --byte-fallback with a --character-coverage below 1."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.asked, self.smallest)


def padded_vocab_size(num_subwords: int) -> int:
    """Rounds up to a multiple of 8, which matrix units need; the added ids stand for no text."""
    return -(-num_subwords // 8) * 8


@dataclass(frozen=True)
class TokenizerDesign:
    """Settings of a tokenizer besides its size."""

    kind: Literal["bpe", "unigram"] = "bpe"
    byte_fallback: bool = False
    character_coverage: float = 1.0
    symbols: tuple[str, ...] = ()
    """Strings that are always one subword, e.g. tags."""


_PLAIN_BPE = TokenizerDesign()


def train_tokenizer(lines: Iterable[str], vocab_size: int, design: TokenizerDesign = _PLAIN_BPE) -> bytes:
    """Trains on lines (each without its end) and returns the model file's bytes, the same for the same lines."""
    model = io.BytesIO()
    # Below `least`, SentencePiece fails before it reads the text, so it cannot say which size would fit; far above the
    # largest possible size, it spends seconds on memory (8 s for 2**31 - 1) before it says so.
    least = NUM_SPECIAL_IDS + len(design.symbols) + (_NUM_BYTE_SUBWORDS if design.byte_fallback else 0)
    size_to_try = min(max(vocab_size, least), _MAX_VOCAB_SIZE)
    try:
        sentencepiece.SentencePieceTrainer.train(
            # An iterator, not files: U+2028 or \r inside a line cannot cut it in two.
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=design.kind,
            vocab_size=size_to_try,
            character_coverage=design.character_coverage,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            split_digits=True,  # numbers are copied digit by digit, so that unseen ones are no harder
            byte_fallback=design.byte_fallback,
            user_defined_symbols=list(design.symbols),
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            bos_id=BOS_ID,
            unk_id=UNK_ID,
            max_sentence_length=MAX_LINE_BYTES,  # longer lines would be skipped without a message
            num_threads=_NUM_TRAINING_THREADS,
            minloglevel=_LOG_ERRORS_ONLY,
        )
    except RuntimeError as problem:
        raise _explain_training_failure(str(problem), vocab_size) from problem
    return model.getvalue()


def _explain_training_failure(message: str, vocab_size: int) -> UserError:
    """Turns SentencePiece's message into an error that says what to do."""
    if too_high := re.search(r"set it to a value <= (\d+)", message):
        return VocabularyTooLarge(vocab_size, int(too_high[1]))
    if too_low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return VocabularyTooSmall(vocab_size, int(too_low[1]))
    if "sentences_.empty()" in message:
        return UserError("There is no text to train a tokenizer on; give at least one line that is not blank.")
    return UserError(f"SentencePiece could not train a tokenizer: {message}")


class Tokenizer:
    """Turns lines into ids and back."""

    def __init__(self, model: bytes) -> None:
        """Takes the bytes of a model file; anything else is a ValueError."""
        if not model:  # SentencePiece accepts an empty model and fails at its first use
            raise ValueError("the model is empty")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as problem:
            raise ValueError("not a SentencePiece model") from problem
        ids = tuple(getattr(self._processor, f"{name}_id")() for name in ("pad", "eos", "bos", "unk"))
        if ids != (PAD_ID, EOS_ID, BOS_ID, UNK_ID):
            raise ValueError(f"its ids of PAD, EOS, BOS and UNK are {ids} instead of (0, 1, 2, 3)")
        self._model = model
        self.num_subwords: int = self._processor.get_piece_size()

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Loads a model file; a missing or damaged one is a UserError."""
        try:
            with open_input(path) as file:
                return cls(file.read())
        except OSError as problem:
            raise UserError(f"The tokenizer {path} cannot be read: {describe_os_error(problem)}.") from None
        except ValueError as problem:
            raise UserError(f"{path} is damaged or is not a tokenizer of dragoman: {problem}.") from None

    def save(self, path: Path) -> None:
        """Writes the model file atomically."""
        with write_then_rename(path) as file:
            file.write(self._model)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding: the subwords, padded to a multiple of 8."""
        return padded_vocab_size(self.num_subwords)

    def encode_lines(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Encodes lines to ids, without BOS and EOS; -1 threads means one per core."""
        ids: list[list[int]] = self._processor.encode(list(lines), out_type=int, num_threads=num_threads)
        return ids

    def unknown_characters(self, line: str, ids: Sequence[int]) -> set[str]:
        """Returns the characters of an encoded line that have no subword: the model cannot read or write them."""
        if UNK_ID not in ids and _BLANK not in line:
            return set()
        return {letter for letter in line if letter == _BLANK or UNK_ID in self._processor.encode(letter)}

    def encode_as_subwords(self, lines: Sequence[str]) -> list[list[str]]:
        """Encodes lines to subwords."""
        subwords: list[list[str]] = self._processor.encode(list(lines), out_type=str)
        return subwords

    def decode_subwords(self, subword_lines: Iterable[Sequence[str]]) -> list[str]:
        """Decodes lists of subwords to lines."""
        return [self._processor.decode_pieces(list(subwords)) for subwords in subword_lines]

    @cached_property
    def subword_bytes(self) -> NDArray[np.int64]:
        """Number of UTF-8 bytes of every subword, by id."""
        return np.array([len(self._processor.id_to_piece(i).encode()) for i in range(self.num_subwords)], np.int64)

    @cached_property
    def has_subwords_across_blanks(self) -> bool:
        """Whether a subword may reach from one word into the next, or a blank is not a subword."""
        subwords = (self._processor.id_to_piece(i) for i in range(NUM_SPECIAL_IDS, self.num_subwords))
        return self.blank_id == UNK_ID or any(_BLANK in subword[1:] for subword in subwords)

    @property
    def blank_id(self) -> int:
        """Id of a blank that no word follows."""
        return int(self._processor.piece_to_id(_BLANK))

    def decode_lines(self, id_lines: Iterable[Sequence[int]]) -> list[str]:
        """Decodes lists of ids to lines; PAD, EOS, BOS and the ids that pad the vocabulary stand for no text."""
        ids_of_text = [self._ids_of_text(ids) for ids in id_lines]
        # SentencePiece decodes an empty list as one empty line, not as no lines.
        texts: list[str] = self._processor.decode(ids_of_text) if ids_of_text else []
        return texts

    def _ids_of_text(self, ids: Sequence[int]) -> list[int]:
        return [int(each) for each in ids if UNK_ID <= each < self.num_subwords]

    def subwords(self, ids: Sequence[int]) -> list[str]:
        """Subword of each id, including special ids and those that pad the vocabulary."""
        return [self._subword(int(each)) for each in ids]

    def _subword(self, subword_id: int) -> str:
        if self.num_subwords <= subword_id < self.vocab_size:
            return f"<unused {subword_id}>"
        subword: str = self._processor.id_to_piece(subword_id)
        return subword


MAX_WORDS = 500_000
"""Largest number of remembered words, about 80 MB. Then all are forgotten; the frequent ones soon return."""
_NUM_LINES_COMPARED = 256


class WordEncoder:
    """Encodes lines like its tokenizer, to the packed ids that shards store."""

    def __init__(self, tokenizer: Tokenizer, dtype: IdDtype) -> None:
        self.tokenizer = tokenizer
        self._dtype = dtype
        self._ids: dict[str, bytes] = {}
        self._is_by_word = not tokenizer.has_subwords_across_blanks

    def encode(self, lines: Sequence[str]) -> list[bytes]:
        """Encodes lines, without BOS and EOS."""
        if not self._is_by_word:
            return self._encode_whole(lines)
        words_of_lines = [line.split(" ") if line else [] for line in lines]
        self._learn(words_of_lines)
        ids_of_word = self._ids.__getitem__
        return [b"".join(map(ids_of_word, words)) for words in words_of_lines]

    def check(self, lines: Sequence[str]) -> None:
        """Compares with SentencePiece on the first lines; after a difference, SentencePiece encodes everything."""
        sample = lines[:_NUM_LINES_COMPARED]
        if self.encode(sample) != self._encode_whole(sample):
            self._is_by_word = False

    def _learn(self, words_of_lines: Sequence[Sequence[str]]) -> None:
        if len(self._ids) > MAX_WORDS:
            self._ids.clear()
        # An empty word stands between two blanks in a row, or at a blank at an end: it is encoded as a blank.
        self._ids[""] = pack_ids([[self.tokenizer.blank_id]], self._dtype)[0]
        unknown = list(dict.fromkeys(filterfalse(self._ids.__contains__, chain.from_iterable(words_of_lines))))
        self._ids.update(zip(unknown, self._encode_whole(unknown), strict=True))

    def _encode_whole(self, lines: Sequence[str]) -> list[bytes]:
        return pack_ids(self.tokenizer.encode_lines(lines), self._dtype)
