"""Cuts a line that is longer than those a model learned from: between sentences, and at words if one is too long."""

from dataclasses import dataclass

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.translation.lines.sentences import split_sentences
from dragoman.translation.lines.word_alignment import words_of_subwords

_WORD_START = "▁"
_CLAUSE_ENDS = ("，", "、", "；", "：", "︰", "،", "؛")
"""Marks after which a long sentence may be cut although no blank follows."""


@dataclass(frozen=True)
class LineSegment:
    """A part of a line that fits the model."""

    text: str
    """Its text; that of the whole sentence where a sentence was cut."""
    ids: list[int]
    words: list[int | None]
    """The word of the line that each id belongs to; empty unless asked for."""


def cut_line(
    text: str, ids: list[int], tokenizer: Tokenizer, max_ids: int, with_words: bool, max_whole_ids: int | None = None
) -> list[LineSegment]:
    """Returns an encoded line in segments of at most `max_ids` ids.

    A line of up to `max_whole_ids` (`max_ids` if None) is one segment, a longer one has a segment for each sentence.
    """
    sentences = [text] if len(ids) <= (max_whole_ids or max_ids) else split_sentences(text)
    if len(sentences) == 1 and len(ids) <= max_ids:
        return [LineSegment(text, ids, words_of_subwords(tokenizer, ids) if with_words else [])]
    segments: list[LineSegment] = []
    begin = 0
    # Sentences are not packed up to the limit: a model that learned from single sentences leaves out most of several.
    for sentence in sentences:
        first_word = _word_at(text, begin) if with_words else None
        segments += _cut_sentence(sentence.strip(), tokenizer, max_ids, first_word)
        begin += len(sentence)
    return segments


def _word_at(text: str, begin: int) -> int:
    """Returns the number of the word that begins or goes on at a place, counted from 0."""
    is_inside = 0 < begin < len(text) and not (text[begin - 1].isspace() or text[begin].isspace())
    return len(text[:begin].split()) - is_inside


def _cut_sentence(text: str, tokenizer: Tokenizer, max_ids: int, first_word: int | None) -> list[LineSegment]:
    """Cuts a sentence at words if it is still too long; where words are not asked for, `first_word` is None."""
    [ids] = tokenizer.encode_lines([text])
    words = [] if first_word is None else words_of_subwords(tokenizer, ids, first_word)
    segments: list[LineSegment] = []
    begin = 0
    for part in cut_at_words(ids, _possible_cuts(tokenizer.subwords(ids)), max_ids) if ids else []:
        segments.append(LineSegment(text, part, words[begin : begin + len(part)]))
        begin += len(part)
    return segments


def _possible_cuts(subwords: list[str]) -> list[bool]:
    """Says before which subwords a sentence may be cut: where a word starts, and after a comma of another script."""
    before = ["", *subwords[:-1]]
    return [
        subword.startswith(_WORD_START) or last.endswith(_CLAUSE_ENDS)
        for subword, last in zip(subwords, before, strict=True)
    ]


def cut_at_words(ids: list[int], is_word_start: list[bool], max_ids: int) -> list[list[int]]:
    """Cuts ids into segments of similar size, at most `max_ids` each; cuts inside a word only if it is longer."""
    segments: list[list[int]] = []
    begin = 0
    while len(ids) - begin > max_ids:
        num_left = -(-(len(ids) - begin) // max_ids)
        wanted = begin + -(-(len(ids) - begin) // num_left)
        word_starts = [index for index in range(begin + 1, begin + max_ids + 1) if is_word_start[index]]
        end = min(word_starts, key=lambda index: abs(index - wanted), default=begin + max_ids)
        segments.append(ids[begin:end])
        begin = end
    return [*segments, ids[begin:]]
