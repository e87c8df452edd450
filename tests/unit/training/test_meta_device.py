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
from dragoman.training.learner import build_optimizer, empty_moments, optimizer_tensors, set_learning_rate

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


@pytest.mark.parametrize("length", LENGTHS)
def test_an_update_leaves_nothing_on_the_host(model: Transformer, length: int):
    gradients = GradientSum(model.parameters(), join_world(None, META))
    optimizer = build_optimizer(model, TrainingSettings())
    set_learning_rate(optimizer, 1e-3)
    gradients.start_step()
    gradients.expect_last_backward()
    sums = teacher_forced_loss(model, random_batch(4, length, 1000), "fp32", 0.1)
    sums.smoothed.backward()
    summed = gradients.finish()
    norm = torch.stack([torch.linalg.vector_norm(summed), sums.smoothed.detach()])
    summed.mul_(0.5)
    optimizer.step()
    assert {tensor.device for tensor in (norm, summed, sums.plain, *model.parameters())} == {META}
    moments = optimizer_tensors(model, optimizer)
    assert moments.keys() == empty_moments(model).keys()
    assert {tensor.device for tensor in moments.values()} == {META}


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
