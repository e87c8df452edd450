"""Turns an alignment of subwords into one of words: words are the parts of a text between blanks, counted from 0."""

from collections.abc import Sequence

from dragoman.corpus.tokenizer import UNK_ID, Tokenizer

Alignment = tuple[tuple[int, int], ...]
"""Pairs of a source and a target word, sorted."""
_BLANK = "▁"
_UNKNOWN_MARK = "▁⁇▁"
"""How a decoder writes a subword that stands for an unknown character."""


def words_of_subwords(tokenizer: Tokenizer, ids: Sequence[int], first_word: int = 0) -> list[int | None]:
    """Returns the number of the word each subword ends in, counted from `first_word`; None for a blank alone."""
    words: list[int | None] = []
    word, is_inside = first_word - 1, False
    for subword_id, subword in zip(ids, tokenizer.subwords(ids), strict=True):
        is_visible = False
        for letter in _UNKNOWN_MARK if subword_id == UNK_ID else subword:
            word += letter != _BLANK and not is_inside
            is_inside = letter != _BLANK
            is_visible |= is_inside
        words.append(word if is_visible else None)
    return words


def pair_words(
    source_words: Sequence[int | None], target_words: Sequence[int | None], aligned: Sequence[int]
) -> set[tuple[int, int]]:
    """Joins the words of subwords that are aligned; the end of the source belongs to no word."""
    return {
        (source, target)
        for target, place in zip(target_words, aligned, strict=True)
        if target is not None and place < len(source_words) and (source := source_words[place]) is not None
    }


def format_alignment(alignment: Alignment) -> str:
    """Writes an alignment in the Pharaoh format: "0-0 1-2"."""
    return " ".join(f"{source}-{target}" for source, target in alignment)
