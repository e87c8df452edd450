"""Cuts HTML into sentences to translate and what stays as it is: a sentence keeps the elements inside it."""

import html
from collections.abc import Iterable, Iterator, Sequence

from dragoman.serving.cut_text import CutText, has_letter, split_ends
from dragoman.serving.html_markup import HtmlPiece, PieceKind, read_html
from dragoman.serving.tag_placing import write_tagged
from dragoman.serving.tagged_sentence import TaggedSentence, clean_text
from dragoman.translation.translator import Translation

_MAX_DEPTH = 20
"""Tags that are nested deeper than any sentence of a person count as borders, so that time stays bounded."""

_NOTES = frozenset(("sub", "sup"))
_SENTENCE_ENDS = ".:!?…。！？؟।"


def cut_html(text: str) -> CutText:
    """Cuts HTML between sentences; tags, comments, scripts, code and what is marked translate="no" stay as they are."""
    cut = CutText()
    for pieces in map(_join_notes, _sentences(read_html(text))):
        if has_letter("".join(html.unescape(piece.text) for piece in pieces if piece.kind is PieceKind.TEXT)):
            _add_sentence(cut, pieces)
        else:
            cut.parts += [piece.text for piece in pieces]
    return cut


def _join_notes(pieces: Sequence[HtmlPiece]) -> list[HtmlPiece]:
    """Makes a footnote sign, or a raised or lowered number, a single piece: it is no part of the word before it."""
    joined: list[HtmlPiece] = []
    begin = None
    for piece in pieces:
        joined.append(piece)
        if piece.kind is PieceKind.START and piece.name in _NOTES:
            begin = len(joined) - 1
        elif piece.kind is PieceKind.TEXT and has_letter(html.unescape(piece.text)):
            begin = None
        elif begin is not None and piece.kind is PieceKind.END and piece.name == joined[begin].name:
            joined[begin:] = [HtmlPiece(PieceKind.SINGLE, "".join(each.text for each in joined[begin:]), piece.name)]
            begin = None
    return joined


def _add_sentence(cut: CutText, pieces: Sequence[HtmlPiece]) -> None:
    begin, inner, end = _split_off_ends(pieces)
    cut.parts += begin
    if len(inner) == 1:
        cut.add_line(" ".join(clean_text(inner[0].text).split()), _write_text)
    else:
        sentence = TaggedSentence(inner)
        cut.add_line(sentence.text, lambda translation: write_tagged(sentence, translation))
        cut.needs_alignment = True
    cut.parts += end


def _write_text(translation: Translation) -> str:
    return html.escape(translation.text, quote=False)


def _split_off_ends(pieces: Sequence[HtmlPiece]) -> tuple[list[str], list[HtmlPiece], list[str]]:
    """Splits off what stands before and after a sentence: blanks, comments, line breaks."""
    is_inner = [piece.kind is not PieceKind.SINGLE and bool(piece.text.strip()) for piece in pieces]
    first, stop = is_inner.index(True), len(pieces) - is_inner[::-1].index(True)
    inner = list(pieces[first:stop])
    before, after = [piece.text for piece in pieces[:first]], [piece.text for piece in pieces[stop:]]
    if inner[0].kind is PieceKind.TEXT:
        blanks = split_ends(inner[0].text)[0]
        inner[0] = HtmlPiece(PieceKind.TEXT, inner[0].text[len(blanks) :])
        before.append(blanks)
    if inner[-1].kind is PieceKind.TEXT:
        blanks = split_ends(inner[-1].text)[2]
        inner[-1] = HtmlPiece(PieceKind.TEXT, inner[-1].text[: len(inner[-1].text) - len(blanks)])
        after.insert(0, blanks)
    return before, inner, after


def _sentences(pieces: Iterable[HtmlPiece]) -> Iterator[list[HtmlPiece]]:
    """Yields sentences, and what stands between them each by itself; joined, they are all pieces again."""
    sentence: list[HtmlPiece] = []
    for piece in pieces:
        if piece.kind is PieceKind.BORDER:
            yield from _split_at_borders(sentence)
            yield [piece]
            sentence = []
        else:
            sentence.append(piece)
    yield from _split_at_borders(sentence)


def _split_at_borders(pieces: Sequence[HtmlPiece]) -> Iterator[list[HtmlPiece]]:
    sentence: list[HtmlPiece] = []
    borders = _borders(pieces)
    for index, piece in enumerate(pieces):
        if index in borders:
            yield sentence
            yield [piece]
            sentence = []
        else:
            sentence.append(piece)
    yield sentence


def _borders(pieces: Sequence[HtmlPiece]) -> set[int]:
    """Returns which tags are no part of a properly nested element, and which line breaks end a sentence."""
    borders: set[int] = set()
    open_tags: list[int] = []
    last_sign = ""
    for index, piece in enumerate(pieces):
        if piece.kind is PieceKind.TEXT:
            last_sign = piece.text.rstrip()[-1:] or last_sign
        elif piece.kind is PieceKind.START and len(open_tags) < _MAX_DEPTH:
            open_tags.append(index)
        elif piece.kind is PieceKind.END and open_tags and pieces[open_tags[-1]].name == piece.name:
            open_tags.pop()
        elif piece.kind is not PieceKind.SINGLE:
            borders.update(open_tags, [index])
            open_tags.clear()
        elif piece.name == "br" and not open_tags and last_sign in _SENTENCE_ENDS:
            borders.add(index)
    return borders.union(open_tags)
