"""Puts the tags of a sentence around the words of its translation that belong to what they enclosed."""

import html
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, groupby

from dragoman.serving.tagged_sentence import Element, TaggedSentence, WordPart, split_word
from dragoman.translation.lines.word_alignment import Alignment
from dragoman.translation.translator import Translation

_NEAR = 3
"""How far from its place an element without aligned words may take a word, in parts of words."""
_Span = tuple[int, int]


def write_tagged(sentence: TaggedSentence, translation: Translation) -> str:
    """Returns a translation as HTML with all tags of the sentence; without an alignment they are around the whole."""
    words = translation.text.split()
    target = list(chain.from_iterable(split_word(word, number, number > 0) for number, word in enumerate(words)))
    links = _link(sentence.parts, target, translation.alignment or ())
    if any(links):
        written = "".join(_Placing(sentence.parts, target, links).write(sentence.root, 0, len(target)))
    else:
        written = _write_around(sentence.root, _escape(" ".join(words)))
    return " " * sentence.parts[0].has_blank + written + " " * sentence.ends_with_blank


def _link(source: Sequence[WordPart], target: Sequence[WordPart], alignment: Alignment) -> list[list[int]]:
    """Returns for each part of the translation the source parts that belong to it: letters to letters, signs to signs.

    Of a word that tags divide, only the first part is linked: the others find their place beside it.
    """
    firsts: dict[tuple[int, int], int] = {}
    for index, part in enumerate(source):
        firsts.setdefault((part.word, part.place), index)
    words: dict[int, list[int]] = {}
    for source_word, target_word in alignment:
        words.setdefault(target_word, []).append(source_word)
    return [
        [firsts[word, part.place] for word in words.get(part.word, ()) if (word, part.place) in firsts]
        for part in target
    ]


def _write_around(root: Element, text: str) -> str:
    """Writes all tags around the text, in order; what stood after all of the source stays there."""
    before: list[str] = []
    ends: list[str] = []
    after: list[str] = []
    for element in _outer_first(root.children):
        if element.has_text:
            before.append(element.start)
            ends.append(element.end)
        else:
            (after if element.begin == root.stop else before).append(_write_empty(element))
    return "".join([*before, text, *ends[::-1], *after])


def _outer_first(elements: Sequence[Element]) -> Iterator[Element]:
    for element in elements:
        yield element
        if element.has_text:
            yield from _outer_first(element.children)


def _write_empty(element: Element) -> str:
    return element.start + "".join(map(_write_empty, element.children)) + element.end


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


class _Placing:
    """Finds the places of elements in a translation."""

    def __init__(self, source: Sequence[WordPart], target: Sequence[WordPart], links: list[list[int]]) -> None:
        self._source, self._target, self._links = source, target, links
        linked: dict[int, list[int]] = {}
        for place, parts in enumerate(links):
            for part in parts:
                linked.setdefault(part, []).append(place)
        self._after: list[int | None] = [None]
        """For each source part, the place after the translation of what stands before it."""
        self._before: list[int | None] = [None]
        """For each source part, the place before the translation of what stands there or later."""
        for part in range(len(source)):
            self._after.append(linked[part][-1] + 1 if part in linked else self._after[-1])
        for part in reversed(range(len(source))):
            self._before.append(linked[part][0] if part in linked else self._before[-1])
        self._before.reverse()

    def write(self, element: Element, begin: int, end: int) -> Iterator[str]:
        """Yields the content of an element that gets these parts of the translation; the first without its blank."""
        spans = self._find_spans(element, begin, end)
        at = begin
        for child in sorted(spans, key=lambda child: spans[child]):
            first, last = spans[child]
            yield from self._write_parts(at, first, begin)
            if first < last:
                yield " " * (first > begin and self._target[first].has_blank)
                yield child.start
                yield from self.write(child, first, last)
                yield child.end
            else:
                yield " " * (child.has_blank_before and first > begin)
                yield _write_empty(child)
                yield " " * self._needs_blank_after(child, element, first == begin, first == end)
            at = last
        yield from self._write_parts(at, end, begin)

    def _write_parts(self, first: int, last: int, begin: int) -> Iterator[str]:
        for place in range(first, last):
            part = self._target[place]
            yield " " * (part.has_blank and place > begin) + _escape(part.text)

    def _needs_blank_after(self, child: Element, parent: Element, is_first: bool, is_last: bool) -> bool:
        """Whether an element without words needs a blank that the part after it does not have."""
        return not is_last and is_first and (child.has_blank_after or child.begin > parent.begin)

    def _find_spans(self, element: Element, begin: int, end: int) -> dict[Element, _Span]:
        """Returns for each child the parts it gets: from the first to the last that belong to what it encloses."""
        spans = self._aligned_spans(element, begin, end)
        owners: list[Element | None] = [None] * (end - begin)
        for child, (first, last) in spans.items():
            owners[first - begin : last - begin] = [child] * (last - first)
        for child in element.children:
            if child in spans:
                continue
            gap = self._gap(child, element, begin, end)
            place = self._free_place(child, owners, gap - begin) if child.has_text else None
            if place is not None:
                owners[place] = child
                spans[child] = (begin + place, begin + place + 1)
            else:
                gap = _outside(gap, owners, begin, spans)
                spans[child] = (gap, gap)
        return spans

    def _aligned_spans(self, element: Element, begin: int, end: int) -> dict[Element, _Span]:
        """Where words of several children alternate, each child gets the longest row of its own."""
        children = [child for child in element.children if child.has_text]
        if len(children) == 1 and (children[0].begin, children[0].stop) == (element.begin, element.stop):
            return {children[0]: (begin, end)}
        begins = [child.begin for child in children]
        owned: list[tuple[int, Element]] = []
        for place in range(begin, end) if children else ():
            found = [(children[bisect_right(begins, part) - 1], part) for part in self._links[place]]
            inside = [child for child, part in found if child.begin <= part < child.stop]
            owned += [(place, child) for child in inside[:1]]
        rows: dict[Element, list[int]] = {}
        for child, group in groupby(owned, key=lambda pair: pair[1]):
            places = [place for place, _ in group]
            rows[child] = max(rows.get(child, []), places, key=len)
        return {child: (places[0], places[-1] + 1) for child, places in rows.items()}

    def _gap(self, child: Element, parent: Element, begin: int, end: int) -> int:
        """Returns where a child without aligned words belongs: beside its neighbour in the source."""
        if child.begin == parent.begin:
            return begin
        if child.stop == parent.stop:
            return end
        places = [self._after[child.begin], self._before[child.stop]]
        if child.has_blank_before and not child.has_blank_after:
            places.reverse()
        return min(max(next(place for place in places if place is not None), begin), end)

    def _free_place(self, child: Element, owners: Sequence[Element | None], gap: int) -> int | None:
        """Returns a part near the gap that no other child has; inside a word, that of the word itself comes first."""
        near = sorted(range(gap - _NEAR, gap + _NEAR), key=lambda place: abs(place + 0.4 - gap))
        if not self._source[child.begin].has_blank:
            near.insert(0, gap - 1)
        return next((place for place in near if 0 <= place < len(owners) and owners[place] is None), None)


def _outside(gap: int, owners: Sequence[Element | None], begin: int, spans: dict[Element, _Span]) -> int:
    """Returns the gap, or the end of the span that it would divide."""
    if not begin < gap < begin + len(owners):
        return gap
    left, right = owners[gap - begin - 1], owners[gap - begin]
    return spans[left][1] if left is not None and left is right else gap
