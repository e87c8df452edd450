"""Plain beam search over ReferenceTransformer: no cache, each step decodes all hypotheses from their first subword.

Shape suffixes: B sources, S source positions, W hypotheses per source, T subwords so far, V vocabulary.
"""

import torch
from reference_transformer import ReferenceTransformer
from torch import Tensor
from torch.nn.functional import log_softmax

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from dragoman.translation.beam_search import SearchSettings


@torch.inference_mode()
def plain_beam_search(
    model: ReferenceTransformer,
    source_BS: Tensor,
    source_lengths_B: Tensor,
    settings: SearchSettings,
    num_subwords: int,
) -> list[list[int]]:
    """Finds the best output of each source, without BOS and EOS.

    Finished hypotheses stay in the beam, ending in PAD; the search stops once no source can find a better one.
    """
    B, W = source_BS.shape[0], settings.beam_size
    source = source_BS.repeat_interleave(W, 0)
    memory = model.encode(source_BS).repeat_interleave(W, 0)
    token_BWT = torch.full((B, W, 1), BOS_ID)
    log_p_BW = torch.full((B, W), -torch.inf)
    log_p_BW[:, 0] = 0.0  # all hypotheses are the same at first: only one is extended
    is_over_BW = torch.zeros(B, W, dtype=torch.bool)
    length_BW = torch.zeros(B, W)
    max_length_B1 = torch.tensor([[settings.max_length(int(length))] for length in source_lengths_B])
    for step in range(1, int(max_length_B1.max()) + 1):
        states = model.decode(token_BWT.flatten(0, 1), memory, source)[:, -1]
        next_BWV = log_softmax(model.scores(states), -1).view(B, W, -1)
        _forbid(next_BWV, is_over_BW, num_subwords)
        log_p_BW, chosen_BW = (log_p_BW[:, :, None] + next_BWV).flatten(1).topk(W)
        parent_BW, piece_BW = chosen_BW // next_BWV.shape[2], chosen_BW % next_BWV.shape[2]
        token_BWT = token_BWT.gather(1, parent_BW[:, :, None].expand(-1, -1, token_BWT.shape[2]))
        token_BWT = torch.cat([token_BWT, piece_BW[:, :, None]], dim=2)
        was_over_BW = is_over_BW.gather(1, parent_BW)
        length_BW = torch.where(was_over_BW, length_BW.gather(1, parent_BW), float(step))
        is_over_BW = was_over_BW | (piece_BW == EOS_ID) | (step >= max_length_B1)
        ended_score_BW = (log_p_BW / _penalty(length_BW, settings)).masked_fill(~is_over_BW, -torch.inf)
        best_hope_BW = (log_p_BW / _penalty(max_length_B1, settings)).masked_fill(is_over_BW, -torch.inf)
        if (ended_score_BW.amax(1) >= best_hope_BW.amax(1)).all():
            break
    best_BT = token_BWT[torch.arange(B), ended_score_BW.argmax(1), 1:]
    return [[piece for piece in row if piece not in (EOS_ID, PAD_ID)] for row in best_BT.tolist()]


def _penalty(length: Tensor, settings: SearchSettings) -> Tensor:
    penalty: Tensor = ((5 + length) / 6) ** settings.length_penalty
    return penalty


def _forbid(next_BWV: Tensor, is_over_BW: Tensor, num_subwords: int) -> None:
    """Lets only PAD follow an end, at no cost, and forbids PAD, BOS, UNK and ids that only pad the vocabulary."""
    next_BWV[:, :, [PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
    next_BWV[:, :, num_subwords:] = -torch.inf
    next_BWV[is_over_BW] = -torch.inf
    next_BWV[:, :, PAD_ID].masked_fill_(is_over_BW, 0.0)
