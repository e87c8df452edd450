"""training.compile: batches are padded to few sizes, which changes no loss; each size is compiled once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import small_learner

from dragoman.corpus.batching import MicroBatch, pad_pairs
from dragoman.model.shape import ModelShape
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.run.errors import UserError
from dragoman.training import compiled
from dragoman.training.compiled import CompiledModel, FixedSizes, require_compiler

WITHOUT_DROPOUT = ModelShape(16, 32, 2, 1, 1, 0.0, 0.0, 0.0, source_vocab_size=20, target_vocab_size=20)
BUDGET, LONGEST = 300, 40


def batch_of(*lengths: int) -> MicroBatch:
    sentences = [np.full(length - 1, 4 + length % 15) for length in lengths]
    return pad_pairs(sentences, sentences[::-1])


def test_lengths_are_few_and_reach_the_longest():
    assert FixedSizes(4_096, 40).lengths == [8, 16, 24, 32, 40]
    assert FixedSizes(4_096, 256).lengths[7:] == [64, 80, 96, 112, 128, 160, 192, 224, 256]
    assert len(FixedSizes(100_000, 10_000).lengths) < 40


@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=BUDGET))
def test_any_batch_within_the_budget_gets_one_of_few_sizes(lengths):
    lengths = lengths[: max(1, BUDGET // max(lengths))]
    sizes = FixedSizes(BUDGET, LONGEST)
    batch = batch_of(*lengths)
    padded = sizes.pad(batch)
    num_pairs, length = padded.source.shape
    assert padded.target_input.shape == padded.target_output.shape == padded.source.shape
    assert length in sizes.lengths
    assert num_pairs in _possible_numbers(sizes, length)
    assert padded.num_target_tokens == batch.num_target_tokens
    assert np.array_equal(padded.source[: len(lengths), : batch.source.shape[1]], batch.source)
    assert (padded.source_lengths >= 1).all()


def _possible_numbers(sizes: FixedSizes, length: int) -> set[int]:
    place = sizes.lengths.index(length)
    most = sizes.batch_tokens // (sizes.lengths[place - 1] + 1 if place else 1)
    return {most >> halvings for halvings in range(20)} - {0}


def test_padding_changes_neither_loss_nor_gradient():
    batch = batch_of(3, 9, 5)
    padded = FixedSizes(BUDGET, LONGEST).pad(batch)
    assert padded.source.size > 2 * batch.source.size
    found = []
    for each in (batch, padded):
        model = small_learner(WITHOUT_DROPOUT).model
        model.zero_grad()
        sums = teacher_forced_loss(model, each, "fp32", 0.1)
        sums.smoothed.backward()
        found.append((float(sums.smoothed.detach()), torch.cat([p.grad.flatten() for p in model.parameters()])))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-5, rtol=1e-5)


def test_without_a_compiler_it_is_said_how_to_get_one(monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler.*apt install g\+\+.*training.compile=false"):
        require_compiler(torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_compiled_steps_have_the_losses_of_others_and_few_sizes():
    from torch._dynamo.utils import counters

    counters.clear()
    steps = [batch_of(3 + step, *range(2, 8)) for step in range(4)]
    plain, fast = small_learner(WITHOUT_DROPOUT), small_learner(WITHOUT_DROPOUT)
    fast.compiled = CompiledModel(fast.model, FixedSizes(BUDGET, LONGEST))
    losses = [
        [learner.learn(step, {0: batch}, batch.num_target_tokens).own_loss for step, batch in enumerate(steps)]
        for learner in (plain, fast)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert counters["stats"]["unique_graphs"] == 2  # encoder and decoder, of one size
    assert not counters["graph_break"]
    assert "forward" not in vars(fast.model.encoder)  # an evaluation is not compiled
