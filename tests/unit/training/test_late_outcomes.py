"""Outcomes that are read a step later, as on a GPU: the same updates, scales and records as when read at once."""

import math

import pytest
import torch
from learners import small_learner

from dragoman.corpus.batching import MicroBatch, pad_pairs
from dragoman.model.loss import LossSums
from dragoman.training.learner import Learner, set_learning_rate
from dragoman.training.step_result import StepResult
from dragoman.training.weight_average import MovingAverage

NUM_STEPS = 9


def batch_of(step: int) -> MicroBatch:
    generator = torch.Generator().manual_seed(step)
    sentences = [torch.randint(4, 12, (5,), generator=generator).numpy() for _ in range(3)]
    return pad_pairs(sentences, sentences)


def build(is_late: bool, precision: str = "fp16", **options: object) -> Learner:
    learner = small_learner(precision=precision, **options)
    learner.is_read_late = is_late
    learner.average = MovingAverage(learner.model, 0.9)
    if learner.loss_scale.is_dynamic:
        learner.loss_scale.value = 2.0**26  # the first steps overflow
    return learner


def learn(learner: Learner, step: int) -> StepResult:
    return learner.learn(step, {0: batch_of(step)}, 18)


def everything(learner: Learner) -> list[bytes]:
    assert isinstance(learner.average, MovingAverage)
    moments = [tensor for state in learner.optimizer.state.values() for tensor in state.values()]
    tensors = [*learner.model.parameters(), *moments, *learner.average.tensors.values()]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_reading_late_changes_no_bit(precision):
    """In fp16 some steps are skipped, and the scale of the next one follows on the device."""
    at_once, late = build(False, precision), build(True, precision)
    results = [[learn(learner, step) for step in range(NUM_STEPS)] for learner in (at_once, late)]
    late.read_outcome()
    assert everything(at_once) == everything(late)
    assert at_once.loss_scale == late.loss_scale
    assert at_once.average.facts() == late.average.facts()
    expected, found = ([(each.is_finite, each.own_loss) for each in steps] for steps in results)
    assert repr(found) == repr(expected)
    is_finite = [each.is_finite for each in results[0]]
    assert all(is_finite) if precision == "fp32" else (not is_finite[0] and is_finite[-1])


def test_a_late_learner_reads_the_step_before_and_no_other(monkeypatch):
    late = build(True)
    read: list[int] = []
    original = Learner.read_outcome
    monkeypatch.setattr(
        Learner, "read_outcome", lambda self: (read.append(1) if self._unread else None, original(self))[1]
    )
    learn(late, 0)
    assert not read
    learn(late, 1)
    assert len(read) == 1


def test_the_rate_follows_an_outcome_that_is_not_known_yet():
    """As the trainer does it: a skipped step does not count in the schedule."""
    at_once, late = build(False), build(True)
    num_updates = 0
    for step in range(NUM_STEPS):
        set_learning_rate(at_once.optimizer, 1e-3 * (1 + num_updates))
        num_updates += learn(at_once, step).is_finite
    assumed, results = 0, []
    for step in range(NUM_STEPS):
        rate = late.after_last_step(1e-3 * (1 + assumed), 1e-3 * max(1, assumed))
        set_learning_rate(late.optimizer, rate)
        results.append(learn(late, step))
        assumed += 1
        if step:
            assumed -= not results[step - 1].is_finite
    assert 0 < num_updates < NUM_STEPS
    assert [state["exp_avg"].sum() for state in at_once.optimizer.state.values()] == [
        state["exp_avg"].sum() for state in late.optimizer.state.values()
    ]
    assert everything(at_once) == everything(late)


@pytest.mark.parametrize("norm", [1.5, math.nan, math.inf])
def test_a_number_is_chosen_by_the_outcome(norm):
    zero = torch.zeros(())
    result = StepResult(LossSums(zero, zero), torch.tensor(norm, dtype=torch.float64))
    assert float(result.choose(2.0**30, 0.1)) == (2.0**30 if math.isfinite(norm) else 0.1)


def test_results_of_replicas_are_joined_and_none_is_nothing():
    one, three = (torch.tensor(value) for value in (1.0, 3.0))
    made = [StepResult(LossSums(loss, loss), loss.double()) for loss in (one, three)]
    joined = StepResult.join(made, torch.device("cpu"))
    assert (joined.gradient_norm, joined.own_loss, float(joined.loss_sums.plain)) == (2.0, 4.0, 4.0)
    nothing = StepResult.join([], torch.device("cpu"))
    assert (nothing.gradient_norm, nothing.own_loss, nothing.is_finite) == (0.0, 0.0, True)
