"""Teacher forcing: the forward pass with the reference fed to the decoder, for losses and predictions."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.corpus.batching import MicroBatch
from dragoman.corpus.tokenizer import PAD_ID
from dragoman.model.device import autocast, copy_to_device
from dragoman.model.loss import LossSums, cross_entropy_sums
from dragoman.model.transformer import Transformer


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switches dropout off inside the block, and restores every module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def teacher_forced_loss(
    model: Transformer, batch: MicroBatch, precision: str, smoothing: float, gradient_scale: float | Tensor = 1.0
) -> LossSums:
    """Sums the loss over the target tokens of a batch; computes no vocabulary scores for padded positions."""
    device = model.target_embedding.device
    with autocast(precision, device):
        states_ND = _target_states(model, batch).flatten(0, 1)
        target_N = batch.target_output.reshape(-1)
        filled_N = np.flatnonzero(target_N != PAD_ID)
        if len(filled_N) < len(target_N):
            states_ND = states_ND.index_select(0, copy_to_device(filled_N, device))
        target = copy_to_device(target_N[filled_N], device)
        return cross_entropy_sums(states_ND, model.output_matrix, target, smoothing, gradient_scale, model.output_bias)


@torch.no_grad()
def teacher_forced_predictions(model: Transformer, batch: MicroBatch, precision: str) -> list[list[int]]:
    """Returns the most probable token at each target position, given the reference before it."""
    with autocast(precision, model.target_embedding.device):
        predicted_BT = model.logits(_target_states(model, batch)).argmax(-1).cpu()
    lengths = (batch.target_output != PAD_ID).sum(1)
    return [row[:length].tolist() for row, length in zip(predicted_BT, lengths, strict=True)]


def _target_states(model: Transformer, batch: MicroBatch) -> Tensor:
    device = model.target_embedding.device
    source_lengths = torch.from_numpy(batch.source_lengths)
    states: Tensor = model(
        copy_to_device(batch.source, device), source_lengths, copy_to_device(batch.target_input, device)
    )
    return states
