"""Dropout drawn from random bytes: the right rate in every byte of a word, the right mean, the right gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.model.dropout import Dropout

NUM_ELEMENTS = 400_000


def make_dropout(probability: float) -> Dropout:
    return Dropout(probability).train()


def standard_deviations(num_hits: int, num_trials: int, probability: float) -> float:
    return (num_hits - num_trials * probability) / math.sqrt(num_trials * probability * (1 - probability))


def drawn_rates(probability: float, num_draws: int) -> list[float]:
    """The rates of draws, each of which is one of the two nearest multiples of 1/256."""
    return [1 - 1 / make_dropout(probability).draw(torch.Size((1,))).scale for _ in range(num_draws)]


@pytest.mark.parametrize("probability", [0.001, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_the_rates_of_draws_are_neighbours_whose_mean_is_the_probability(probability):
    torch.manual_seed(1)
    rates = drawn_rates(probability, 4_000)
    lower = math.floor(256 * probability) / 256
    assert {round(256 * rate, 6) for rate in rates} <= {256 * lower, 256 * lower + 1}
    assert sum(rates) / len(rates) == pytest.approx(probability, abs=4.5 / 512 / math.sqrt(4_000))


@pytest.mark.parametrize("probability", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_elements_vanish_at_the_drawn_rate_and_the_mean_stays(probability):
    torch.manual_seed(1)
    kept = make_dropout(probability).draw(torch.Size((NUM_ELEMENTS,)))
    rate = 1 - 1 / kept.scale
    assert abs(standard_deviations(int((kept.mask == 0).sum()), NUM_ELEMENTS, rate)) < 4.5
    torch.manual_seed(1)
    dropped = make_dropout(probability)(torch.ones(NUM_ELEMENTS))
    assert torch.equal(dropped != 0, kept.mask.bool())
    assert dropped.mean().item() == pytest.approx(1, abs=4.5 * math.sqrt(rate / (1 - rate) / NUM_ELEMENTS))


@pytest.mark.parametrize("lane", range(8))
def test_each_byte_of_a_word_has_the_rate(lane):
    torch.manual_seed(2)
    kept = make_dropout(0.125).draw(torch.Size((NUM_ELEMENTS,)))
    mask = kept.mask[lane::8]
    assert abs(standard_deviations(int((mask == 0).sum()), len(mask), 0.125)) < 4.5


@pytest.mark.parametrize("distance", [1, 2, 4, 8])
def test_neighbours_vanish_independently(distance):
    torch.manual_seed(3)
    is_dropped = make_dropout(0.25)(torch.ones(NUM_ELEMENTS)) == 0
    both = is_dropped[distance:] & is_dropped[:-distance]
    assert abs(standard_deviations(int(both.sum()), len(both), 0.0625)) < 5


@pytest.mark.parametrize("probability", [0.125, 0.25, 0.5])
def test_kept_elements_are_scaled_up(probability):
    torch.manual_seed(4)
    x = torch.randn(1_000)
    dropped = make_dropout(probability)(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], x[kept] / (1 - probability), rtol=1e-4, atol=0)


def test_the_seed_decides_the_mask():
    dropout, x = make_dropout(0.5), torch.ones(3, 7, 11)

    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return dropout(x)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert not torch.equal(dropout(x), dropout(x))


def test_outside_training_and_at_rate_zero_the_input_itself_comes_back():
    x, residual = torch.randn(5, 3), torch.randn(5, 3)
    for dropout in (Dropout(0.5).eval(), make_dropout(0.0)):
        before = torch.get_rng_state()
        assert dropout(x) is x
        assert torch.equal(dropout.add_to(residual, x), residual + x)
        assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 9), min_size=0, max_size=4),
    st.floats(0.01, 0.99),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_any_shape_and_type_keeps_its_own(shape, probability, dtype):
    x = torch.ones(shape, dtype=dtype)
    dropped = make_dropout(probability)(x)
    assert dropped.shape == x.shape
    assert dropped.dtype == dtype
    lower = math.floor(256 * probability)
    scales = [256 / (256 - levels) for levels in (lower, min(lower + 1, 255))]
    for value in dropped.flatten().tolist():
        assert value == 0 or any(value == pytest.approx(scale, rel=1e-2) for scale in scales)


@pytest.mark.parametrize("shape", [(8, 16), (3, 5, 7), (1,), (2, 1_001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adding_to_a_residual_equals_dropping_then_adding(shape, dtype):
    dropout = make_dropout(0.3)
    residual, x = torch.randn(shape), torch.randn(shape).to(dtype)
    torch.manual_seed(5)
    in_one_pass = dropout.add_to(residual, x)
    torch.manual_seed(5)
    in_two_steps = residual + dropout(x.float())
    assert in_one_pass.dtype == torch.float32
    torch.testing.assert_close(in_one_pass, in_two_steps, atol=1e-6, rtol=1e-6)


def test_the_gradient_is_the_mask():
    x = torch.randn(40, 33, requires_grad=True)
    torch.manual_seed(6)
    dropped = make_dropout(0.4)(x)
    dropped.sum().backward()
    assert ((x.grad == 0) == (dropped == 0)).all()
    torch.testing.assert_close(x.grad * x.detach(), dropped.detach())


def test_the_gradient_of_a_residual_sum_is_one_and_the_mask():
    residual = torch.randn(40, 33, requires_grad=True)
    x = torch.randn(40, 33, requires_grad=True)
    torch.manual_seed(7)
    summed = make_dropout(0.4).add_to(residual, x)
    summed.sum().backward()
    assert (residual.grad == 1).all()
    torch.testing.assert_close(x.grad * x.detach(), (summed - residual).detach(), atol=1e-5, rtol=1e-5)


def test_inputs_stay_as_they_were():
    x, residual = torch.randn(20, 5), torch.randn(20, 5)
    copies = x.clone(), residual.clone()
    make_dropout(0.5)(x)
    make_dropout(0.5).add_to(residual, x)
    assert torch.equal(x, copies[0])
    assert torch.equal(residual, copies[1])


def test_a_transposed_input_is_dropped_like_any_other():
    x = torch.randn(30, 50).T
    dropped = make_dropout(0.5)(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * x[kept])
    assert 0.4 < kept.float().mean() < 0.6


@pytest.mark.parametrize("probability", [0.99999, 0.999999])
def test_rates_a_hair_below_one_are_settings_too(probability):
    """model.dropout takes anything below 1, so whatever is accepted must not crash at the first step."""
    dropped = make_dropout(probability)(torch.ones(100))
    assert torch.isfinite(dropped).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropping_a_relu_equals_relu_then_dropping(dtype):
    dropout = make_dropout(0.3)
    x = torch.randn(40, 33).to(dtype)
    results = []
    for drop in (lambda inner: dropout.relu(inner), lambda inner: dropout(torch.relu(inner))):
        torch.manual_seed(8)
        leaf = x.clone().requires_grad_()
        dropped = drop(leaf * 1)
        dropped.backward(torch.ones_like(dropped))
        results.append((dropped, leaf.grad))
    torch.testing.assert_close(results[0], results[1])


def test_in_evaluation_a_relu_is_a_relu():
    x = torch.randn(5, 3)
    assert torch.equal(Dropout(0.5).eval().relu(x), torch.relu(x))
