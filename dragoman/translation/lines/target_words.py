"""Subwords of words and beginnings that a person demands of a translation, or forbids in it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from dragoman.corpus.tokenizer import UNK_ID, Tokenizer
from dragoman.run.errors import UsageError
from dragoman.translation.lines.forbidden_spelling import ForbiddenSpelling, ForbiddenWays, ends_word, is_spaceless
from dragoman.translation.search import SearchSettings

Ids = tuple[int, ...]


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
        if not is_spaceless(word):
            return ids
        [inside] = self._tokenizer.encode_lines([f"0{word}"])
        subwords = self._tokenizer.subwords(inside)
        # A digit is a subword of its own, so what follows it is the word without a word start.
        begin = next((place for place, subword in enumerate(subwords) if subword.endswith("0")), -1) + 1
        return tuple(inside[begin:]) if "".join(subwords[begin:]) == word else ids

    def forbid(self, words: Sequence[str], settings: SearchSettings) -> SearchSettings:
        """Returns the settings of a search that writes none of the words, in no sequence of subwords.

        A word that begins with a forbidden one is forbidden as well. It begins after a blank, a punctuation mark or a
        symbol; in scripts without blanks, after any character.
        """
        if not words:
            return settings
        ways = [self._spell(word) for word in words]
        return replace(
            settings,
            forbidden=(*settings.forbidden, *(way for each in ways for way in each.anywhere)),
            forbidden_starts=(*settings.forbidden_starts, *(way for each in ways for way in each.at_word_starts)),
            word_ends=self._pieces.word_ends,
        )

    def lacks(self, text: str, word: str) -> bool:
        """Whether a translation lacks a required word."""
        [written] = self._tokenizer.decode_lines([self._encode(word)])
        return word.strip() not in text and written.strip() not in text

    def has_forbidden(self, text: str, word: str) -> bool:
        """Whether a translation has a forbidden word, or one that begins with it."""
        plain = word.strip()
        places = (place for place in range(len(text)) if text.startswith(plain, place))
        return any(not place or is_spaceless(plain) or ends_word(text[place - 1]) for place in places)

    def _encode_text(self, text: str) -> Ids:
        [ids] = self._tokenizer.encode_lines([text.strip()])
        if unknown := self._tokenizer.unknown_characters(text, ids):
            raise UsageError(f"The model cannot write {min(unknown, key=text.index)!r}, which {text!r} contains.")
        return tuple(ids)

    def _ways_to_write(self, word: str) -> ForbiddenWays:
        if not word.strip():
            raise UsageError("A forbidden word must not be empty.")
        return self._pieces.ways_to_write(word.strip())

    @cached_property
    def _pieces(self) -> ForbiddenSpelling:
        subwords = self._tokenizer.subwords(range(self._tokenizer.num_subwords))
        return ForbiddenSpelling({number: subword for number, subword in enumerate(subwords) if number > UNK_ID})
