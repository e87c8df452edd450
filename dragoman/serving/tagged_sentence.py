"""Reads a sentence with tags inside: its text, and which words each element encloses."""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dragoman.serving.html_markup import HtmlPiece, PieceKind

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b\ufeff]")
_WORDS = re.compile(r"(\s*)(\S+)")
_JOINING = frozenset(("wbr", ""))
"""Single pieces that do not separate words: a possible line break, a comment."""
_CLOSING_SIGNS = ("Pe", "Pf", "Po")
"""Categories of signs that follow a word without a blank."""


@dataclass(frozen=True)
class WordPart:
    """A part of a word: the signs before its letters, the letters, or the signs after them."""

    text: str
    word: int
    place: int
    """0: signs before, 1: letters, 2: signs after."""
    has_blank: bool
    """Whether a blank stands before it."""


@dataclass(eq=False)
class Element:
    """An element inside a sentence, or a single piece such as a line break."""

    start: str = ""
    end: str = ""
    begin: int = 0
    stop: int = 0
    """The parts of the source that it encloses."""
    children: list["Element"] = field(default_factory=list)
    has_blank_before: bool = False
    has_blank_after: bool = False

    @property
    def has_text(self) -> bool:
        """Whether it encloses text."""
        return self.begin < self.stop


class TaggedSentence:
    """A sentence with tags inside; in it every start tag has its end tag, properly nested."""

    def __init__(self, pieces: Iterable[HtmlPiece]) -> None:
        self.root = Element()
        """All of the sentence, without tags of its own."""
        self._open = [self.root]
        self._elements = [self.root]
        self._fragments: list[tuple[str, bool]] = []
        """Words, or what of them tags do not separate, each with whether a blank stands before it."""
        self._last_single: Element | None = None
        """The single piece that stands before the next word."""
        self._is_separated = False
        self.ends_with_blank = False
        for piece in pieces:
            self._add(piece)
        self.parts = self._number_parts()
        self.text = "".join(" " * part.has_blank + part.text for part in self.parts).strip()
        """The text without tags."""

    def _add(self, piece: HtmlPiece) -> None:
        place = len(self._fragments)
        if piece.kind is PieceKind.TEXT:
            self._add_text(clean_text(piece.text))
        elif piece.kind is PieceKind.END:
            element = self._open.pop()
            element.end, element.stop = piece.text, place
        else:
            element = Element(piece.text, begin=place, stop=place)
            self._open[-1].children.append(element)
            self._elements.append(element)
            if piece.kind is PieceKind.START:
                self._open.append(element)
            else:
                self._add_single(element, piece.name not in _JOINING)

    def _add_single(self, single: Element, separates: bool) -> None:
        single.has_blank_before = self.ends_with_blank
        self._is_separated |= separates or self.ends_with_blank
        self._last_single, self.ends_with_blank = single, False

    def _add_text(self, text: str) -> None:
        for blank, word in _WORDS.findall(text):
            has_blank = self.ends_with_blank or bool(blank)
            if self._last_single is not None:
                self._last_single.has_blank_after = has_blank
                follows_word = unicodedata.category(word[0]) in _CLOSING_SIGNS
                has_blank = has_blank or (self._is_separated and not follows_word)
            self._fragments.append((word, has_blank))
            self._last_single, self._is_separated, self.ends_with_blank = None, False, False
        self.ends_with_blank |= text[-1:].isspace()

    def _number_parts(self) -> list[WordPart]:
        """Splits the fragments into parts of words, and lets elements count these."""
        self.root.stop = len(self._fragments)
        parts: list[WordPart] = []
        firsts: list[int] = []
        word: list[str] = []
        for text, has_blank in [*self._fragments, ("", True)]:
            if has_blank and word:
                number = parts[-1].word + 1 if parts else 0
                begins = self._fragments[len(firsts)][1]
                for fragment in _split_fragments(word, number, begins):
                    firsts.append(len(parts))
                    parts += fragment
                word = []
            word.append(text)
        firsts.append(len(parts))
        for element in self._elements:
            element.begin, element.stop = firsts[element.begin], firsts[element.stop]
        return parts


def clean_text(piece: str) -> str:
    """Returns the text of a piece of HTML; control characters become blanks."""
    return _CONTROL.sub(" ", html.unescape(piece))


def split_word(word: str, number: int, has_blank: bool) -> list[WordPart]:
    """Returns the parts of a word that has no tags inside."""
    return _split_fragments([word], number, has_blank)[0]


def _split_fragments(fragments: Sequence[str], number: int, has_blank: bool) -> list[list[WordPart]]:
    """Returns for each fragment of a word its parts."""
    first, last = _letters_of("".join(fragments))
    split: list[list[WordPart]] = []
    begin = 0
    for fragment in fragments:
        end = begin + len(fragment)
        cuts = [begin, *(cut for cut in (first, last) if begin < cut < end), end]
        places = [0 if cut < first else 1 if cut < last else 2 for cut in cuts]
        split.append(
            [
                WordPart(fragment[cut - begin : stop - begin], number, place, has_blank and cut == 0)
                for cut, stop, place in zip(cuts, cuts[1:], places, strict=False)
            ]
        )
        begin = end
    return split


def _letters_of(word: str) -> tuple[int, int]:
    """Returns where the letters of a word begin and end; a word of signs only counts as letters."""
    inner = [index for index, sign in enumerate(word) if unicodedata.category(sign)[0] not in "PS"]
    return (inner[0], inner[-1] + 1) if inner else (0, len(word))
