"""Attention for training on a CPU against torch's own: values, gradients, masks and dropout."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dragoman.model import cpu_attention
from dragoman.model.attention import CrossAttention, SelfAttention
from dragoman.model.dropout import Dropout

B, H, K = 3, 2, 8
NO_DROPOUT = Dropout(0.0)


def draw_heads(parts: int, length: int, seed: int = 0) -> Tensor:
    """Heads as the layers make them: a view of what one matrix product returned."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(B, length, parts * H * K, generator=generator, dtype=torch.float64)
    return packed.view(B, length, parts, H, K).permute(2, 0, 3, 1, 4).requires_grad_()


def mask_of(lengths: tuple[int, ...], longest: int) -> Tensor:
    return (torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, None, :]


@pytest.mark.parametrize("length", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("kind", ["plain", "causal", "masked"])
def test_self_attention_equals_torchs(length, kind):
    mask = mask_of((length, max(1, length // 2), 1), length) if kind == "masked" else None
    packed, reference = draw_heads(3, length), draw_heads(3, length)
    ours = cpu_attention.attend(packed, None, mask, kind == "causal", NO_DROPOUT)
    theirs = scaled_dot_product_attention(*reference, attn_mask=mask, is_causal=kind == "causal")
    torch.testing.assert_close(ours, theirs)
    direction = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, packed, direction), torch.autograd.grad(theirs, reference, direction)
    )


@pytest.mark.parametrize("mask", [None, mask_of((7, 3, 1), 7)], ids=["plain", "masked"])
def test_cross_attention_equals_torchs(mask):
    queries, memory = draw_heads(1, 5), draw_heads(2, 7, seed=1)
    ours = cpu_attention.attend(queries, memory, mask, False, NO_DROPOUT)
    theirs = scaled_dot_product_attention(*queries, *memory, attn_mask=mask)
    torch.testing.assert_close(ours, theirs)
    direction = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (queries, memory), direction),
        torch.autograd.grad(theirs, (queries, memory), direction),
    )


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_gradients_are_right_under_dropout(kind):
    """The same seed gives the same mask, so that differences of the value can be compared with the gradient."""
    dropout = Dropout(0.4).train()
    inputs = (draw_heads(3, 4),) if kind == "self" else (draw_heads(1, 4), draw_heads(2, 6, seed=1))

    def attend(*tensors: Tensor) -> Tensor:
        torch.manual_seed(9)
        return cpu_attention.attend(tensors[0], tensors[1] if kind == "cross" else None, None, False, dropout)

    assert torch.autograd.gradcheck(attend, inputs)


def test_dropout_removes_weights_and_keeps_the_mean():
    """Values of all ones give the sum of weights: 1 without dropout, and 1 on average with it."""
    packed = torch.cat([draw_heads(2, 16).detach(), torch.ones(1, B, H, 16, K, dtype=torch.float64)])
    dropout = Dropout(0.25).train()
    torch.manual_seed(3)
    sums = torch.stack([cpu_attention.attend(packed, None, None, False, dropout) for _ in range(200)])
    assert sums.mean().item() == pytest.approx(1, abs=0.01)
    assert sums.std() > 0.1


def test_scores_of_any_size_overflow_nothing():
    packed = (1e4 * draw_heads(3, 6).detach()).requires_grad_()
    mixed = cpu_attention.attend(packed, None, None, True, NO_DROPOUT)
    (gradient,) = torch.autograd.grad(mixed.sum(), packed)
    assert torch.isfinite(mixed).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_compute_the_same_with_and_without_gradients(dtype):
    """Without them, and in half precision, the layers use torch's own attention."""
    torch.manual_seed(4)
    own, cross = SelfAttention(16, 2, 0.1).eval().to(dtype), CrossAttention(16, 2, 0.1).eval().to(dtype)
    x, memory, mask = torch.randn(3, 5, 16).to(dtype), torch.randn(3, 7, 16).to(dtype), mask_of((7, 2, 4), 7)

    def compute() -> Tensor:
        return cross(own(x, is_causal=True), cross.project_memory(memory), mask)

    with torch.no_grad():
        expected = compute()
    torch.testing.assert_close(compute(), expected)
