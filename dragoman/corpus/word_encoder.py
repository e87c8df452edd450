"""Encoding text many times as fast as SentencePiece alone: each different word is encoded once and remembered.

No piece of a vocabulary of ours reaches across a blank, so a line's pieces are those of its words, one after the
other. Where a vocabulary has other pieces, or the two ways ever differ on the text at hand, SentencePiece does it all.
"""

from collections.abc import Sequence
from itertools import chain, filterfalse

from dragoman.corpus.shards import IdDtype, pack_ids
from dragoman.corpus.tokenizer import Tokenizer

MAX_WORDS = 500_000
"""Remembered at most: some 80 MB. Then all are forgotten; the frequent ones are back at once."""
NUM_LINES_COMPARED = 256


class WordEncoder:
    """Encodes lines as its tokenizer would, to ids as they are stored."""

    def __init__(self, tokenizer: Tokenizer, dtype: IdDtype) -> None:
        self.tokenizer = tokenizer
        self._dtype = dtype
        self._ids: dict[str, bytes] = {}
        self._is_by_word = not tokenizer.has_pieces_across_blanks

    def encode(self, lines: Sequence[str]) -> list[bytes]:
        """The ids of each line, without BOS and EOS."""
        if not self._is_by_word:
            return self._encode_whole(lines)
        words_of_lines = [line.split(" ") if line else [] for line in lines]
        self._learn(words_of_lines)
        ids_of_word = self._ids.__getitem__
        return [b"".join(map(ids_of_word, words)) for words in words_of_lines]

    def check(self, lines: Sequence[str]) -> None:
        """Compares both ways on some of the text to come; if they differ, SentencePiece alone is used from now on."""
        sample = lines[:NUM_LINES_COMPARED]
        if self.encode(sample) != self._encode_whole(sample):
            self._is_by_word = False

    def _learn(self, words_of_lines: Sequence[Sequence[str]]) -> None:
        if len(self._ids) > MAX_WORDS:
            self._ids.clear()
        # Two blanks in a row, or one at an end, have an empty word between them: the piece of a blank.
        self._ids[""] = pack_ids([[self.tokenizer.blank_id]], self._dtype)[0]
        unknown = list(dict.fromkeys(filterfalse(self._ids.__contains__, chain.from_iterable(words_of_lines))))
        self._ids.update(zip(unknown, self._encode_whole(unknown), strict=True))

    def _encode_whole(self, lines: Sequence[str]) -> list[bytes]:
        return pack_ids(self.tokenizer.encode_lines(lines), self._dtype)
