"""Model, loss, update and decoding on the meta device: no operation may mix it with tensors of the host.

Nothing is computed there. A GPU refuses such operations; the meta device lets most of them pass, so each one is looked
at. This finds most of what would fail on the first GPU, without one.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.world import join_world
from dragoman.model.shape import load_preset
from dragoman.model.teacher_forcing import teacher_forced_loss
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.selftest.numerics import random_batch
from dragoman.training.learner import (
    Learner,
    LossScale,
    build_optimizer,
    empty_moments,
    optimizer_tensors,
)
from dragoman.training.weight_average import MovingAverage

META = torch.device("meta")
LENGTHS = [17, 300]
"""The second one is longer than the table of positions, which grows."""
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, as GPUs do; single numbers of the host are allowed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor) and each.dim()]
        if func not in _COPIES and len({tensor.device for tensor in tensors}) > 1:
            raise RuntimeError(f"{func} has tensors of several devices")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def model() -> Iterator[Transformer]:
    with OneDevice():
        yield Transformer(load_preset("tiny")).to(META).train()


@pytest.fixture
def learner(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> Learner:
    """Reads no outcome: the meta device has no values."""
    settings = TrainingSettings()  # there is no autocast on the meta device, so only the loss scale is that of fp16
    optimizer = build_optimizer(model, settings)
    gradients = GradientSum(model.parameters(), join_world(None, META))
    learner = Learner(model, optimizer, gradients, LossScale.start("fp16"), settings, average=MovingAverage(model, 0.9))
    learner.is_read_late = True
    monkeypatch.setattr(Learner, "read_outcome", lambda _: None)
    return learner


@pytest.mark.parametrize("length", LENGTHS)
def test_updates_leave_nothing_on_the_host(learner: Learner, length: int):
    """The second one depends on the outcome of the first, which nobody has read."""
    model, batch = learner.model, random_batch(4, length, 1000)
    for step in range(2):
        rate = learner.after_last_step(2e-3, 1e-3)
        result = learner.learn(step, {0: batch, 1: batch}, 2 * batch.num_target_tokens)
    assert isinstance(rate, torch.Tensor)  # the optimizer of the meta device does not take one
    assert rate.device == META
    moments = optimizer_tensors(model, learner.optimizer)
    assert moments.keys() == empty_moments(model).keys()
    assert isinstance(learner.average, MovingAverage)
    on_device = [*result.loss_sums, result.is_finite_on_device, *model.parameters(), *moments.values()]
    on_device += [learner.gradients.flat, learner.optimizer.found_inf, *learner.average.tensors.values()]
    assert {tensor.device for tensor in on_device} == {META}


def test_pieces_of_a_batch_leave_nothing_on_the_host(learner: Learner):
    batch = random_batch(4, 17, 1000)
    learner.passes.largest_size = 40
    learner.try_batch({0: batch})
    learner.gradients.start_again()
    result = learner.learn(0, {0: batch}, batch.num_target_tokens)
    assert result.loss_sums.smoothed.device == META


@pytest.mark.parametrize("length", LENGTHS)
def test_decoding_leaves_nothing_on_the_host(model: Transformer, length: int):
    batch = random_batch(4, length, 1000)
    source = torch.from_numpy(batch.source).to(META)
    state = model.eval().start_decoding(source, torch.from_numpy(batch.source_lengths))
    token = torch.zeros(4, dtype=torch.int64, device=META)
    for _ in range(3):
        token = model.decode_next(token, state).argmax(-1)
    kept = torch.zeros(2, dtype=torch.int64, device=META)
    state.select_targets(kept)
    state.select_sources(kept)
    assert model.decode_next(token.index_select(0, kept), state).device == META


def test_a_tensor_left_on_the_host_is_found(model: Transformer):
    model.encoder.layers[0].feed_forward.inner.weight = torch.nn.Parameter(torch.zeros(512, 128))
    with pytest.raises(RuntimeError, match="several devices"):
        teacher_forced_loss(model, random_batch(4, 17, 1000), "fp32", 0.1)
