"""How much of forward and backward a batch costs before its first token: with tiny batches, nearly all.

Found by timing a micro-batch and a quarter of it, once, early in a run: if time went by tokens alone, a quarter would
take a quarter.
"""

import time

import numpy as np
import torch

from dragoman.corpus.batching import MicroBatch
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.training.step import Learner

NUM_ROUNDS = 2
QUARTER = 4
LARGEST_RATIO = 0.75


def measure_fixed_share(learner: Learner, batch: MicroBatch) -> float:
    """The share of forward and backward that does not depend on the number of tokens; weights stay as they are."""
    quarter = _quarter(batch)
    ratio = (quarter.source.size + quarter.target_input.size) / (batch.source.size + batch.target_input.size)
    if ratio > LARGEST_RATIO:
        return 1.0  # a few tokens, which cannot be cut: no batch is smaller
    rounds = [(_seconds(learner, batch), _seconds(learner, quarter)) for _ in range(NUM_ROUNDS)]
    whole_seconds, quarter_seconds = (min(seconds) for seconds in zip(*rounds, strict=True))
    fixed_seconds = (quarter_seconds - ratio * whole_seconds) / (1 - ratio)
    return float(min(1.0, max(0.0, fixed_seconds / whole_seconds)))


def _quarter(batch: MicroBatch) -> MicroBatch:
    """A quarter of its pairs, or of its positions where it has only a few long pairs."""
    num_pairs, num_source = batch.source.shape
    num_target = batch.target_input.shape[1]
    if num_pairs >= QUARTER:
        num_pairs //= QUARTER
    else:
        num_source, num_target = max(1, num_source // QUARTER), max(1, num_target // QUARTER)
    return MicroBatch(
        batch.source[:num_pairs, :num_source],
        np.minimum(batch.source_lengths[:num_pairs], num_source),
        batch.target_input[:num_pairs, :num_target],
        batch.target_output[:num_pairs, :num_target],
    )


def _seconds(learner: Learner, batch: MicroBatch) -> float:
    """Of one forward and backward; its gradient is thrown away when the next step begins."""
    _wait_for_device(learner)
    begin = time.perf_counter()
    sums = teacher_forced_loss(
        learner.model, batch, learner.settings.precision, learner.settings.label_smoothing, learner.loss_scale.value
    )
    sums.smoothed.backward()  # type: ignore[no-untyped-call]
    _wait_for_device(learner)
    return time.perf_counter() - begin


def _wait_for_device(learner: Learner) -> None:
    if learner.gradients.flat.is_cuda:
        torch.cuda.synchronize()
