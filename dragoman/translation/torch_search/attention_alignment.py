"""Finds for each subword of an output the source subword it attends to most."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.corpus.tokenizer import BOS_ID, PAD_ID
from dragoman.model.transformer import Transformer
from dragoman.translation.search import Found, Hypothesis
from dragoman.translation.torch_search.ensemble import Ensemble


@torch.inference_mode()
def align(model: Transformer | Ensemble, source_BS: Tensor, source_lengths_B: Tensor, found: Found) -> Found:
    """Returns the hypotheses with their alignment, from one pass over the finished outputs."""
    flat = [hypothesis for hypotheses in found for hypothesis in hypotheses]
    source_H = torch.tensor([index for index, hypotheses in enumerate(found) for _ in hypotheses])
    if not any(hypothesis.tokens for hypothesis in flat):
        return [[replace(each, aligned=[]) for each in hypotheses] for hypotheses in found]
    attention_HTS = model.attend(
        source_BS[source_H.to(source_BS.device)], source_lengths_B[source_H], _decoder_input(flat).to(source_BS.device)
    )
    # EOS comes last in a source and stands for no word.
    is_word_HS = torch.arange(source_BS.shape[1]) < source_lengths_B[source_H][:, None] - 1
    attention_HTS = attention_HTS.masked_fill(~is_word_HS[:, None].to(attention_HTS.device), -1.0)
    rows = iter(attention_HTS.argmax(2).tolist())
    return [[replace(each, aligned=next(rows)[: len(each.tokens)]) for each in hypotheses] for hypotheses in found]


def _decoder_input(hypotheses: Sequence[Hypothesis]) -> Tensor:
    """Returns BOS and all subwords but the last: the position before a subword is the one that chooses it."""
    length = max(len(each.tokens) for each in hypotheses)
    rows = [[BOS_ID, *each.tokens[:-1]] for each in hypotheses]
    return torch.tensor([[*row[:length], *[PAD_ID] * (length - len(row))] for row in rows])
