"""Are updates right where something is odd: a gradient that is not finite, a batch in pieces, an outcome read late?"""

from dataclasses import replace

import torch
from torch import Tensor

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.world import join_world
from dragoman.model.shape import ModelShape, load_preset
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.selftest.numerics import random_batch
from dragoman.selftest.stage_result import StageResult
from dragoman.training.learner import Learner, LossScale, build_optimizer, set_learning_rate

LARGEST_DIFFERENCE = 1e-3
"""Relative, of gradients and weights: kernels may add up in another order."""
_VOCAB_SIZE = 500
_NUM_STEPS = 4
_TOO_LARGE_SCALE = 2.0**140
"""A loss scale with which the gradients of two steps overflow."""


def new_learner(shape: ModelShape, device: torch.device, settings: TrainingSettings, rate: float = 1e-3) -> Learner:
    """Builds a learner of one worker, the same one each time."""
    torch.manual_seed(settings.seed)
    model = Transformer(shape).to(device)
    optimizer = build_optimizer(model, settings)
    set_learning_rate(optimizer, rate)
    gradients = GradientSum(model.parameters(), join_world(None, device))
    return Learner(model, optimizer, gradients, LossScale.start(settings.precision), settings)


def check_updates(device: torch.device) -> StageResult:
    """Tries what is seldom in a run: skipped updates, pieces of a batch, and outcomes that are read a step later."""
    figures = {
        "pieces": _difference_of_pieces(device),
        "read_late": _difference_when_read_late(device),
    }
    if not _is_skipped(device):
        return StageResult("failed", "A gradient that is not finite changed weights or moments.", figures)
    wrong = [name for name, difference in figures.items() if not difference <= LARGEST_DIFFERENCE]
    if wrong:
        said = {"pieces": "a batch computed in pieces", "read_late": "steps whose outcome is read late"}
        why = " and ".join(f"{said[name]} (relative difference {figures[name]:.1e})" for name in wrong)
        return StageResult("failed", f"Other updates than expected from {why}.", figures)
    why = (
        "A gradient that is not finite changes nothing; a batch in pieces has the gradient of the whole "
        f"({figures['pieces']:.1e})."
    )
    return StageResult("passed", why, figures)


def _shape() -> ModelShape:
    return replace(
        load_preset("tiny"),
        source_vocab_size=_VOCAB_SIZE,
        target_vocab_size=_VOCAB_SIZE,
        dropout=0.0,
        attention_dropout=0.0,
        relu_dropout=0.0,
    )


def _learn(learner: Learner, step: int) -> None:
    batch = random_batch(12, 17, _VOCAB_SIZE, seed=step + 1)
    learner.learn(step, {0: batch}, batch.num_target_tokens)


def _is_skipped(device: torch.device) -> bool:
    """Whether an update after a NaN changes no bit."""
    learner = new_learner(_shape(), device, TrainingSettings())
    _learn(learner, 0)
    with torch.no_grad():
        next(iter(learner.model.decoder.norm.parameters()))[0] = torch.nan
    before = [tensor.clone() for tensor in _tensors(learner)]
    _learn(learner, 1)
    pairs = zip(before, _tensors(learner), strict=True)
    return all(torch.equal(old.nan_to_num(0.0), new.nan_to_num(0.0)) for old, new in pairs)


def _difference_of_pieces(device: torch.device) -> float:
    whole, cut = (new_learner(_shape(), device, TrainingSettings()) for _ in range(2))
    cut.passes.largest_size = 100
    for learner in (whole, cut):
        _learn(learner, 0)
    return _difference(whole.gradients.flat, cut.gradients.flat)


def _difference_when_read_late(device: torch.device) -> float:
    """Compares weights after steps of which the first ones are skipped, as fp16 does."""
    learners = []
    for is_late in (False, True):
        learner = new_learner(_shape(), device, TrainingSettings())
        learner.loss_scale = LossScale(is_dynamic=True, value=_TOO_LARGE_SCALE)
        learner.is_read_late = is_late
        for step in range(_NUM_STEPS):
            _learn(learner, step)
        learners.append(torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()]))
    return _difference(*learners)


def _tensors(learner: Learner) -> list[Tensor]:
    moments = [tensor for state in learner.optimizer.state.values() for tensor in state.values()]
    return [*(parameter.detach() for parameter in learner.model.parameters()), *moments]


def _difference(expected: Tensor, found: Tensor) -> float:
    return float(((found - expected).norm() / expected.norm()).nan_to_num(nan=float("inf")))
