"""Subwords of words and beginnings that a person demands of a translation, or forbids in it."""

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache

from dragoman.corpus.tokenizer import UNK_ID, Tokenizer
from dragoman.run.errors import UsageError

Ids = tuple[int, ...]
_BLANK = "▁"
_MAX_WAYS = 200
"""Ways of several subwords to write a forbidden word, those of the fewest first; all single subwords are forbidden."""
# Scripts without blanks between words: a word inside a sentence has no word-start form.
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


class TargetWords:
    """Encodes what translations must begin with, contain, or not contain."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encode = lru_cache(maxsize=10_000)(self._encode_text)
        self._spell = lru_cache(maxsize=10_000)(self._ways_to_write)

    def prefix(self, text: str) -> Ids:
        """Returns the subwords that a translation begins with."""
        return self._encode(text) if text.strip() else ()

    def required(self, word: str) -> Ids:
        """Returns the subwords of a word inside a sentence."""
        if not word.strip():
            raise UsageError("A required word must not be empty.")
        ids = self._encode(word)
        if not _SPACELESS.match(word):
            return ids
        [inside] = self._tokenizer.encode_lines([f"0{word}"])
        subwords = self._tokenizer.subwords(inside)
        # A digit is a subword of its own, so what follows it is the word without a word start.
        begin = next((place for place, subword in enumerate(subwords) if subword.endswith("0")), -1) + 1
        return tuple(inside[begin:]) if "".join(subwords[begin:]) == word else ids

    def forbidden(self, words: Sequence[str]) -> tuple[Ids, ...]:
        """Returns all sequences of subwords that write one of the words, so that no other spelling takes its place.

        A word that begins with a forbidden one is forbidden as well.
        """
        return tuple(way for word in words for way in self._spell(word))

    def lacks(self, text: str, word: str) -> bool:
        """Whether a translation lacks a required word."""
        [written] = self._tokenizer.decode_lines([self._encode(word)])
        return word.strip() not in text and written.strip() not in text

    def has_forbidden(self, text: str, word: str) -> bool:
        """Whether a translation has a forbidden word, or one that begins with it."""
        plain = word.strip()
        return plain in text if _SPACELESS.match(plain) else f" {plain}" in f" {text}"

    def _encode_text(self, text: str) -> Ids:
        [ids] = self._tokenizer.encode_lines([text.strip()])
        if unknown := self._tokenizer.unknown_characters(text, ids):
            raise UsageError(f"The model cannot write {min(unknown, key=text.index)!r}, which {text!r} contains.")
        return tuple(ids)

    def _ways_to_write(self, word: str) -> tuple[Ids, ...]:
        if not word.strip():
            raise UsageError("A forbidden word must not be empty.")
        plain = word.strip().replace(" ", _BLANK)
        forms = [_BLANK + plain, plain] if _SPACELESS.match(plain) else [_BLANK + plain]
        ways = sorted({way for form in forms for way in self._ways(form)}, key=lambda way: (len(way), way))
        num_single = sum(len(way) == 1 for way in ways)
        return tuple(ways[: num_single + _MAX_WAYS])

    def _ways(self, text: str) -> list[Ids]:
        """Returns the sequences of subwords that write a text; the last subword may go on after it.

        Of those with the same last subword, there are at most as many as are used.
        """
        ids = self._ids
        ways: list[list[Ids]] = [[()], *([] for _ in text)]
        for end in range(1, len(text) + 1):
            found = [
                (*way, ids[text[begin:end]]) for begin in range(end) if text[begin:end] in ids for way in ways[begin]
            ]
            ways[end] = sorted(found, key=len)[:_MAX_WAYS]
        lasts = [
            (begin, number)
            for begin in range(len(text))
            for subword, number in ids.items()
            if subword.startswith(text[begin:])
        ]
        return [(*way, number) for begin, number in lasts for way in ways[begin]]

    @cached_property
    def _ids(self) -> dict[str, int]:
        subwords = self._tokenizer.subwords(range(self._tokenizer.num_subwords))
        return {subword: number for number, subword in enumerate(subwords) if number > UNK_ID}
