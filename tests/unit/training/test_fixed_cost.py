"""What a batch costs before its first token, with a clock that knows; and that measuring leaves the model as it was."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, pad_pairs
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.training import fixed_cost
from dragoman.training.fixed_cost import QUARTER, measure_fixed_share
from dragoman.training.guard import LossScale
from dragoman.training.optimizer import build_optimizer
from dragoman.training.step import Learner

SHAPE = ModelShape(8, 16, 2, 1, 1, 0.1, 0.1, 0.1, source_vocab_size=12, target_vocab_size=12)
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def build_learner() -> Learner:
    torch.manual_seed(0)
    model = Transformer(SHAPE)
    settings = TrainingSettings(precision="fp32")
    gradients = GradientSum(model.parameters(), World())
    return Learner(model, build_optimizer(model, settings), gradients, LossScale(is_dynamic=False), settings)


def make_batch(*sentence_lengths: int) -> MicroBatch:
    sentences = [np.full(length, 5) for length in sentence_lengths]
    return pad_pairs(sentences, sentences)


def num_tokens(batch: MicroBatch) -> int:
    return batch.source.size + batch.target_input.size


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sentences", [(10,) * 16, (40, 40), (10,) * 7])
def test_the_share_is_found_from_two_sizes(monkeypatch, share, sentences):
    whole = make_batch(*sentences)
    seconds_per_token = (1 - share) / num_tokens(whole)
    monkeypatch.setattr(fixed_cost, "_seconds", lambda _learner, batch: share + seconds_per_token * num_tokens(batch))
    assert measure_fixed_share(None, whole) == pytest.approx(share)


@pytest.mark.parametrize(("of_quarter", "expected"), [(0.0, 0.0), (5.0, 1.0)])
def test_noise_does_not_lead_beyond_nothing_and_all(monkeypatch, of_quarter, expected):
    whole = make_batch(*(10,) * 16)
    monkeypatch.setattr(fixed_cost, "_seconds", lambda _, batch: 1.0 if batch is whole else of_quarter)
    assert measure_fixed_share(None, whole) == expected


def test_one_hiccup_does_not_count(monkeypatch):
    whole = make_batch(*(10,) * 16)
    hiccups = iter([9.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr(fixed_cost, "_seconds", lambda _, batch: num_tokens(batch) / num_tokens(whole) + next(hiccups))
    assert measure_fixed_share(None, whole) == pytest.approx(0.0)


def test_a_batch_that_cannot_be_cut_is_all_fixed_cost(monkeypatch):
    monkeypatch.setattr(fixed_cost, "_seconds", None)  # nothing is timed
    token = np.full((1, 1), 5)
    assert measure_fixed_share(None, MicroBatch(token, np.array([1]), token, token)) == 1.0


@given(lengths)
def test_a_quarter_is_a_batch_of_its_own(sentence_lengths):
    batch = make_batch(*sentence_lengths)
    quarter = fixed_cost._quarter(batch)
    num_pairs = len(quarter.source)
    assert 1 <= num_pairs == len(quarter.source_lengths) == len(quarter.target_input) == len(quarter.target_output)
    assert quarter.target_input.shape == quarter.target_output.shape
    assert quarter.source_lengths.min() >= 1
    assert quarter.source_lengths.max() <= quarter.source.shape[1]
    if len(sentence_lengths) >= QUARTER:
        assert num_pairs == len(sentence_lengths) // QUARTER
    else:
        assert quarter.source.shape[1] == max(1, batch.source.shape[1] // QUARTER)


@pytest.mark.parametrize("sentences", [(6,) * 8, (12, 12)])
def test_measuring_leaves_the_next_step_as_it_would_have_been(sentences):
    learners = [build_learner(), build_learner()]
    batch = make_batch(*sentences)
    for learner in learners:
        learner.learn(0, {0: batch}, 50)
    share = measure_fixed_share(learners[0], batch)
    assert 0 <= share <= 1
    norms = [learner.learn(1, {0: batch}, 50).gradient_norm for learner in learners]
    assert norms[0] == norms[1]
    weights = [list(learner.model.parameters()) for learner in learners]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
