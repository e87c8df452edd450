"""The stages that compare a device with 64-bit numbers: a sound device passes, each kind of fault is found."""

import numpy as np
import pytest
import torch

from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID
from dragoman.model import attention, cpu_attention, loss
from dragoman.selftest import numerics
from dragoman.selftest.numerics import check_kernels, check_precisions, random_batch

CPU = torch.device("cpu")


def test_batches_have_padding_and_the_marks_of_real_ones():
    batch = random_batch(8, 10, 100)
    assert (batch.source_lengths == (batch.source != PAD_ID).sum(1)).all()
    assert (batch.target_input[:, 0] == BOS_ID).all()
    assert ((batch.target_output == EOS_ID).sum(1) == 1).all()
    np.testing.assert_array_equal(batch.target_input != PAD_ID, batch.target_output != PAD_ID)
    assert batch.source_lengths.max() == 10 > batch.source_lengths.min()


def test_this_cpu_computes_rightly():
    outcome = check_kernels(CPU)
    assert outcome.state == "passed"
    assert outcome.figures["gradient_error"] < 1e-5
    assert check_precisions(CPU).state == "passed"


def test_attention_that_ignores_the_padding_mask_is_found(monkeypatch: pytest.MonkeyPatch):
    real = cpu_attention._mask_as_bias

    def without_mask(packed: torch.Tensor, mask: torch.Tensor | None, is_causal: bool) -> torch.Tensor | None:
        is_exact = packed.dtype == torch.float64
        return real(packed, mask if is_exact else None, is_causal)

    monkeypatch.setattr(cpu_attention, "_mask_as_bias", without_mask)
    outcome = check_kernels(CPU)
    assert outcome.state == "failed"
    assert "cannot be trusted" in outcome.why


def test_decoding_that_ignores_the_padding_mask_is_found(monkeypatch: pytest.MonkeyPatch):
    real = attention.scaled_dot_product_attention

    def without_mask(query: torch.Tensor, *others: torch.Tensor, **options: object) -> torch.Tensor:
        is_one_position = query.shape[2] == 1
        return real(query, *others, **options | ({"attn_mask": None} if is_one_position else {}))

    monkeypatch.setattr(attention, "scaled_dot_product_attention", without_mask)
    outcome = check_kernels(CPU)
    assert outcome.state == "failed"
    assert "step by step" in outcome.why


def test_a_wrong_gradient_of_the_loss_is_found(monkeypatch: pytest.MonkeyPatch):
    real = loss._add_product
    monkeypatch.setattr(loss, "_add_product", lambda total, left, right: real(total, left * 1.001, right))
    outcome = check_kernels(CPU)
    assert outcome.state == "failed"
    assert outcome.figures["loss_error"] < 1e-5 < outcome.figures["gradient_error"]


def test_products_of_few_digits_are_found(monkeypatch: pytest.MonkeyPatch):
    real = cpu_attention._product

    def rounded(left: torch.Tensor, *others: object, **options: object) -> torch.Tensor:
        return real(left.bfloat16().float() if left.dtype == torch.float32 else left, *others, **options)

    monkeypatch.setattr(cpu_attention, "_product", rounded)
    assert check_kernels(CPU).state == "failed"


def test_a_cache_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention.KeyValueCache, "append", lambda self, keys_and_values: keys_and_values)
    outcome = check_kernels(CPU)
    assert outcome.state == "failed"
    assert "step by step" in outcome.why


def test_a_precision_that_overflows_fails_and_one_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    real = numerics.teacher_forced_loss

    def broken(model: object, batch: object, precision: str, *others: float) -> object:
        if precision == "fp16":
            raise RuntimeError('"addmm" not implemented for Half\nand more')
        sums = real(model, batch, precision, *others)  # type: ignore[arg-type]
        return sums._replace(smoothed=sums.smoothed * torch.inf) if precision == "bf16" else sums

    monkeypatch.setattr(numerics, "teacher_forced_loss", broken)
    outcome = check_precisions(CPU)
    assert outcome.state == "failed"
    assert "bf16 differs" in outcome.why
    assert outcome.figures["errors"]["fp16"] == 'not available: "addmm" not implemented for Half'
