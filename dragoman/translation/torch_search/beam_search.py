"""Batched beam search with a key/value cache.

Each step extends a source's hypotheses by one subword. The `beam_size` best extensions that do not end stay alive; one
that ends is finished if it is among the `beam_size` best of all. Search stops early where it cannot change the result.
Shape suffixes: B sources still searched, S source positions, W hypotheses alive per source, R = B·W decoder rows,
V vocabulary, T subwords so far (BOS first), C candidates.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID, UNK_ID
from dragoman.model.transformer import DecodingState, Transformer
from dragoman.translation.search import Hypothesis, SearchSettings
from dragoman.translation.torch_search.constraints import Constraints
from dragoman.translation.torch_search.ensemble import Ensemble, EnsembleState
from dragoman.translation.torch_search.required_beam import Candidate, RequiredBeam

_NUM_COLUMN_GROUPS = 16


@dataclass
class _Alive:
    """The hypotheses that may still grow, and their sources."""

    source_B: Tensor
    """The index of each source in the caller's batch."""
    max_length_B: Tensor
    max_penalty_B: Tensor
    has_finished_B: Tensor
    """True once a hypothesis has ended with EOS."""
    worst_kept_B: Tensor
    """Score of the last of the `num_best` finished hypotheses; -inf while there are fewer."""
    token_BWT: Tensor
    log_probability_BW: Tensor

    @property
    def length(self) -> int:
        """Number of subwords of each hypothesis, BOS not counted."""
        return self.token_BWT.shape[2] - 1

    def keep_sources(self, kept: Tensor) -> None:
        """Drops all other sources."""
        if kept.numel() == self.source_B.numel():
            return
        self.source_B = self.source_B[kept]
        self.max_length_B = self.max_length_B[kept]
        self.max_penalty_B = self.max_penalty_B[kept]
        self.has_finished_B = self.has_finished_B[kept]
        self.worst_kept_B = self.worst_kept_B[kept]
        self.token_BWT = self.token_BWT[kept]
        self.log_probability_BW = self.log_probability_BW[kept]


class _Extensions(NamedTuple):
    """The hypotheses alive, extended by one subword; W counts those before, C those after."""

    ended_log_probability_BW: Tensor
    is_finished_BW: Tensor
    parent_BC: Tensor
    token_BC: Tensor
    log_probability_BC: Tensor


@torch.inference_mode()
def beam_search(
    model: Transformer | Ensemble,
    source_BS: Tensor,
    source_lengths_B: Tensor,
    settings: SearchSettings,
    num_subwords: int,
    constraints: Constraints | None = None,
    required: RequiredBeam | None = None,
) -> list[list[Hypothesis]]:
    """Finds the best hypotheses of each source, best first; sources end with EOS, and their lengths are on the host.

    The model should be in eval mode. Ids from `num_subwords` on only pad the vocabulary and are never generated. None
    is found for a source if the constraints leave no output.
    """
    finished: list[list[Hypothesis]] = [[] for _ in source_BS]
    state = model.start_decoding(source_BS, source_lengths_B)
    max_lengths = constraints.max_lengths if constraints else list(map(settings.max_length, source_lengths_B.tolist()))
    alive = _start(max_lengths, settings, model.target_embedding)
    while alive.source_B.numel():
        log_p_RV = _log_softmax(model.decode_next(alive.token_BWT[:, :, -1].flatten(), state))  # type: ignore[arg-type]
        if constraints is not None:
            constraints.restrict(alive.source_B, alive.token_BWT, log_p_RV)
        if required is not None:
            required.forbid_early_ends(alive.source_B.tolist(), log_p_RV)
        extensions = _extend(alive, log_p_RV, settings.beam_size, num_subwords)
        if required is not None:
            extensions = _keep_required(alive, log_p_RV, extensions, required)
        ended_BW = extensions.ended_log_probability_BW
        _finish(alive, extensions.is_finished_BW, ended_BW, alive.length + 1, settings, finished)
        num_before = alive.token_BWT.shape[1]
        _advance(alive, extensions)
        is_over_B = _is_over(alive, settings)
        _force_ends(alive, is_over_B, settings, finished)
        kept = (~is_over_B).nonzero()[:, 0]
        _select_state(state, kept, extensions.parent_BC, num_before)
        alive.keep_sources(kept)
    return finished


def _start(max_lengths: list[int], settings: SearchSettings, like: Tensor) -> _Alive:
    """Returns one empty hypothesis per source, on the device of `like`."""
    B, device, dtype = len(max_lengths), like.device, torch.promote_types(like.dtype, torch.float32)
    return _Alive(
        source_B=torch.arange(B, device=device),
        max_length_B=torch.tensor(max_lengths, device=device),
        max_penalty_B=torch.tensor([settings.penalty(length) for length in max_lengths], dtype=dtype, device=device),
        has_finished_B=torch.zeros(B, dtype=torch.bool, device=device),
        worst_kept_B=torch.full((B,), -torch.inf, dtype=dtype, device=device),
        token_BWT=torch.full((B, 1, 1), BOS_ID, device=device),
        log_probability_BW=torch.zeros(B, 1, dtype=dtype, device=device),
    )


def _log_softmax(logits_RV: Tensor) -> Tensor:
    """Computes log-probabilities of the next subword, in float32 or better.

    On a CPU in place, which saves an allocation (256 × 32,768: 17 ms instead of 27 ms); and not as logits minus
    logsumexp, which took three times as long (256 × 8,000: 10.8 ms instead of 3.1 ms).
    """
    if logits_RV.device.type == "cpu" and logits_RV.dtype in (torch.float32, torch.float64):
        return torch.log_softmax(logits_RV, dim=-1, out=logits_RV)
    return torch.log_softmax(logits_RV, dim=-1, dtype=torch.promote_types(logits_RV.dtype, torch.float32))


def _extend(alive: _Alive, log_p_RV: Tensor, beam_size: int, num_subwords: int) -> _Extensions:
    """Finds the extensions that stay alive, and those that end; overwrites `log_p_RV`."""
    B, W = alive.log_probability_BW.shape
    ended_BW = alive.log_probability_BW + log_p_RV[:, EOS_ID].view(B, W)
    log_p_RV[:, [PAD_ID, EOS_ID, BOS_ID, UNK_ID]] = -torch.inf
    log_p_RV[:, num_subwords:] = -torch.inf
    # A source's best `beam_size` extensions are among the best `beam_size` of each of its hypotheses.
    value_RC, token_RC = best_columns(log_p_RV, min(beam_size, num_subwords - NUM_SPECIAL_IDS))
    candidate_BC = (alive.log_probability_BW[:, :, None] + value_RC.view(B, W, -1)).flatten(1)
    best_BC, index_BC = candidate_BC.topk(min(beam_size, candidate_BC.shape[1]))
    rivals = torch.cat([best_BC, ended_BW], dim=1)
    threshold_B1 = rivals.topk(min(beam_size, rivals.shape[1])).values[:, -1:]
    return _Extensions(
        ended_log_probability_BW=ended_BW,
        is_finished_BW=ended_BW >= threshold_B1,
        parent_BC=index_BC // value_RC.shape[1],
        token_BC=token_RC.view(B, -1).gather(1, index_BC),
        log_probability_BC=best_BC,
    )


def _keep_required(alive: _Alive, log_p_RV: Tensor, free: _Extensions, required: RequiredBeam) -> _Extensions:
    """Chooses extensions that lead to what is required, besides those that are best without it."""
    B, W = alive.log_probability_BW.shape
    sources = alive.source_B.tolist()
    more = _candidates_to_try(alive, log_p_RV, required.tokens_to_try(sources))
    choices = []
    for b, source in enumerate(sources):
        columns = free.log_probability_BC[b].tolist(), free.parent_BC[b].tolist(), free.token_BC[b].tolist()
        candidates = [Candidate(*each) for each in zip(*columns, strict=True)] + more[b]
        possible = [each for each in candidates if each.log_probability > -math.inf]
        ended = free.ended_log_probability_BW[b].tolist()
        choices.append(required.choose(source, possible, ended, alive.length + 1))
    # Sources have different numbers of possible extensions; impossible ones fill the gaps.
    num_kept = max(1, *(len(choice.alive) for choice in choices))
    kept = [[*each.alive, *[Candidate(-math.inf, 0, PAD_ID)] * (num_kept - len(each.alive))] for each in choices]
    for source, row in zip(sources, kept, strict=True):
        required.follow(source, [(each.parent, each.token) for each in row])
    like = free.log_probability_BC
    return _Extensions(
        ended_log_probability_BW=free.ended_log_probability_BW,
        is_finished_BW=torch.tensor([choice.ended for choice in choices], device=like.device).view(B, W),
        parent_BC=torch.tensor([[each.parent for each in row] for row in kept], device=like.device),
        token_BC=torch.tensor([[each.token for each in row] for row in kept], device=like.device),
        log_probability_BC=like.new_tensor([[each.log_probability for each in row] for row in kept]),
    )


def _candidates_to_try(alive: _Alive, log_p_RV: Tensor, tokens: list[list[int]]) -> list[list[Candidate]]:
    """Returns for each source its hypotheses extended by each of the given subwords and by the best one."""
    B, W = alive.log_probability_BW.shape
    tokens = [[*each, best] for each, best in zip(tokens, log_p_RV.argmax(1).tolist(), strict=True)]
    rows = [row for row, each in enumerate(tokens) for _ in each]
    flat = [token for each in tokens for token in each]
    total_R = alive.log_probability_BW.flatten()
    log_probabilities = (total_R[rows] + log_p_RV[rows, flat]).tolist()
    found: list[list[Candidate]] = [[] for _ in range(B)]
    for row, token, log_probability in zip(rows, flat, log_probabilities, strict=True):
        found[row // W].append(Candidate(log_probability, row % W, token))
    return found


def best_columns(x_RV: Tensor, num_best: int) -> tuple[Tensor, Tensor]:
    """Returns the largest values of each row and their columns, like torch.topk but faster on a CPU.

    The best columns are in the groups with the largest maxima, and maxima of groups are quick to find: a third of
    topk's time at 8,000 columns, a sixth at 32,768. Groups are strided so that the maximum runs along memory.
    """
    R, V = x_RV.shape
    num_groups = V // _NUM_COLUMN_GROUPS
    if num_groups < 2 * num_best:
        values, columns = x_RV.topk(num_best)
        return values, columns
    num_grouped = _NUM_COLUMN_GROUPS * num_groups
    group_RC = x_RV[:, :num_grouped].view(R, _NUM_COLUMN_GROUPS, num_groups).amax(1).topk(num_best).indices
    members = torch.arange(0, num_grouped, num_groups, device=x_RV.device)
    rest = torch.arange(num_grouped, V, device=x_RV.device).expand(R, -1)
    column_RC = torch.cat([(group_RC[:, :, None] + members).flatten(1), rest], dim=1)
    values, best_RC = x_RV.gather(1, column_RC).topk(num_best)
    return values, column_RC.gather(1, best_RC)


def _finish(
    alive: _Alive,
    is_ended_BW: Tensor,
    log_probability_BW: Tensor,
    length: int,
    settings: SearchSettings,
    finished: list[list[Hypothesis]],
) -> None:
    """Adds hypotheses that ended at this length to the finished ones, of which `num_best` are kept per source."""
    score_BW = log_probability_BW / settings.penalty(length)
    is_kept_BW = is_ended_BW & ~(score_BW <= alive.worst_kept_B[:, None])
    if not is_kept_BW.any():
        return
    rows = is_kept_BW.nonzero()[:, 0]
    # Only hypotheses better than those kept get here, so the loop is over a few, not over the whole beam.
    for row, source, tokens, score, log_probability in zip(
        rows.tolist(),
        alive.source_B[rows].tolist(),
        alive.token_BWT[is_kept_BW][:, 1:].tolist(),
        score_BW[is_kept_BW].tolist(),
        log_probability_BW[is_kept_BW].tolist(),
        strict=True,
    ):
        kept = finished[source]
        kept.append(Hypothesis(tokens, score, log_probability))
        kept.sort(key=lambda hypothesis: -hypothesis.score)
        del kept[settings.num_best :]
        alive.has_finished_B[row] = True
        if len(kept) == settings.num_best:
            alive.worst_kept_B[row] = kept[-1].score


def _advance(alive: _Alive, extensions: _Extensions) -> None:
    """Replaces the hypotheses alive by their best extensions."""
    parent_BCT = extensions.parent_BC[:, :, None].expand(-1, -1, alive.token_BWT.shape[2])
    alive.token_BWT = torch.cat([alive.token_BWT.gather(1, parent_BCT), extensions.token_BC[:, :, None]], dim=2)
    alive.log_probability_BW = extensions.log_probability_BC


def _is_over(alive: _Alive, settings: SearchSettings) -> Tensor:
    """Returns True for sources at the length limit, and for those whose result no hypothesis alive can improve.

    Log-probabilities only fall, and no penalty is larger than the one at the length limit: the current log-probability
    of a hypothesis, divided by that penalty, is the best score it can reach.
    """
    is_at_limit_B = alive.max_length_B <= alive.length
    if settings.beam_size == 1:
        return is_at_limit_B | alive.has_finished_B
    reachable_B = alive.log_probability_BW[:, 0] / alive.max_penalty_B
    return is_at_limit_B | (alive.worst_kept_B >= reachable_B)


def _force_ends(alive: _Alive, is_over_B: Tensor, settings: SearchSettings, finished: list[list[Hypothesis]]) -> None:
    """Finishes hypotheses without EOS where none ended before the length limit: better than no output."""
    is_forced_BW = (is_over_B & ~alive.has_finished_B)[:, None].expand_as(alive.log_probability_BW)
    _finish(alive, is_forced_BW, alive.log_probability_BW, alive.length, settings, finished)


def _select_state(state: DecodingState | EnsembleState, kept: Tensor, parent_BC: Tensor, num_before: int) -> None:
    """Reorders the decoder's rows for the new hypotheses of the kept sources; each had `num_before` hypotheses."""
    B = parent_BC.shape[0]
    first_row_B1 = num_before * kept[:, None]
    rows = (first_row_B1 + parent_BC[kept]).flatten()
    if rows.numel() != num_before * B or not torch.equal(rows, torch.arange(rows.numel(), device=rows.device)):
        state.select_targets(rows)
    if kept.numel() < B:
        state.select_sources(kept)
