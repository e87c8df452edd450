"""Long lines wait in pieces of whole sentences: each batch stays short, and a line of a client that has gone stops."""

from collections.abc import Iterator, Sequence
from itertools import chain

from dragoman.serving.batching import BestLists
from dragoman.translation.lines.sentences import join_sentences, needs_blank, split_sentences
from dragoman.translation.translator import Translation

MAX_PIECE_CHARACTERS = 500
_MAX_WORD_CHARACTERS = 250


def split_line(line: str) -> list[str]:
    """Splits a line where it is long: between sentences, a longer sentence at a blank, a longer word anywhere."""
    if len(line) <= MAX_PIECE_CHARACTERS:
        return [line]
    pieces = [""]
    for sentence in chain.from_iterable(map(_cut, split_sentences(line))):
        if pieces[-1] and len(pieces[-1]) + len(sentence) > MAX_PIECE_CHARACTERS:
            pieces.append("")
        pieces[-1] += sentence
    return pieces


def _cut(sentence: str) -> Iterator[str]:
    begin = 0
    while len(sentence) - begin > MAX_PIECE_CHARACTERS:
        blank = sentence.rfind(" ", begin, begin + MAX_PIECE_CHARACTERS)
        end = blank + 1 if blank >= begin else begin + _MAX_WORD_CHARACTERS
        yield sentence[begin:end]
        begin = end
    yield sentence[begin:]


def join_pieces(pieces: Sequence[str], found: BestLists) -> list[Translation]:
    """Joins the translations of a line's pieces: the best of all, then the second best, and so on."""
    if len(pieces) == 1:
        return found[0]
    ranks = range(max(map(len, found)))
    return [_join(pieces, [each[min(rank, len(each) - 1)] for each in found]) for rank in ranks]


def _join(pieces: Sequence[str], translations: Sequence[Translation]) -> Translation:
    text = join_sentences([each.text for each in translations])
    score = sum(each.score for each in translations) / len(translations)
    pairs: list[tuple[int, int]] = []
    source_words, before = 0, ""
    for piece, translation in zip(pieces, translations, strict=True):
        is_word_shared = bool(before) and not needs_blank(before, translation.text)
        target_words = len(before.split()) - is_word_shared
        pairs += [(source + source_words, target + target_words) for source, target in translation.alignment or ()]
        source_words += len(piece.split()) - (not piece[-1].isspace())  # the next piece may go on with a word
        before = join_sentences([before, translation.text])
    return Translation(text, score, tuple(pairs) if translations[0].alignment is not None else None)
