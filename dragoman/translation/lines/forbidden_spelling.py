"""All sequences of subwords that write a forbidden word, so that no other spelling takes its place."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Ids = tuple[int, ...]
_BLANK = "▁"
_MAX_BEGINNINGS = 100
"""Ways to write all but the last subword of a forbidden word, those of the fewest subwords first."""
# Scripts without blanks between words: a word may begin after any character.
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def is_spaceless(word: str) -> bool:
    """Whether a word is of a script without blanks between words."""
    return _SPACELESS.match(word) is not None


def ends_word(character: str) -> bool:
    """Whether a word begins after this character: a blank, punctuation or a symbol, but no letter, mark or digit."""
    return unicodedata.category(character)[0] in "ZPSC"


@dataclass(frozen=True)
class ForbiddenWays:
    """Sequences of subwords that write one word."""

    anywhere: tuple[Ids, ...]
    """Those whose first subword shows that a word begins."""
    at_word_starts: tuple[Ids, ...]
    """Those that write the word only where one begins, as after a quotation mark; elsewhere, the end of another."""


class ForbiddenSpelling:
    """The subwords of a vocabulary, by the text they can continue."""

    def __init__(self, subwords: Mapping[int, str]) -> None:
        self._ids = {subword: number for number, subword in subwords.items()}
        self._by_first: dict[str, list[tuple[str, int]]] = {}
        """Subwords by their first character."""
        self._by_inner: dict[str, list[tuple[str, int, bool]]] = {}
        """Rests of subwords by their first character, and whether a word begins there."""
        for number, subword in subwords.items():
            self._by_first.setdefault(subword[0], []).append((subword, number))
            for place in range(1, len(subword)):
                entry = subword[place:], number, ends_word(subword[place - 1])
                self._by_inner.setdefault(subword[place], []).append(entry)
        self.word_ends: Ids = tuple(number for number, subword in subwords.items() if ends_word(subword[-1]))
        """Subwords after which a word begins."""

    def ways_to_write(self, word: str) -> ForbiddenWays:
        """Returns all ways to write a word; the last subword may go on after it."""
        text = word.replace(" ", _BLANK)
        whole = self._by_first.get(text[0], [])
        inner = [
            (rest, number)
            for rest, number, is_word_start in self._by_inner.get(text[0], [])
            if is_word_start or is_spaceless(text)
        ]
        if is_spaceless(text):
            return ForbiddenWays(self._continue(text, [*inner, *whole]), ())
        return ForbiddenWays(self._continue(text, inner), self._continue(text, whole))

    def _continue(self, text: str, firsts: Iterable[tuple[str, int]]) -> tuple[Ids, ...]:
        """Returns the ways to write a text whose first subword, or the last part of it, is one of `firsts`."""
        found: list[Ids] = []
        beginnings: list[list[Ids]] = [[] for _ in text]
        """Ways to write the first characters of the text, by their number."""
        for written, number in firsts:
            if written.startswith(text):
                found.append((number,))
            elif text.startswith(written):
                beginnings[len(written)].append((number,))
        for end in range(1, len(text)):
            beginnings[end] += [
                (*way, self._ids[text[begin:end]])
                for begin in range(1, end)
                if text[begin:end] in self._ids
                for way in beginnings[begin]
            ]
            beginnings[end] = sorted(beginnings[end], key=len)[:_MAX_BEGINNINGS]
        kept = sorted(
            ((way, end) for end, ways in enumerate(beginnings) for way in ways), key=lambda each: len(each[0])
        )
        for way, end in kept[:_MAX_BEGINNINGS]:
            rest = text[end:]
            lasts = self._by_first.get(rest[0], [])
            found += [(*way, number) for written, number in lasts if written.startswith(rest)]
        return tuple(found)
