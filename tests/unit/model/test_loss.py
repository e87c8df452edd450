"""The chunked loss against torch's own cross-entropy: values and gradients, at and around the chunk's size."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from dragoman.model.device import CPU_LOSS_POSITIONS
from dragoman.model.loss import cross_entropy_sums

WIDTH, VOCAB_SIZE = 12, 37


def make_problem(num_positions: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(num_positions, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(vocab_size, WIDTH, generator=generator, requires_grad=True)
    target = torch.randint(0, vocab_size, (num_positions,), generator=generator)
    return states, weight, target


def reference(states: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and both gradients in double precision, by torch."""
    states, weight = (tensor.detach().double().requires_grad_() for tensor in (states, weight))
    loss = cross_entropy(states @ weight.T, target, label_smoothing=smoothing, reduction="sum")
    return loss.detach(), *torch.autograd.grad(loss, (states, weight))


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Within the tolerance relative to the largest entry, so that entries near zero are no trouble."""
    assert actual.shape == expected.shape
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance * max(scale, 1e-12), rtol=0)


@pytest.mark.parametrize("num_positions", [1, 255, 256, 257, 512, 600])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_values_and_gradients_equal_torchs(num_positions, smoothing):
    states, weight, target = make_problem(num_positions)
    loss, grad_states, grad_weight = reference(states, weight, target, smoothing)
    sums = cross_entropy_sums(states, weight, target, smoothing)
    sums.smoothed.backward()
    assert sums.smoothed.item() == pytest.approx(loss.item(), rel=1e-5)
    assert sums.plain.item() == pytest.approx(reference(states, weight, target, 0.0)[0].item(), rel=1e-5)
    assert_near(states.grad, grad_states, 1e-5)
    assert_near(weight.grad, grad_weight, 1e-5)


@settings(max_examples=40)
@given(st.integers(0, 3 * CPU_LOSS_POSITIONS), st.integers(2, 60), st.floats(0, 0.9), st.integers(0, 1_000))
def test_any_size_and_smoothing_equal_torchs(num_positions, vocab_size, smoothing, seed):
    states, weight, target = make_problem(num_positions, seed, vocab_size)
    loss, grad_states, grad_weight = reference(states, weight, target, smoothing)
    sums = cross_entropy_sums(states, weight, target, smoothing)
    sums.smoothed.backward()
    assert sums.smoothed.item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
    assert_near(states.grad, grad_states, 1e-4)
    assert_near(weight.grad, grad_weight, 1e-4)


@pytest.mark.parametrize("gradient_scale", [2.0**14, 0.5, 3.0])
def test_gradient_scale_enlarges_gradients_and_leaves_the_loss(gradient_scale):
    states, weight, target = make_problem(300)
    loss, grad_states, grad_weight = reference(states, weight, target, 0.1)
    sums = cross_entropy_sums(states, weight, target, 0.1, gradient_scale)
    sums.smoothed.backward()
    assert sums.smoothed.item() == pytest.approx(loss.item(), rel=1e-5)
    assert_near(states.grad, gradient_scale * grad_states, 1e-5)
    assert_near(weight.grad, gradient_scale * grad_weight, 1e-5)


def test_a_factor_on_the_loss_reaches_the_gradients():
    states, weight, target = make_problem(300)
    _, grad_states, grad_weight = reference(states, weight, target, 0.1)
    (-2.5 * cross_entropy_sums(states, weight, target, 0.1).smoothed).backward()
    assert_near(states.grad, -2.5 * grad_states, 1e-5)
    assert_near(weight.grad, -2.5 * grad_weight, 1e-5)


@pytest.mark.parametrize("num_positions", [1, 257, 600])
@pytest.mark.parametrize("gradient_scale", [1.0, 2.0**14])
def test_a_bias_is_added_to_all_scores_and_learns(num_positions, gradient_scale):
    states, weight, target = make_problem(num_positions)
    bias = torch.randn(VOCAB_SIZE, requires_grad=True)
    doubles = [tensor.detach().double().requires_grad_() for tensor in (states, weight, bias)]
    scores = doubles[0] @ doubles[1].T + doubles[2]
    loss = cross_entropy(scores, target, label_smoothing=0.1, reduction="sum")
    sums = cross_entropy_sums(states, weight, target, 0.1, gradient_scale, bias)
    sums.smoothed.backward()
    assert sums.smoothed.item() == pytest.approx(loss.item(), rel=1e-5)
    for tensor, expected in zip((states, weight, bias), torch.autograd.grad(loss, doubles), strict=True):
        assert_near(tensor.grad, gradient_scale * expected, 1e-5)


@pytest.mark.parametrize("learning", ["states", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient_and_lets_the_rest_learn(learning):
    def gradient(frozen: bool) -> Tensor:
        states, weight, target = make_problem(300)
        tensors = {"states": states, "weight": weight, "bias": torch.linspace(-1, 1, VOCAB_SIZE).requires_grad_()}
        for name, tensor in tensors.items():
            tensor.requires_grad_(name == learning or not frozen)
        cross_entropy_sums(*list(tensors.values())[:2], target, 0.1, bias_V=tensors["bias"]).smoothed.backward()
        assert all((tensor.grad is None) != tensor.requires_grad for tensor in tensors.values())
        return tensors[learning].grad

    assert torch.equal(gradient(frozen=True), gradient(frozen=False))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("num_positions", [1, 257])
def test_half_precision_comes_close(dtype, tolerance, num_positions):
    states, weight, target = make_problem(num_positions)
    loss, grad_states, grad_weight = reference(states, weight, target, 0.1)
    with torch.autocast("cpu", dtype):
        sums = cross_entropy_sums(states, weight, target, 0.1)
    sums.smoothed.backward()
    assert sums.smoothed.dtype == sums.plain.dtype == torch.float32
    assert sums.smoothed.item() == pytest.approx(loss.item(), rel=tolerance)
    assert states.grad.dtype == weight.grad.dtype == torch.float32
    assert_near(states.grad, grad_states, tolerance)
    assert_near(weight.grad, grad_weight, tolerance)


def test_scaling_saves_gradients_that_fp16_would_lose():
    """A model that is nearly sure leaves gradients of 2e-9, below fp16's smallest number; scaled, they survive."""
    weight, confident, target = torch.eye(4), 20 * torch.eye(4), torch.arange(4)
    _, expected, _ = reference(confident, weight, target, 0.0)

    def gradient(scale: float) -> Tensor:
        states = confident.clone().requires_grad_()
        with torch.autocast("cpu", torch.float16):
            cross_entropy_sums(states, weight, target, 0.0, scale).smoothed.backward()
        return states.grad / scale

    others = ~torch.eye(4, dtype=torch.bool)
    assert not gradient(1.0)[others].any()
    torch.testing.assert_close(gradient(2.0**14)[others].double(), expected[others], rtol=1e-2, atol=0)


def test_without_gradients_the_sums_are_the_same():
    states, weight, target = make_problem(600)
    with_gradients = cross_entropy_sums(states, weight, target, 0.1)
    with torch.no_grad():
        without = cross_entropy_sums(states, weight, target, 0.1)
    assert torch.equal(without.smoothed, with_gradients.smoothed)
    assert torch.equal(without.plain, with_gradients.plain)
    assert not without.smoothed.requires_grad


def test_the_plain_sum_carries_no_gradient():
    assert not cross_entropy_sums(*make_problem(5), 0.1).plain.requires_grad


def test_uniform_scores_cost_the_logarithm_of_the_vocabulary():
    sums = cross_entropy_sums(
        torch.zeros(10, WIDTH), torch.ones(VOCAB_SIZE, WIDTH), torch.zeros(10, dtype=torch.long), 0.1
    )
    assert sums.smoothed.item() == pytest.approx(10 * math.log(VOCAB_SIZE), rel=1e-6)
    assert sums.plain.item() == pytest.approx(10 * math.log(VOCAB_SIZE), rel=1e-6)


def test_huge_scores_overflow_nothing():
    states, weight, target = make_problem(20)
    states.data *= 1e4
    sums = cross_entropy_sums(states, weight, target, 0.1)
    sums.smoothed.backward()
    assert math.isfinite(sums.smoothed.item())
    assert torch.isfinite(states.grad).all()
    assert torch.isfinite(weight.grad).all()


def test_gradients_point_where_the_loss_really_falls():
    """A difference quotient, in place of gradcheck: sums are kept in single precision whatever the input's type."""
    states, weight, target = make_problem(300)
    cross_entropy_sums(states, weight, target, 0.1).smoothed.backward()
    step = 1e-2 * states.grad / states.grad.norm()
    with torch.no_grad():
        ahead = cross_entropy_sums(states + step, weight, target, 0.1).smoothed
        behind = cross_entropy_sums(states - step, weight, target, 0.1).smoothed
    slope = (ahead - behind).item() / (2 * step.norm().item())
    assert slope == pytest.approx(states.grad.norm().item(), rel=2e-2)
