"""Translates lines of text with any backend: cuts them to fit the model, forms batches, and joins what was found."""

import unicodedata
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Self

from dragoman.corpus.cleaning.normalisation import normalise
from dragoman.corpus.tokenizer import UNK_ID, Tokenizer
from dragoman.run.errors import UsageError
from dragoman.translation.lines.segments import LineSegment, cut_line
from dragoman.translation.lines.sentences import join_sentences, needs_blank
from dragoman.translation.lines.target_words import TargetWords
from dragoman.translation.lines.word_alignment import Alignment, pair_words, words_of_subwords
from dragoman.translation.notices import Say, SourceNotices, UnknownCharacters
from dragoman.translation.search import Batch, Found, Hypothesis, SearchBackend, SearchSettings, SourceSegment

BATCH_TOKENS = 1_500
MAX_BATCH_HYPOTHESES = 24_000
"""Padded source subwords times beam size of a batch: a wide beam gets small batches instead of all memory."""


@dataclass(frozen=True)
class SourceLine:
    """A line to translate, and what its translation must be like."""

    text: str
    prefix: str = ""
    """Text that the translation begins with."""
    required: tuple[str, ...] = ()
    """Words that the translation contains."""
    forbidden: tuple[str, ...] = ()
    """Words that the translation does not contain."""


@dataclass(frozen=True)
class Translation:
    """A translated line."""

    text: str
    score: float
    """Log-probability divided by the length penalty; the mean over its segments if a line was cut; 0 if it is blank."""
    alignment: Alignment | None = None
    """Pairs of a source and a target word, each a part between blanks, counted from 0; only where asked for."""


@dataclass(frozen=True)
class _Line:
    """One line in segments that each fit the model."""

    index: int
    forbidden: tuple[str, ...]
    parts: list[LineSegment]
    segments: list[SourceSegment]
    found: dict[int, list[Hypothesis]] = field(default_factory=dict)
    """The hypotheses of each segment so far."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the longest segment, EOS included."""
        return max(segment.num_tokens for segment in self.segments)

    @property
    def is_done(self) -> bool:
        """Whether all segments are translated."""
        return len(self.found) == len(self.segments)


_Part = tuple[_Line, int]
"""A line and the index of one of its segments."""


class LineTranslator:
    """Translates lines with one backend; the same lines give the same translations, by any number of processes."""

    def __init__(
        self,
        backend: SearchBackend,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: SearchSettings,
        max_source_tokens: int = 256,
        say: Say | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        """Takes the longest source (EOS included) the model was trained on, and the most padded tokens of a batch.

        `say` receives notices about lines that the model was not trained for.
        """
        if max_source_tokens < 2:
            raise UsageError(f"max_source_tokens must be 2 or more (EOS takes one), not {max_source_tokens}.")
        self._backend = backend
        self._source_tokenizer = source_tokenizer
        self._target_tokenizer = target_tokenizer
        self._target_words = TargetWords(target_tokenizer)
        self.settings = settings
        self.on_found: Callable[[Batch, Found], None] | None = None
        """Receives each batch with what was found for it, e.g. to count tokens."""
        self._batch_tokens = batch_tokens
        self._max_source_tokens = max_source_tokens
        self._max_whole_subwords: int | None = None
        self._notices = None if say is None else SourceNotices(say, source_tokenizer, max_source_tokens - 1)

    def by_sentences(self, usual_subwords: int | None) -> Self:
        """Returns the translator for lines of any text: those longer than usual are split into sentences.

        Without it a line stays one source as long as it fits the model, as the lines of a test set do.
        """
        other = copy(self)
        other._max_whole_subwords = usual_subwords
        return other

    def translate(self, lines: Sequence[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """Returns the translations in the order of the lines; calls `progress` with the number of new lines done."""
        return [best[0].text for best in self.translate_lines([SourceLine(line) for line in lines], progress)]

    def translate_lines(
        self,
        lines: Sequence[SourceLine],
        progress: Callable[[int], None] | None = None,
        first_number: int = 1,
        settings: SearchSettings | None = None,
    ) -> list[list[Translation]]:
        """Returns for each line its translations, best first; as many as the settings ask for, the translator's own
        if none are given.

        In notices, the first of the lines has the number `first_number`.
        """
        translations = dict(self._translate_share(lines, 0, 1, progress, first_number, settings or self.settings))
        return [translations[index] for index in range(len(lines))]

    def finish_notices(self) -> None:
        """Says how often something was noticed about the lines since the last call."""
        if self._notices is not None:
            self._notices.finish()

    def describe_unwritable(self, references: Sequence[str]) -> str | None:
        """Says which characters of reference translations the model cannot write; None if it can write all."""
        unknown = UnknownCharacters(self._target_tokenizer)
        for number, (line, ids) in enumerate(
            zip(references, self._target_tokenizer.encode_lines(references), strict=True), 1
        ):
            unknown.add(number, line, ids)
        return unknown.describe(
            "the references", "No translation can contain such a character, which lowers the scores."
        )

    def translate_share(
        self, lines: Sequence[str], rank: int, size: int, progress: Callable[[int], None] | None = None
    ) -> list[tuple[int, str]]:
        """Returns the translations of one of `size` ranks, each with the index of its line.

        Batches are formed over all lines, so the result does not depend on the number of ranks.
        """
        share = self._translate_share([SourceLine(line) for line in lines], rank, size, progress, 1, self.settings)
        return [(index, translations[0].text) for index, translations in share]

    def _translate_share(
        self,
        lines: Sequence[SourceLine],
        rank: int,
        size: int,
        progress: Callable[[int], None] | None,
        first_number: int,
        settings: SearchSettings,
    ) -> list[tuple[int, list[Translation]]]:
        filled, blank = self._read(lines, first_number, settings.with_alignment)
        translations: list[tuple[int, list[Translation]]] = []
        if rank == 0:
            empty = Translation("", 0.0, () if settings.with_alignment else None)
            translations += [(index, [empty]) for index in blank]
            _report(progress, len(blank))
        for forbidden in dict.fromkeys(line.forbidden for line in filled):
            group = [line for line in filled if line.forbidden == forbidden]
            batches = self._form_batches(group, rank, size, settings)
            translations += self._search(batches, self._target_words.forbid(forbidden, settings), progress)
        for index, found in sorted(translations, key=lambda translated: translated[0]):
            self._note_broken_demands(first_number + index, lines[index], found[0].text)
        return translations

    def _note_broken_demands(self, number: int, line: SourceLine, translation: str) -> None:
        """Tells where the length limit left no room for a word, or a forbidden one was written in an unknown way."""
        if self._notices is None or not line.text.strip():
            return
        for word in line.required:
            if self._target_words.lacks(translation, word):
                self._notices.add_broken_demand(number, "lacks", word, "required")
        for word in line.forbidden:
            if self._target_words.has_forbidden(translation, word):
                self._notices.add_broken_demand(number, "has", word, "forbidden")

    def _form_batches(
        self, lines: Sequence[_Line], rank: int, size: int, settings: SearchSettings
    ) -> list[list[_Part]]:
        batch_tokens = min(self._batch_tokens, max(1, MAX_BATCH_HYPOTHESES // settings.num_rows))
        return _form_batches(lines, batch_tokens, rank, size)

    def _search(
        self, batches: list[list[_Part]], settings: SearchSettings, progress: Callable[[int], None] | None
    ) -> list[tuple[int, list[Translation]]]:
        translations: list[tuple[int, list[Translation]]] = []
        segments = [[line.segments[number] for line, number in batch] for batch in batches]
        with closing(self._backend.search_batches(segments, settings)) as results:
            for index, found in results:
                if self.on_found is not None:
                    self.on_found(segments[index], found)
                kept = [_shorten(best, segment, settings) for segment, best in zip(segments[index], found, strict=True)]
                done = [line for part, best in zip(batches[index], kept, strict=True) if (line := _add(part, best))]
                translations += [(line.index, self._join(line)) for line in done]
                _report(progress, len(done))
        return translations

    def _read(self, lines: Sequence[SourceLine], first_number: int, with_words: bool) -> tuple[list[_Line], list[int]]:
        """Returns the lines with something to translate, and the indices of the blank ones."""
        max_ids = self._max_source_tokens - 1  # EOS takes one place
        filled: list[_Line] = []
        blank: list[int] = []
        texts = [normalise(line.text) for line in lines]
        for index, ids in enumerate(self._source_tokenizer.encode_lines(texts)):
            if UNK_ID in ids:
                texts[index], ids = self._read_visible(texts[index], ids)
            if not ids:
                blank.append(index)
                continue
            number = first_number + index
            parts = cut_line(texts[index], ids, self._source_tokenizer, max_ids, with_words, self._max_whole_subwords)
            try:
                segments = self._demand(lines[index], parts, number)
            except UsageError as error:
                raise UsageError(f"Line {number:,}: {error}") from None
            filled.append(_Line(index, lines[index].forbidden, parts, segments))
            if self._notices is not None:
                self._notices.add(number, texts[index], ids, len(parts))
        return filled, blank

    def _read_visible(self, text: str, ids: list[int]) -> tuple[str, list[int]]:
        """Leaves out what nobody sees and the model cannot read: soft hyphens, marks of direction, control characters.

        A model that never learned what to do with an unknown character may lose the whole sentence.
        """
        unknown = self._source_tokenizer.unknown_characters(text, ids)
        visible = text.translate({ord(each): None for each in unknown if unicodedata.category(each) in ("Cc", "Cf")})
        if visible.strip() and len(visible.split()) != len(text.split()):
            return text, ids  # alignments count the words that the caller sees
        visible = normalise(visible)
        return visible, self._source_tokenizer.encode_lines([visible])[0]

    def _demand(self, line: SourceLine, parts: list[LineSegment], number: int) -> list[SourceSegment]:
        """Adds to the segments of a line what their translations must be like.

        The prefix belongs to the first segment. A required word belongs to the segment whose source contains it, as
        names do, otherwise to the first.
        """
        required: list[list[tuple[int, ...]]] = [[] for _ in parts]
        for word in line.required:
            place = next((place for place, part in enumerate(parts) if word in part.text), 0)
            required[place].append(self._target_words.required(word))
        prefix = self._target_words.prefix(line.prefix)
        if len(prefix) >= self._max_source_tokens:
            most = self._max_source_tokens - 1
            raise UsageError(f"its prefix has {len(prefix):,} subwords; at most {most:,} are possible.")
        return [
            SourceSegment(part.ids, () if place else prefix, tuple(required[place]), number)
            for place, part in enumerate(parts)
        ]

    def _join(self, line: _Line) -> list[Translation]:
        """Joins the hypotheses of a line's segments: the best of all, then the second best, and so on."""
        found = [line.found[number] for number in range(len(line.segments))]
        # A segment that has fewer hypotheses than others contributes its last one again.
        rows = [[each[min(rank, len(each) - 1)] for each in found] for rank in range(max(map(len, found)))]
        return [self._join_segments(line.parts, row) for row in rows]

    def _join_segments(self, parts: list[LineSegment], hypotheses: list[Hypothesis]) -> Translation:
        texts = [text.strip() for text in self._target_tokenizer.decode_lines([each.tokens for each in hypotheses])]
        score = sum(hypothesis.score for hypothesis in hypotheses) / len(hypotheses)
        alignment = self._align(parts, hypotheses, texts) if hypotheses[0].aligned is not None else None
        return Translation(join_sentences(texts), score, alignment)

    def _align(self, parts: list[LineSegment], hypotheses: list[Hypothesis], texts: list[str]) -> Alignment:
        """Returns which words of a line and its translation belong together."""
        pairs: set[tuple[int, int]] = set()
        joined, num_words = "", 0
        for part, hypothesis, text in zip(parts, hypotheses, texts, strict=True):
            is_joined_to_word = bool(joined and text) and not needs_blank(joined, text)
            target_words = words_of_subwords(self._target_tokenizer, hypothesis.tokens, num_words - is_joined_to_word)
            pairs |= pair_words(part.words, target_words, hypothesis.aligned or [])
            joined = join_sentences([joined, text])
            num_words = len(joined.split())
        return tuple(sorted(pairs))


def _shorten(best: list[Hypothesis], segment: SourceSegment, settings: SearchSettings) -> list[Hypothesis]:
    """Cuts outputs that did not end before the limit a person set: EOS, which counts, has no place in them."""
    if settings.max_subwords is None:
        return best
    most = max(settings.max_subwords - 1, len(segment.prefix))
    cut = [
        replace(each, tokens=each.tokens[:most], aligned=None if each.aligned is None else each.aligned[:most])
        for each in best
    ]
    if settings.sampling is not None:  # draws may be equal
        return cut
    return [each for place, each in enumerate(cut) if all(each.tokens != better.tokens for better in cut[:place])]


def _add(part: _Part, best: list[Hypothesis]) -> _Line | None:
    """Adds what was found for a segment to its line; returns the line once it is done."""
    line, number = part
    line.found[number] = best
    return line if line.is_done else None


def _form_batches(lines: Sequence[_Line], batch_tokens: int, rank: int, size: int) -> list[list[_Part]]:
    """Groups lines of similar length, longest first: too little memory shows at once, and ranks end together.

    All segments of a line belong to the same rank.
    """
    groups: list[list[_Line]] = []
    num_segments, longest = 0, 0
    for line in sorted(lines, key=lambda line: (-line.num_tokens, line.index)):
        num_segments += len(line.segments)
        if not groups or num_segments * longest > batch_tokens:
            groups.append([])
            num_segments, longest = len(line.segments), line.num_tokens
        groups[-1].append(line)
    return [batch for group in groups[rank::size] for batch in _cut_group(group, batch_tokens)]


def _cut_group(group: list[_Line], batch_tokens: int) -> list[list[_Part]]:
    """Returns the segments of a group of lines; those of one very long line may need several batches."""
    parts = [(line, number) for line in group for number in range(len(line.segments))]
    num_at_once = max(1, batch_tokens // group[0].num_tokens)
    return [parts[begin : begin + num_at_once] for begin in range(0, len(parts), num_at_once)]


def _report(progress: Callable[[int], None] | None, num_lines: int) -> None:
    if progress is not None and num_lines:
        progress(num_lines)
