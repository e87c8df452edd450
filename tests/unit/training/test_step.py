"""One step: the gradient of the mean over the global batch, however it is cut, and an update that can be repeated."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, pad_pairs
from dragoman.corpus.tokenizer import PAD_ID
from dragoman.model.shape import ModelShape
from dragoman.model.teacher_forcing import teacher_forced_loss, teacher_forced_predictions
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.training.guard import LossScale
from dragoman.training.optimizer import build_optimizer, set_learning_rate
from dragoman.training.step import Learner, virtual_worker_seed

SHAPE = ModelShape(16, 32, 2, 1, 1, 0.0, 0.0, 0.0, source_vocab_size=20, target_vocab_size=20)
WITH_DROPOUT = dataclasses.replace(SHAPE, dropout=0.2, attention_dropout=0.2, relu_dropout=0.2)


def build_learner(shape: ModelShape = SHAPE, rate: float = 1e-3, **training: object) -> Learner:
    torch.manual_seed(0)
    model = Transformer(shape)
    settings = TrainingSettings(**{"clip_norm": 0.0} | training)
    optimizer = build_optimizer(model, settings)
    set_learning_rate(optimizer, rate)
    gradients = GradientSum(model.parameters(), World())
    return Learner(model, optimizer, gradients, LossScale.start(settings.precision), settings)


def make_pairs(num_pairs: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs to copy, of different lengths."""
    generator = np.random.default_rng(seed)
    sentences = [generator.integers(4, 20, generator.integers(1, 9)) for _ in range(num_pairs)]
    return [(sentence, sentence) for sentence in sentences]


def make_batch(pairs: list[tuple[np.ndarray, np.ndarray]]) -> MicroBatch:
    return pad_pairs([source for source, _ in pairs], [target for _, target in pairs])


def num_target_tokens(*batches: MicroBatch) -> int:
    return sum(int((batch.target_output != PAD_ID).sum()) for batch in batches)


def cut(pairs: list[tuple[np.ndarray, np.ndarray]], num_parts: int) -> dict[int, MicroBatch]:
    """Uneven parts: the first virtual worker has most pairs."""
    bounds = [0, *(len(pairs) - num_parts + 1 + i for i in range(num_parts))]
    return {i: make_batch(pairs[begin:end]) for i, (begin, end) in enumerate(pairwise(bounds))}


def learn(learner: Learner, batches: dict[int, MicroBatch], step: int = 0):
    return learner.learn(step, batches, num_target_tokens(*batches.values()))


def bits(learner: Learner) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in learner.model.parameters()]


def reference_gradients(learner: Learner, batch: MicroBatch, smoothing: float) -> dict[str, Tensor]:
    """Of the mean loss, by torch's own cross-entropy over all positions."""
    model = learner.model
    source, target = torch.from_numpy(batch.source), torch.from_numpy(batch.target_input)
    states = model(source, torch.from_numpy(batch.source_lengths), target)
    scores = linear(states, model.target_embedding).flatten(0, 1)
    output = torch.from_numpy(batch.target_output).flatten()
    loss = cross_entropy(scores, output, label_smoothing=smoothing, ignore_index=PAD_ID)
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_the_gradient_is_that_of_the_mean_over_the_global_batch(num_parts, smoothing):
    pairs = make_pairs(12)
    learner = build_learner(label_smoothing=smoothing, rate=0.0)
    expected = reference_gradients(learner, make_batch(pairs), smoothing)
    result = learn(learner, cut(pairs, num_parts))
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-5)
    norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in expected.values()))
    assert result.gradient_norm == pytest.approx(norm, rel=1e-4)


def test_virtual_workers_give_the_gradient_and_loss_of_one_big_batch():
    pairs = make_pairs(16, seed=3)
    whole, in_parts = build_learner(), build_learner()
    whole_result, parts_result = learn(whole, {0: make_batch(pairs)}), learn(in_parts, cut(pairs, 4))
    torch.testing.assert_close(in_parts.gradients.flat, whole.gradients.flat, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parts_result.loss_sums, whole_result.loss_sums, atol=0, rtol=1e-5)


def test_a_step_forgets_the_gradient_of_the_step_before():
    batches = cut(make_pairs(8), 2)
    learner = build_learner(rate=0.0)
    learn(learner, batches)
    first = learner.gradients.flat.clone()
    learn(learner, batches)
    torch.testing.assert_close(learner.gradients.flat, first, atol=1e-7, rtol=1e-6)


def test_the_loss_is_the_sum_over_target_tokens():
    batches = cut(make_pairs(6), 3)
    learner = build_learner(rate=0.0)
    result = learn(learner, batches)
    alone = [teacher_forced_loss(learner.model, batch, "fp32", 0.1) for batch in batches.values()]
    assert result.loss_sums.smoothed.item() == pytest.approx(sum(a.smoothed.item() for a in alone), rel=1e-5)
    assert result.loss_sums.plain.item() == pytest.approx(sum(a.plain.item() for a in alone), rel=1e-5)
    assert not result.loss_sums.smoothed.requires_grad


def test_the_same_seed_makes_the_same_update_bit_for_bit():
    batches = cut(make_pairs(10), 3)
    first, second = build_learner(WITH_DROPOUT, seed=7), build_learner(WITH_DROPOUT, seed=7)
    for step in range(3):
        learn(first, batches, step)
        torch.randn(11)  # whoever else draws in between changes nothing
        learn(second, batches, step)
    assert bits(first) == bits(second)


@pytest.mark.parametrize(
    ("seed", "step", "virtual_worker"), [(8, 0, 0), (7, 1, 0), (7, 0, 1)], ids=["seed", "step", "virtual_worker"]
)
def test_another_seed_step_or_virtual_worker_draws_other_masks(seed, step, virtual_worker):
    batch = make_batch(make_pairs(10))
    base, other = build_learner(WITH_DROPOUT, seed=7), build_learner(WITH_DROPOUT, seed=seed)
    base_result, other_result = learn(base, {0: batch}, 0), learn(other, {virtual_worker: batch}, step)
    assert base_result.loss_sums.smoothed != other_result.loss_sums.smoothed
    assert bits(base) != bits(other)


def test_a_virtual_workers_masks_do_not_depend_on_its_company():
    """As when another rank computes the others."""
    batches = cut(make_pairs(9), 3)
    together = learn(build_learner(WITH_DROPOUT), batches)
    alone = [learn(build_learner(WITH_DROPOUT), {index: batch}) for index, batch in batches.items()]
    total = sum(result.loss_sums.smoothed.item() for result in alone)
    assert together.loss_sums.smoothed.item() == pytest.approx(total, rel=1e-5)


def test_seeds_of_virtual_workers_are_all_different():
    seeds = {virtual_worker_seed(s, t, v) for s in range(5) for t in range(50) for v in range(8)}
    assert len(seeds) == 5 * 50 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_clipping_shortens_a_long_gradient_and_reports_its_length_before():
    batches = cut(make_pairs(8), 2)
    free, clipped = build_learner(), build_learner(clip_norm=0.01)
    free_result, clipped_result = learn(free, batches), learn(clipped, batches)
    assert free_result.gradient_norm > 0.01
    assert clipped_result.gradient_norm == pytest.approx(free_result.gradient_norm, rel=1e-6)
    assert clipped.gradients.flat.norm().item() == pytest.approx(0.01, rel=1e-5)
    shortened = free.gradients.flat * (0.01 / free_result.gradient_norm)
    torch.testing.assert_close(clipped.gradients.flat, shortened, atol=1e-8, rtol=1e-4)


def test_clipping_leaves_a_short_gradient_alone():
    batches = cut(make_pairs(8), 2)
    free, clipped = build_learner(clip_norm=0.0), build_learner(clip_norm=1e6)
    learn(free, batches)
    learn(clipped, batches)
    assert torch.equal(free.gradients.flat, clipped.gradients.flat)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_changes_nothing(value, clip_norm):
    batches = cut(make_pairs(8), 2)
    learner = build_learner(clip_norm=clip_norm)
    learn(learner, batches)
    moments = [state["exp_avg"].clone() for state in learner.optimizer.state.values()]
    learner.model.decoder.norm.bias.data[0] = value
    before = bits(learner)
    result = learn(learner, batches, 1)
    assert not result.is_finite
    assert bits(learner) == before
    after = [state["exp_avg"] for state in learner.optimizer.state.values()]
    assert all(torch.equal(old, new) for old, new in zip(moments, after, strict=True))


def test_an_fp16_overflow_skips_the_update_halves_the_scale_and_the_next_step_recovers():
    batches = cut(make_pairs(8), 2)
    learner = build_learner(precision="fp16")
    learner.loss_scale.value = 2.0**30
    before = bits(learner)
    assert not learn(learner, batches).is_finite
    assert bits(learner) == before
    assert (learner.loss_scale.value, learner.loss_scale.num_skipped_steps) == (2.0**29, 1)
    learner.loss_scale.value = 2.0**8
    assert learn(learner, batches, 1).is_finite
    assert bits(learner) != before


def test_the_fp16_scale_does_not_show_in_the_gradient():
    batches = cut(make_pairs(8), 2)
    exact, scaled = build_learner(rate=0.0), build_learner(precision="fp16", rate=0.0)
    exact_result = learn(exact, batches)
    scaled.loss_scale.value = 2.0**8
    scaled_result = learn(scaled, batches)
    assert scaled_result.gradient_norm == pytest.approx(exact_result.gradient_norm, rel=2e-2)
    similarity = torch.cosine_similarity(exact.gradients.flat, scaled.gradients.flat, dim=0)
    assert similarity.item() > 0.999


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(precision):
    learner = build_learner(dataclasses.replace(SHAPE, width=32), rate=1e-2, precision=precision, clip_norm=1.0)
    batches = cut(make_pairs(24), 3)
    losses = [learn(learner, batches, step).loss_sums.plain.item() for step in range(50)]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in learner.model.parameters())


def test_weight_decay_is_for_matrices_only():
    learner = build_learner(weight_decay=0.1)
    decays = {p: group["weight_decay"] for group in learner.optimizer.param_groups for p in group["params"]}
    assert len(decays) == len(list(learner.model.parameters()))
    for name, parameter in learner.model.named_parameters():
        assert decays[parameter] == (0.1 if parameter.dim() > 1 else 0.0), name


def test_predictions_are_the_likeliest_tokens_given_the_reference():
    model = build_learner().model.eval()
    batch = make_batch(make_pairs(5))
    predictions = teacher_forced_predictions(model, batch, "fp32")
    for row in range(5):
        length = int((batch.target_output[row] != PAD_ID).sum())
        source_length = int(batch.source_lengths[row])
        with torch.no_grad():
            source = torch.from_numpy(batch.source[row : row + 1, :source_length])
            target = torch.from_numpy(batch.target_input[row : row + 1, :length])
            states = model(source, torch.tensor([source_length]), target)
        assert predictions[row] == linear(states[0], model.target_embedding).argmax(-1).tolist()
