"""Tiny models with random weights, and their probabilities computed in the plainest way."""

import itertools
import math

import torch
from torch import Tensor
from torch.nn.functional import linear

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer

VOCAB_SIZE = 8
WORDS = range(NUM_SPECIAL_IDS, VOCAB_SIZE)
SOURCES = [[4, 5, 6, EOS_ID], [7, EOS_ID], [5, 5, 4, 7, 6, EOS_ID], [6, 4, EOS_ID]]


def build_model(seed: int = 0, vocab_size: int = VOCAB_SIZE, end_bias: float = 0.0) -> Transformer:
    """Random weights in double precision; logits spread wide enough that hypotheses differ clearly."""
    torch.manual_seed(seed)
    shape = ModelShape(16, 32, 2, 1, 2, 0.1, 0.1, 0.1, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    model = Transformer(shape).double().eval()
    with torch.no_grad():
        model.target_embedding *= 1.5
        # Only the last norm's bias can favour one subword everywhere: it shifts all states towards that subword's row.
        model.decoder.norm.bias += end_bias * model.target_embedding[EOS_ID]
    return model


def to_batch(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(source) for source in sources])
    width = int(lengths.max())
    return torch.tensor([source + [PAD_ID] * (width - len(source)) for source in sources]), lengths


@torch.no_grad()
def next_log_probabilities(model: Transformer, source: list[int], tokens: list[int]) -> list[float]:
    """Of every subword after the given ones, from `forward` alone."""
    states = model(*to_batch([source]), torch.tensor([[BOS_ID, *tokens]]))
    return linear(states[0, -1], model.target_embedding).log_softmax(-1).tolist()


@torch.no_grad()
def all_log_probabilities(models: list[Transformer], source: list[int], length: int) -> dict[tuple[int, ...], list]:
    """Of every subword after every sequence of words shorter than `length`; of several models the mean probability."""
    longest = list(itertools.product(WORDS, repeat=length - 1))
    batch = to_batch([source] * len(longest))
    targets = torch.tensor([[BOS_ID, *tokens] for tokens in longest])
    logits = torch.stack([linear(model(*batch, targets), model.target_embedding) for model in models])
    log_p = (logits.log_softmax(-1).logsumexp(0) - math.log(len(models))).tolist()
    return {
        tokens[:num_words]: row[num_words]
        for tokens, row in zip(longest, log_p, strict=True)
        for num_words in range(length)
    }


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha
