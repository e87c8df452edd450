"""Draws outputs at random from the model's distribution.

The drawn subwords depend on the seed, the number of the line and the number of the draw alone: each output has its own
random numbers, and each number chooses a subword by the cumulated probabilities in the order of the vocabulary.
Shape suffixes: B sources, W draws per source, R = B·W decoder rows, V vocabulary, T subwords so far (BOS first),
C subwords to draw from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from dragoman.model.transformer import DecodingState, Transformer
from dragoman.translation.search import Hypothesis, Sampling, SearchSettings, SourceSegment
from dragoman.translation.torch_search.beam_search import best_columns
from dragoman.translation.torch_search.constraints import Constraints
from dragoman.translation.torch_search.ensemble import Ensemble, EnsembleState

_GRID = 2.0**32
"""Random numbers are multiples of 1 / _GRID: a product with a sum of probabilities is never rounded up to the sum."""


@dataclass
class _Draws:
    """The outputs drawn so far of the sources that are not done."""

    source_B: Tensor
    token_BWT: Tensor
    log_probability_BW: Tensor
    length_BW: Tensor
    """Number of subwords, EOS included; 0 while an output goes on."""

    def add(self, token_BW: Tensor, log_p_BW: Tensor, max_length_B: Tensor) -> None:
        """Adds a subword to each output that goes on, and PAD to the others."""
        is_over_BW = self.length_BW > 0
        length = self.token_BWT.shape[2]
        token_BW = token_BW.masked_fill(is_over_BW, PAD_ID)
        self.token_BWT = torch.cat([self.token_BWT, token_BW[:, :, None]], dim=2)
        self.log_probability_BW = self.log_probability_BW + log_p_BW.masked_fill(is_over_BW, 0.0)
        ends_BW = ~is_over_BW & ((token_BW == EOS_ID) | (max_length_B[:, None] <= length))
        self.length_BW = self.length_BW.masked_fill(ends_BW, length)

    def keep(self, kept: Tensor) -> None:
        """Drops all other sources."""
        self.source_B, self.token_BWT = self.source_B[kept], self.token_BWT[kept]
        self.log_probability_BW, self.length_BW = self.log_probability_BW[kept], self.length_BW[kept]


@torch.inference_mode()
def sample(
    model: Transformer | Ensemble,
    source_BS: Tensor,
    source_lengths_B: Tensor,
    segments: Sequence[SourceSegment],
    settings: SearchSettings,
    num_subwords: int,
) -> list[list[Hypothesis]]:
    """Draws `num_best` outputs of each source; log-probabilities are the model's own, whatever was drawn from."""
    sampling = settings.sampling or Sampling()
    B, W, device = len(segments), settings.num_best, source_BS.device
    constraints = Constraints(segments, settings, device)
    max_length_B = torch.tensor(constraints.max_lengths, device=device)
    random_BWT = _random_numbers(segments, max(constraints.max_lengths), W, sampling.seed).to(device)
    draws = _start(B, W, device)
    state = model.start_decoding(source_BS, source_lengths_B)
    found: list[list[Hypothesis]] = [[] for _ in segments]
    while draws.source_B.numel():
        log_p_RV = _next_log_probabilities(model, state, draws)
        constraints.restrict(draws.source_B, draws.token_BWT, log_p_RV)
        log_p_RV[:, [PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
        log_p_RV[:, num_subwords:] = -torch.inf
        position = draws.token_BWT.shape[2] - 1
        token_R = draw(log_p_RV, random_BWT[draws.source_B, :, position].flatten(), sampling)
        log_p_R = log_p_RV.gather(1, token_R[:, None])[:, 0]
        draws.add(token_R.view(-1, W), log_p_R.view(-1, W), max_length_B[draws.source_B])
        _collect(draws, settings, found)
        kept = (draws.length_BW == 0).any(1).nonzero()[:, 0]
        if kept.numel() < draws.source_B.numel():
            state.select_targets((W * kept[:, None] + torch.arange(W, device=device)).flatten())
            state.select_sources(kept)
            draws.keep(kept)
    return found


def _start(num_sources: int, num_draws: int, device: torch.device) -> _Draws:
    return _Draws(
        source_B=torch.arange(num_sources, device=device),
        token_BWT=torch.full((num_sources, num_draws, 1), BOS_ID, device=device),
        log_probability_BW=torch.zeros(num_sources, num_draws, dtype=torch.float64, device=device),
        length_BW=torch.zeros(num_sources, num_draws, dtype=torch.long, device=device),
    )


def _random_numbers(segments: Sequence[SourceSegment], length: int, num_draws: int, seed: int) -> Tensor:
    """Returns a number from 0 up to below 1 for each source, draw and position; more positions change none of them."""
    numbers = [
        [np.random.default_rng([seed, segment.number, draw]).random(length) for draw in range(num_draws)]
        for segment in segments
    ]
    return torch.from_numpy(np.floor(np.array(numbers) * _GRID) / _GRID)


def _next_log_probabilities(
    model: Transformer | Ensemble, state: DecodingState | EnsembleState, draws: _Draws
) -> Tensor:
    """Computes the first step once for all draws of a source, later ones for each."""
    num_draws, num_tokens = draws.token_BWT.shape[1:]
    if num_tokens > 1:
        logits_RV = model.decode_next(draws.token_BWT[:, :, -1].flatten(), state)  # type: ignore[arg-type]
        return logits_RV.log_softmax(-1, dtype=torch.float64)
    logits_BV = model.decode_next(draws.token_BWT[:, 0, 0], state)  # type: ignore[arg-type]
    state.select_targets(draws.source_B.repeat_interleave(num_draws))
    return logits_BV.log_softmax(-1, dtype=torch.float64).repeat_interleave(num_draws, 0)


def draw(log_p_RV: Tensor, random_R: Tensor, sampling: Sampling) -> Tensor:
    """Draws one subword per row; the random numbers, from 0 up to below 1, decide which."""
    R, V = log_p_RV.shape
    column_RC = torch.arange(V, device=log_p_RV.device).expand(R, -1)
    if 0 < sampling.top_k < V:
        column_RC = best_columns(log_p_RV, sampling.top_k)[1].sort(1).values
    p_RC = (log_p_RV.gather(1, column_RC) / sampling.temperature).softmax(1)
    if sampling.top_p < 1:
        p_RC = _keep_most_probable(p_RC, sampling.top_p)
    sum_RC = p_RC.cumsum(1)
    # The first column whose sum exceeds the number: never one without probability.
    index_R1 = torch.searchsorted(sum_RC, random_R[:, None] * sum_RC[:, -1:], right=True)
    return column_RC.gather(1, index_R1.clamp(max=sum_RC.shape[1] - 1))[:, 0]


def _keep_most_probable(p_RC: Tensor, top_p: float) -> Tensor:
    """Sets all but the most probable to zero: as few as reach `top_p` together."""
    sorted_RC, order_RC = p_RC.sort(dim=1, descending=True, stable=True)
    sum_before_RC = sorted_RC.cumsum(1) - sorted_RC
    return p_RC.scatter(1, order_RC, sorted_RC.masked_fill(sum_before_RC >= top_p, 0.0))


def _collect(draws: _Draws, settings: SearchSettings, found: list[list[Hypothesis]]) -> None:
    """Takes the outputs of sources all of whose draws have ended."""
    for b in (draws.length_BW > 0).all(1).nonzero()[:, 0].tolist():
        rows = zip(
            draws.token_BWT[b].tolist(), draws.log_probability_BW[b].tolist(), draws.length_BW[b].tolist(), strict=True
        )
        found[int(draws.source_B[b])] = [
            Hypothesis(
                [token for token in tokens[1 : length + 1] if token != EOS_ID],
                log_probability / settings.penalty(length),
                log_probability,
            )
            for tokens, log_probability, length in rows
        ]
