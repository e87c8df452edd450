"""One update: the gradient of the mean over the global batch, however it is split, and the same update again."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import small_learner
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from dragoman.corpus.batching import MicroBatch, pad_pairs
from dragoman.corpus.tokenizer import PAD_ID
from dragoman.model.shape import ModelShape
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.training import learner as learner_module
from dragoman.training.gradient_pass import virtual_worker_seed
from dragoman.training.learner import QUARTER, Learner, LossScale, measure_fixed_share

SHAPE = ModelShape(16, 32, 2, 1, 1, 0.0, 0.0, 0.0, source_vocab_size=20, target_vocab_size=20)
WITH_DROPOUT = dataclasses.replace(SHAPE, dropout=0.2, attention_dropout=0.2, relu_dropout=0.2)


def build_learner(shape: ModelShape = SHAPE, rate: float = 1e-3, **training: object) -> Learner:
    return small_learner(shape, rate=rate, **{"clip_norm": 0.0} | training)


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


# The dynamic loss scale of fp16


def test_fp16_starts_at_two_to_the_fourteenth():
    assert LossScale.start("fp16") == LossScale(is_dynamic=True, value=16_384.0)


def test_other_precisions_stay_at_one_whatever_happens():
    for precision in ("fp32", "bf16"):
        scale = LossScale.start(precision)
        for is_finite in [False] * 3 + [True] * 2_500 + [False]:
            scale.update(is_finite)
        assert scale == LossScale(is_dynamic=False, value=1.0)


def test_an_overflow_halves_and_is_counted():
    scale = LossScale.start("fp16")
    for num_skipped, value in enumerate((8_192.0, 4_096.0, 2_048.0), start=1):
        scale.update(is_finite=False)
        assert (scale.value, scale.num_skipped_steps) == (value, num_skipped)


def test_two_thousand_good_steps_in_a_row_double():
    scale = LossScale.start("fp16")
    for _ in range(1_999):
        scale.update(is_finite=True)
    assert scale.value == 16_384.0
    scale.update(is_finite=True)
    assert scale.value == 32_768.0
    for _ in range(1_999):
        scale.update(is_finite=True)
    assert scale.value == 32_768.0
    scale.update(is_finite=True)
    assert (scale.value, scale.num_skipped_steps) == (65_536.0, 0)


def test_a_bad_step_starts_the_count_anew():
    scale = LossScale.start("fp16")
    for _ in range(1_999):
        scale.update(is_finite=True)
    scale.update(is_finite=False)
    assert scale.value == 8_192.0
    for _ in range(1_999):
        scale.update(is_finite=True)
    assert scale.value == 8_192.0
    scale.update(is_finite=True)
    assert scale.value == 16_384.0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2_500)), max_size=6))
def test_any_history_follows_the_plain_rule(history):
    scale = LossScale.start("fp16")
    value, num_good, num_skipped = 2.0**14, 0, 0
    for is_finite, num_times in history:
        for _ in range(num_times if is_finite else num_times % 20):
            scale.update(is_finite)
            value, num_good, num_skipped = (
                (value, num_good + 1, num_skipped) if is_finite else (value / 2, 0, num_skipped + 1)
            )
            if num_good == 2_000:
                value, num_good = value * 2, 0
    assert (scale.value, scale.num_skipped_steps) == (value, num_skipped)


# The fixed cost of a batch


def batch_of_lengths(*sentence_lengths: int) -> MicroBatch:
    sentences = [np.full(length, 5) for length in sentence_lengths]
    return pad_pairs(sentences, sentences)


def num_padded_tokens(batch: MicroBatch) -> int:
    return batch.source.size + batch.target_input.size


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sentences", [(10,) * 16, (40, 40), (10,) * 7])
def test_the_share_is_found_from_two_sizes(monkeypatch, share, sentences):
    whole = batch_of_lengths(*sentences)
    seconds_per_token = (1 - share) / num_padded_tokens(whole)
    monkeypatch.setattr(
        learner_module, "_time_batch", lambda _learner, batch: share + seconds_per_token * num_padded_tokens(batch)
    )
    assert measure_fixed_share(None, whole) == pytest.approx(share)


@pytest.mark.parametrize(("of_quarter", "expected"), [(0.0, 0.0), (5.0, 1.0)])
def test_noise_does_not_lead_beyond_nothing_and_all(monkeypatch, of_quarter, expected):
    whole = batch_of_lengths(*(10,) * 16)
    monkeypatch.setattr(learner_module, "_time_batch", lambda _, batch: 1.0 if batch is whole else of_quarter)
    assert measure_fixed_share(None, whole) == expected


def test_one_hiccup_does_not_count(monkeypatch):
    whole = batch_of_lengths(*(10,) * 16)
    hiccups = iter([9.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr(
        learner_module,
        "_time_batch",
        lambda _, batch: num_padded_tokens(batch) / num_padded_tokens(whole) + next(hiccups),
    )
    assert measure_fixed_share(None, whole) == pytest.approx(0.0)


def test_a_batch_that_cannot_be_cut_is_all_fixed_cost(monkeypatch):
    monkeypatch.setattr(learner_module, "_time_batch", None)  # nothing is timed
    token = np.full((1, 1), 5)
    assert measure_fixed_share(None, MicroBatch(token, np.array([1]), token, token)) == 1.0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_a_quarter_is_a_batch_of_its_own(sentence_lengths):
    batch = batch_of_lengths(*sentence_lengths)
    quarter = learner_module._quarter(batch)
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
    learners = [small_learner(), small_learner()]
    batch = batch_of_lengths(*sentences)
    for learner in learners:
        learner.learn(0, {0: batch}, 50)
    share = measure_fixed_share(learners[0], batch)
    assert 0 <= share <= 1
    norms = [learner.learn(1, {0: batch}, 50).gradient_norm for learner in learners]
    assert norms[0] == norms[1]
    weights = [list(learner.model.parameters()) for learner in learners]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
