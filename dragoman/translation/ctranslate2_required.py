"""Required words with CTranslate2, which has no search for them.

A missing word is written into the best translation before each of its words in turn, and at its end; the search goes on
after it. The best of these translations is kept, and the next missing word is written into it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dragoman.translation.search import Found, Hypothesis, SearchSettings, SourceSegment
from dragoman.translation.torch_search.required_subwords import RequiredSubwords, advance_all, fitting_rules

Search = Callable[[list[SourceSegment]], Found]
Ids = tuple[int, ...]
_MAX_PLACES = 32
"""Places where a missing word is tried; of a longer translation, as many spread evenly."""


@dataclass(frozen=True)
class RequiredWriter:
    """Writes the required words into translations of one segment."""

    segment: SourceSegment
    settings: SearchSettings
    max_length: int
    """The most subwords of an output, EOS included."""
    begins_word: Callable[[int], bool]
    """Whether a subword begins a word."""
    search: Search
    """Finds the continuations of beginnings, best first."""

    def write(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Returns translations with all required words, best first; what was found if no place was left for them."""
        rules = fitting_rules(self.segment, self.max_length - 1)  # EOS takes one place
        while found and not any(self._is_complete(rules, each) for each in found):
            better = self._complete_one(rules, found[0])
            if not better:
                return found
            found = better
        return [each for each in found if self._is_complete(rules, each)][: self.settings.num_best]

    def _is_complete(self, rules: RequiredSubwords, hypothesis: Hypothesis) -> bool:
        return not self._missing(rules, hypothesis.tokens)

    def _missing(self, rules: RequiredSubwords, tokens: Sequence[int]) -> frozenset[int]:
        return advance_all(rules, rules.start(), tokens).missing

    def _complete_one(self, rules: RequiredSubwords, hypothesis: Hypothesis) -> list[Hypothesis]:
        """Returns translations that lack less than this one, those that lack least and have the best score first."""
        tokens = tuple(hypothesis.tokens)
        missing = self._missing(rules, tokens)
        beginnings = {
            (*tokens[:place], *rules.patterns[index])
            for index in missing
            for place in self._places(tokens, rules.patterns[index])
        }
        if better := self._continue(rules, beginnings, len(missing)):
            return better
        whole = *self.segment.prefix, *(each for pattern in rules.patterns for each in pattern)
        return self._continue(rules, {whole}, len(missing))

    def _continue(self, rules: RequiredSubwords, beginnings: set[Ids], num_missing: int) -> list[Hypothesis]:
        """Returns the translations with one of the beginnings that lack fewer words than `num_missing`."""
        possible = sorted(each for each in beginnings if len(each) < self.max_length)
        if not possible:
            return []
        found = self.search([replace(self.segment, prefix=each) for each in possible])
        distinct = {tuple(each.tokens): each for hypotheses in found for each in hypotheses}.values()
        better = [each for each in distinct if len(self._missing(rules, each.tokens)) < num_missing]
        return sorted(better, key=lambda each: self._rank(rules, each))

    def _rank(self, rules: RequiredSubwords, hypothesis: Hypothesis) -> tuple[int, bool, float]:
        is_cut = len(hypothesis.tokens) >= self.max_length
        return len(self._missing(rules, hypothesis.tokens)), is_cut, -hypothesis.score

    def _places(self, tokens: Sequence[int], pattern: Sequence[int]) -> list[int]:
        """Returns where a sequence may be written: between words, if it begins one itself."""
        first = len(self.segment.prefix)
        inside = [
            place
            for place in range(first, len(tokens))
            if self.begins_word(tokens[place]) or not self.begins_word(pattern[0])
        ]
        places = [*inside, len(tokens)]
        return [places[number * len(places) // _MAX_PLACES] for number in range(_MAX_PLACES)] + places[-1:]
