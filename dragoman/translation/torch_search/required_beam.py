"""Chooses hypotheses that lead to outputs with all required subwords (after Post and Vilar 2018).

Hypotheses compete only with others that need as many subwords to complete what is required: the beam is divided among
these banks. So one that begins a required word survives next to the more probable ones that do not.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.corpus.tokenizer import EOS_ID
from dragoman.run.config import MAX_BEAM_SIZE
from dragoman.translation.possible_outputs import max_length
from dragoman.translation.search import SearchSettings, SourceSegment
from dragoman.translation.torch_search.required_subwords import fitting_rules


class Candidate(NamedTuple):
    """A hypothesis extended by one subword."""

    log_probability: float
    parent: int
    token: int


class BankChoice(NamedTuple):
    """The extensions of one source that stay alive, best first, and the hypotheses of its beam that may end."""

    alive: list[Candidate]
    ended: list[bool]


class RequiredBeam:
    """Follows the hypotheses of a batch, all of whose sources require something."""

    def __init__(self, segments: Sequence[SourceSegment], settings: SearchSettings) -> None:
        self._beam_size = settings.beam_size
        self._max_lengths = [max_length(segment, settings) for segment in segments]
        self._rules = list(map(fitting_rules, segments, self._max_lengths))
        self._progress = [[rules.start()] for rules in self._rules]

    def forbid_early_ends(self, sources: list[int], log_p_RV: Tensor) -> None:
        """Makes EOS impossible after hypotheses that lack something."""
        lacking = [bool(progress.missing) for source in sources for progress in self._progress[source]]
        log_p_RV[:, EOS_ID].masked_fill_(torch.tensor(lacking, device=log_p_RV.device), -torch.inf)

    def tokens_to_try(self, sources: list[int]) -> list[list[int]]:
        """Returns for each hypothesis the subwords that bring it nearer to what is required."""
        return [
            sorted(self._rules[source].next_tokens(progress))
            for source in sources
            for progress in self._progress[source]
        ]

    def choose(self, source: int, candidates: Iterable[Candidate], ended: list[float], length: int) -> BankChoice:
        """Chooses among the possible extensions to `length` subwords; `ended` are log-probabilities of ending now."""
        banks = self._sort_into_banks(source, set(candidates), length)
        rivals = [candidate.log_probability for candidate in banks.get(0, [])]
        may_end = [
            sum(rival > each for rival in rivals) + sum(other > each for other in ended) < self._beam_size
            for each in ended
        ]
        # Round by round one of each bank, those that lack least first.
        rounds = zip_longest(*(banks[need] for need in sorted(banks)))
        chosen = [candidate for each in rounds for candidate in each if candidate is not None][: self._beam_size]
        return BankChoice(sorted(chosen, reverse=True), may_end)

    def follow(self, source: int, chosen: Sequence[tuple[int, int]]) -> None:
        """Takes over the hypotheses that stay alive, each as its parent and its subword."""
        rules, parents = self._rules[source], self._progress[source]
        self._progress[source] = [rules.advance(parents[parent], token) for parent, token in chosen]

    def _sort_into_banks(self, source: int, candidates: set[Candidate], length: int) -> dict[int, list[Candidate]]:
        """Groups candidates by the number of subwords they still need, best first; leaves out those without room."""
        rules, parents = self._rules[source], self._progress[source]
        needs = {each: rules.need(rules.advance(parents[each.parent], each.token)) for each in candidates}
        room = self._max_lengths[source] - length
        # A forced beginning or a forbidden sequence can leave none with enough room: then all go on.
        fitting = [each for each in candidates if needs[each] <= room] or list(candidates)
        banks: dict[int, list[Candidate]] = {}
        for each in sorted(fitting, reverse=True):
            banks.setdefault(needs[each], []).append(each)
        return banks


def widen(segment: SourceSegment, settings: SearchSettings) -> int:
    """Returns a beam size that leaves room for each stage of completing what the segment requires."""
    return min(settings.beam_size + sum(map(len, segment.required)), MAX_BEAM_SIZE)
