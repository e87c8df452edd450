"""Restricts which subword may come next: forced beginnings and forbidden sequences.

Shape suffixes: B sources still searched, W hypotheses per source, R = B·W decoder rows, V vocabulary, T subwords so far
(BOS first), P subwords of the longest prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.corpus.tokenizer import BOS_ID
from dragoman.translation.possible_outputs import max_length, require_possible
from dragoman.translation.search import SearchSettings, SourceSegment

_FREE = -1
"""Stands in a table of prefixes where any subword may follow."""


@dataclass(frozen=True)
class _Rule:
    """Subwords that must not follow a beginning."""

    beginning: Tensor
    lasts: Tensor
    is_anywhere: bool
    """False: only where the beginning begins a word."""


class Constraints:
    """What the outputs of one batch must begin with and must not contain."""

    def __init__(self, segments: Sequence[SourceSegment], settings: SearchSettings, device: torch.device) -> None:
        """Refuses what no output can satisfy."""
        for segment in segments:
            require_possible(segment, settings)
        longest = max(len(segment.prefix) for segment in segments)
        rows = [[*segment.prefix, *[_FREE] * (longest - len(segment.prefix))] for segment in segments]
        self._prefix_BP = torch.tensor(rows, dtype=torch.long, device=device)
        self._forbidden = [
            *_by_beginning(settings.forbidden, device, anywhere=True),
            *_by_beginning(settings.forbidden_starts, device, anywhere=False),
        ]
        self._word_ends = torch.tensor([BOS_ID, *settings.word_ends], device=device)
        self.max_lengths = [max_length(segment, settings) for segment in segments]
        """The largest number of subwords of each output, EOS included."""

    def restrict(self, source_B: Tensor, token_BWT: Tensor, log_p_RV: Tensor) -> None:
        """Makes all subwords impossible that may not follow the hypotheses."""
        position = token_BWT.shape[2] - 1
        for rule in self._forbidden:
            rows = self._rows_that_match(rule, token_BWT)
            if rows.numel():
                log_p_RV[rows[:, None], rule.lasts] = -torch.inf
        if position < self._prefix_BP.shape[1]:
            self._force(self._prefix_BP[source_B, position].repeat_interleave(token_BWT.shape[1]), log_p_RV)

    def _rows_that_match(self, rule: "_Rule", token_BWT: Tensor) -> Tensor:
        """Returns the hypotheses that end with the beginning of a rule."""
        length = len(rule.beginning)
        if length >= token_BWT.shape[2]:
            return torch.empty(0, dtype=torch.long)
        token_RT = token_BWT.flatten(0, 1)
        matches_R = (token_RT[:, token_RT.shape[1] - length :] == rule.beginning).all(1)
        if not rule.is_anywhere:
            matches_R &= torch.isin(token_RT[:, -length - 1], self._word_ends)
        return matches_R.nonzero()[:, 0]

    def _force(self, token_R: Tensor, log_p_RV: Tensor) -> None:
        """Leaves one possible subword where a prefix goes on."""
        rows = (token_R != _FREE).nonzero()[:, 0]
        tokens = token_R[rows]
        kept = log_p_RV[rows, tokens]
        log_p_RV[rows] = -torch.inf
        log_p_RV[rows, tokens] = kept


def _by_beginning(sequences: Sequence[tuple[int, ...]], device: torch.device, anywhere: bool) -> list[_Rule]:
    """Joins forbidden sequences that differ only in their last subword: there are far fewer beginnings."""
    lasts: dict[tuple[int, ...], list[int]] = {}
    for sequence in sequences:
        lasts.setdefault(sequence[:-1], []).append(sequence[-1])
    return [
        _Rule(torch.tensor(beginning, dtype=torch.long, device=device), torch.tensor(each, device=device), anywhere)
        for beginning, each in lasts.items()
    ]


def is_constrained(segments: Sequence[SourceSegment], settings: SearchSettings) -> bool:
    """Whether any output must begin with something or must not contain something."""
    return bool(settings.forbidden or settings.forbidden_starts) or any(segment.prefix for segment in segments)
