"""Reads HTML as browsers do, as a row of pieces: text, tags, and what is not translated."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

_TAG_NAME = re.compile(r"/?([A-Za-z][^\s/>]*)")
_TAG_END = re.compile(r"""[^"'>]*+(?:"[^"]*+"[^"'>]*+|'[^']*+'[^"'>]*+)*+>""")
_NO_TRANSLATION = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["'][^"']*\bnotranslate\b""", re.IGNORECASE)
_RAW_ELEMENTS = frozenset(("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"))
"""Elements whose content has no tags; that of a title is translated."""
_KEPT_ELEMENTS = frozenset(("code", "kbd", "math", "pre", "samp", "script", "style", "svg", "template", "var"))
_VOID_ELEMENTS = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
_INLINE_ELEMENTS = frozenset(
    (
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del", "dfn", "em", "font"),
        *("i", "img", "ins", "kbd", "label", "mark", "math", "nobr", "q", "s", "samp", "script", "small", "span"),
        *("strike", "strong", "style", "sub", "sup", "svg", "template", "time", "tt", "u", "var", "wbr"),
    )
)
"""Elements inside a sentence; all others begin and end one."""


class PieceKind(Enum):
    """What a piece of HTML is."""

    TEXT = auto()
    START = auto()
    """Opens an element inside a sentence."""
    END = auto()
    SINGLE = auto()
    """Stands inside a sentence as it is: a line break, an image, a comment, or an element that is not translated."""
    BORDER = auto()
    """Stands as it is between sentences."""


@dataclass(frozen=True)
class HtmlPiece:
    """A part of an HTML text, as it is written there."""

    kind: PieceKind
    text: str
    name: str = ""
    """Name of the element, in small letters."""


def read_html(text: str) -> Iterator[HtmlPiece]:
    """Yields the pieces of an HTML text in order; joined, they are the text again.

    The time it takes grows with the length of the text only, however deep its elements are nested.
    """
    begin = 0
    while begin < len(text):
        end = _end_of_text(text, begin)
        if end > begin:
            yield HtmlPiece(PieceKind.TEXT, text[begin:end])
        begin = end
        if begin < len(text):
            name = _name(text, begin)
            end = _end_of_markup(text, begin)
            opens = _opens(text[begin:end], name)
            is_kept = opens and _is_kept(text[begin:end], name)
            if is_kept:
                end = _end_of_element(text, begin, name)
            yield HtmlPiece(_kind(text[begin:end], name, is_kept), text[begin:end], name)
            begin = end
            if name == "title" and opens and not is_kept:
                end = _end_of_raw_text(text, begin, name)
                yield HtmlPiece(PieceKind.TEXT, text[begin:end])
                begin = end


def _kind(markup: str, name: str, is_kept: bool) -> PieceKind:
    if name not in _INLINE_ELEMENTS:
        return PieceKind.SINGLE if markup.startswith("<!--") else PieceKind.BORDER
    if is_kept or name in _VOID_ELEMENTS or markup.endswith("/>"):
        return PieceKind.SINGLE
    return PieceKind.END if markup[1] == "/" else PieceKind.START


def _opens(tag: str, name: str) -> bool:
    """Whether a tag begins an element that has content."""
    return bool(name) and tag[1] != "/" and name not in _VOID_ELEMENTS and not tag.endswith("/>")


def _is_kept(tag: str, name: str) -> bool:
    is_raw = name in _RAW_ELEMENTS and name != "title"
    return is_raw or name in _KEPT_ELEMENTS or _NO_TRANSLATION.search(tag) is not None


def _end_of_text(text: str, begin: int) -> int:
    """Returns where the next tag, comment or declaration begins; other signs "<" are text."""
    at = text.find("<", begin)
    while at >= 0:
        following = text[at + 1 : at + 3]
        if following[:1] in ("!", "?") or _TAG_NAME.match(following):
            return at
        at = text.find("<", at + 1)
    return len(text)


def _end_of_markup(text: str, begin: int) -> int:
    """Returns where markup ends; as in browsers, markup without an end takes the rest of the text."""
    if text.startswith("<!--", begin):
        end = text.find("-->", begin + 4)
        return end + 3 if end >= 0 else len(text)
    if text.startswith("<![CDATA[", begin):
        end = text.find("]]>", begin)
        return end + 3 if end >= 0 else len(text)
    if text[begin + 1] in "!?":
        end = text.find(">", begin)
        return end + 1 if end >= 0 else len(text)
    found = _TAG_END.match(text, begin + 1)
    return found.end() if found else len(text)


def _end_of_raw_text(text: str, begin: int, name: str) -> int:
    found = re.compile(rf"</{name}\b", re.IGNORECASE).search(text, begin)
    return found.start() if found else len(text)


def _end_of_element(text: str, begin: int, name: str) -> int:
    """Returns where the element that begins here ends, with others of its name inside; without an end, all is in it."""
    depth = 0
    while begin < len(text):
        tag_end = _end_of_markup(text, begin)
        if _name(text, begin) == name:
            depth += -1 if text[begin + 1] == "/" else _opens(text[begin:tag_end], name)
        if not depth:
            return tag_end
        is_raw = name in _RAW_ELEMENTS
        begin = _end_of_raw_text(text, tag_end, name) if is_raw else _end_of_text(text, tag_end)
    return len(text)


def _name(text: str, begin: int) -> str:
    """Returns the name of the tag that begins here; none for a comment or a declaration."""
    found = _TAG_NAME.match(text, begin + 1)
    return found[1].lower() if found else ""
