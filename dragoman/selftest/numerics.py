"""Does the device compute what it should? Compares it with 64-bit numbers on the CPU.

The reference uses the same model in float64 and torch's own cross-entropy, not ours. Dropout is off: devices draw
different random numbers.
"""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dragoman.corpus.batching import MicroBatch
from dragoman.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID
from dragoman.model.device import best_precision
from dragoman.model.shape import ModelShape, load_preset
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.model.transformer import Transformer
from dragoman.selftest.stage_result import StageResult

SMOOTHING = 0.1
LARGEST_ERRORS = {"fp32": 1e-4, "fp16": 0.03, "bf16": 0.1}
"""Largest relative errors of loss and gradient. fp32 on a sound device has some 1e-6; products in TF32 have 1e-3."""
LARGEST_DECODING_ERROR = 1e-3
_HALF_PRECISION_SCALE = 2.0**14
"""fp16 loses small gradients unless they are scaled, as in training."""
_FIRST_WORD_ID = 4


def random_batch(
    num_pairs: int, max_length: int, vocab_size: int, seed: int = 1, min_length: int | None = None
) -> MicroBatch:
    """Returns pairs of random subwords, of lengths that differ so that some positions are padded."""
    random = np.random.default_rng(seed)
    lengths = random.integers(min_length or max(2, max_length // 2), max_length + 1, (2, num_pairs))
    lengths[:, 0] = max_length
    words = random.integers(_FIRST_WORD_ID, vocab_size, (2, num_pairs, max_length))
    places = np.arange(max_length)
    words = np.where(places < lengths[..., None] - 1, words, np.where(places == lengths[..., None] - 1, EOS_ID, PAD_ID))
    source, target_output = words
    target_input = np.where(target_output == PAD_ID, PAD_ID, np.roll(target_output, 1, axis=1))
    target_input[:, 0] = BOS_ID
    return MicroBatch(source, lengths[0], target_input, target_output)


def check_kernels(device: torch.device) -> StageResult:
    """Compares loss, gradient and step-by-step decoding in fp32 with the reference."""
    model, batch = _small_model(), random_batch(12, 17, _shape().target_vocab_size)
    expected = _reference(model, batch)
    on_device = deepcopy(model).to(device)
    loss_error, gradient_error = _errors(expected, on_device, batch, "fp32")
    decoding_error = _decoding_error(on_device, batch)
    figures = {"loss_error": loss_error, "gradient_error": gradient_error, "decoding_error": decoding_error}
    limit = LARGEST_ERRORS["fp32"]
    if not max(loss_error, gradient_error) <= limit:
        why = (
            f"Loss and gradient differ from 64-bit numbers on the CPU by {loss_error:.1e} and {gradient_error:.1e} "
            f"(relative; up to {limit:.0e} is rounding). Results of this device cannot be trusted in fp32."
        )
        return StageResult("failed", why, figures)
    if not decoding_error <= LARGEST_DECODING_ERROR:
        why = f"Scores of decoding step by step differ by {decoding_error:.1e} from those of the whole sentence."
        return StageResult("failed", why, figures)
    why = f"Loss, gradient and decoding agree with 64-bit numbers on the CPU (gradient: {gradient_error:.1e})."
    return StageResult("passed", why, figures)


def check_precisions(device: torch.device) -> StageResult:
    """Compares loss and gradient in bf16 and fp16 with the reference, where the device has them."""
    model, batch = _small_model(), random_batch(12, 17, _shape().target_vocab_size)
    expected = _reference(model, batch)
    found: dict[str, float | str] = {}
    wrong = []
    for precision in ("bf16", "fp16"):
        try:
            error = max(_errors(expected, deepcopy(model).to(device), batch, precision))
        except RuntimeError as refusal:  # torch's answer where a kernel is missing
            found[precision] = f"not available: {str(refusal).splitlines()[0]}"
            continue
        found[precision] = error
        if not error <= LARGEST_ERRORS[precision]:
            wrong.append(f"{precision} differs by {error:.1%} (up to {LARGEST_ERRORS[precision]:.0%} is rounding)")
    if wrong:
        return StageResult("failed", f"{' and '.join(wrong)}: train in fp32 on this device.", {"errors": found})
    parts = [f"{name} {error if isinstance(error, str) else f'{error:.1%}'}" for name, error in found.items()]
    best = best_precision(device)
    why = f"Difference from 64-bit numbers: {', '.join(parts)}. Fastest for training here: {best}."
    return StageResult("passed", why, {"errors": found, "fastest": best})


def _shape() -> ModelShape:
    preset = load_preset("tiny")
    return replace(
        preset, source_vocab_size=500, target_vocab_size=500, dropout=0.0, attention_dropout=0.0, relu_dropout=0.0
    )


def _small_model() -> Transformer:
    torch.manual_seed(1)
    return Transformer(_shape())


def _reference(model: Transformer, batch: MicroBatch) -> tuple[float, Tensor]:
    """Returns the summed loss and the gradient in float64, without our own loss."""
    exact = deepcopy(model).double()
    states = exact(*_inputs(batch, torch.device("cpu")))
    loss = cross_entropy(
        exact.logits(states).flatten(0, 1),
        torch.from_numpy(batch.target_output).flatten(),
        ignore_index=PAD_ID,
        label_smoothing=SMOOTHING,
        reduction="sum",
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), _gradient(exact)


def _errors(
    expected: tuple[float, Tensor], model: Transformer, batch: MicroBatch, precision: str
) -> tuple[float, float]:
    """Returns the relative errors of loss and gradient; infinite where they are not numbers."""
    scale = 1.0 if precision == "fp32" else _HALF_PRECISION_SCALE / batch.num_target_tokens
    sums = teacher_forced_loss(model, batch, precision, SMOOTHING, scale)
    sums.smoothed.backward()  # type: ignore[no-untyped-call]
    loss, gradient = expected
    found = _gradient(model) / scale
    errors = abs(float(sums.smoothed.detach()) - loss) / abs(loss), float((found - gradient).norm() / gradient.norm())
    return errors if np.isfinite(errors).all() else (float("inf"), float("inf"))


def _gradient(model: Transformer) -> Tensor:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([gradient.flatten().cpu().double() for gradient in gradients])


@torch.no_grad()
def _decoding_error(model: Transformer, batch: MicroBatch) -> float:
    """Returns the largest difference between scores of one position at a time and those of all at once."""
    model.eval()
    source, lengths, target = _inputs(batch, model.target_embedding.device)
    whole = model.logits(model(source, lengths, target))
    state = model.start_decoding(source, lengths)
    steps = [model.decode_next(target[:, place], state) for place in range(target.shape[1])]
    difference = (torch.stack(steps, dim=1) - whole).abs().max() / whole.abs().max()
    return float(difference.nan_to_num(nan=float("inf")))


def _inputs(batch: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    source, target = (torch.from_numpy(array).to(device) for array in (batch.source, batch.target_input))
    return source, torch.from_numpy(batch.source_lengths), target
