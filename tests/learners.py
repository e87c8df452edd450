"""A learner so small that an update takes a millisecond, for tests of steps and checkpoints."""

import numpy as np
import torch

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.world import World
from dragoman.corpus.batching import pad_pairs
from dragoman.model.shape import ModelShape
from dragoman.model.transformer import Transformer
from dragoman.run.config import TrainingSettings
from dragoman.training.learner import Learner, LossScale, build_optimizer, set_learning_rate

SMALL_SHAPE = ModelShape(8, 16, 2, 1, 1, 0.1, 0.1, 0.1, source_vocab_size=12, target_vocab_size=12)


def small_learner(
    shape: ModelShape = SMALL_SHAPE, model_seed: int = 0, rate: float = 1e-2, **training: object
) -> Learner:
    """Builds a learner in a world of one rank; `training` are settings of the section of that name."""
    torch.manual_seed(model_seed)
    model = Transformer(shape)
    settings = TrainingSettings(**training)
    optimizer = build_optimizer(model, settings)
    set_learning_rate(optimizer, rate)
    gradients = GradientSum(model.parameters(), World())
    return Learner(model, optimizer, gradients, LossScale.start(settings.precision), settings)


def learn_steps(learner: Learner, *steps: int) -> None:
    """Makes updates with one sentence each, which depends on the step alone."""
    for step in steps:
        sentence = np.random.default_rng(step).integers(4, 12, 6)
        learner.learn(step, {0: pad_pairs([sentence], [sentence])}, 7)
