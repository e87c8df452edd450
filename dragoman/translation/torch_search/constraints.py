"""Restricts which subword may come next: forced beginnings and forbidden sequences.

Shape suffixes: B sources still searched, W hypotheses per source, R = B·W decoder rows, V vocabulary, T subwords so far
(BOS first), P subwords of the longest prefix.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.translation.possible_outputs import max_length, require_possible
from dragoman.translation.search import SearchSettings, SourceSegment

_FREE = -1
"""Stands in a table of prefixes where any subword may follow."""


class Constraints:
    """What the outputs of one batch must begin with and must not contain."""

    def __init__(self, segments: Sequence[SourceSegment], settings: SearchSettings, device: torch.device) -> None:
        """Refuses what no output can satisfy."""
        for segment in segments:
            require_possible(segment, settings)
        longest = max(len(segment.prefix) for segment in segments)
        rows = [[*segment.prefix, *[_FREE] * (longest - len(segment.prefix))] for segment in segments]
        self._prefix_BP = torch.tensor(rows, dtype=torch.long, device=device)
        singles = sorted(sequence[0] for sequence in settings.forbidden if len(sequence) == 1)
        self._forbidden_ids = torch.tensor(singles, dtype=torch.long, device=device)
        self._forbidden = [
            (torch.tensor(sequence[:-1], device=device), sequence[-1])
            for sequence in settings.forbidden
            if len(sequence) > 1
        ]
        self.max_lengths = [max_length(segment, settings) for segment in segments]
        """The largest number of subwords of each output, EOS included."""

    def restrict(self, source_B: Tensor, token_BWT: Tensor, log_p_RV: Tensor) -> None:
        """Makes all subwords impossible that may not follow the hypotheses."""
        position = token_BWT.shape[2] - 1
        if self._forbidden_ids.numel():
            log_p_RV[:, self._forbidden_ids] = -torch.inf
        for start, last in self._forbidden:
            if len(start) <= position:
                matches_R = (token_BWT[:, :, -len(start) :] == start).all(2).flatten()
                log_p_RV[:, last].masked_fill_(matches_R, -torch.inf)
        if position < self._prefix_BP.shape[1]:
            self._force(self._prefix_BP[source_B, position].repeat_interleave(token_BWT.shape[1]), log_p_RV)

    def _force(self, token_R: Tensor, log_p_RV: Tensor) -> None:
        """Leaves one possible subword where a prefix goes on."""
        rows = (token_R != _FREE).nonzero()[:, 0]
        tokens = token_R[rows]
        kept = log_p_RV[rows, tokens]
        log_p_RV[rows] = -torch.inf
        log_p_RV[rows, tokens] = kept


def is_constrained(segments: Sequence[SourceSegment], settings: SearchSettings) -> bool:
    """Whether any output must begin with something or must not contain something."""
    return bool(settings.forbidden) or any(segment.prefix for segment in segments)
