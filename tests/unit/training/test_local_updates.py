"""Replicas that learn apart: averages as computed by hand, and nothing is lost where a run is stopped between them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from learners import small_learner
from torch import Tensor

from dragoman.cluster.replica_exchange import ReplicaExchange
from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.world import World
from dragoman.corpus.batching import MicroBatch, StepPlan, pad_pairs
from dragoman.run.synchronisation import Synchronisation
from dragoman.training.learner import Learner, optimizer_tensors, set_learning_rate
from dragoman.training.local_updates import LocalUpdates

NUM_WORKERS, NUM_REPLICAS = 4, 2
LENGTHS = (3, 5, 4, 6)
PLAIN = Synchronisation("local", NUM_REPLICAS, interval=1, max_interval=1)
"""An average in float32 after every step."""


def batch_of(worker: int, step: int) -> MicroBatch:
    """Returns one sentence to copy, which depends on the virtual worker and the step alone."""
    sentence = np.random.default_rng([worker, step]).integers(4, 12, LENGTHS[worker])
    return pad_pairs([sentence], [sentence])


def plan_of(batches: dict[int, MicroBatch]) -> StepPlan:
    by_worker = tuple(batches[each].num_target_tokens if each in batches else 0 for each in range(NUM_WORKERS))
    return StepPlan((), sum(by_worker), 0, 0, by_worker)


def build(
    plan: Synchronisation, rate_share: Callable[[], float] = lambda: 1.0, model_seed: int = 0
) -> tuple[Learner, LocalUpdates]:
    learner = small_learner(model_seed=model_seed)
    exchange = ReplicaExchange(ReplicaLayout.of_run(NUM_WORKERS, plan.replicas, 1), World())
    return learner, LocalUpdates(learner, plan, exchange, World(), rate_share)


def learn(updates: LocalUpdates, *steps: int, workers: Sequence[int] = range(NUM_WORKERS)) -> None:
    for step in steps:
        batches = {worker: batch_of(worker, step) for worker in workers}
        updates.learn(step, batches, plan_of(batches))


def learn_alone(learner: Learner, replica: int, *steps: int) -> None:
    """Makes the updates of one replica as a run of its own would."""
    for step in steps:
        batches = {worker: batch_of(worker, step) for worker in (2 * replica, 2 * replica + 1)}
        learner.learn(step, batches, sum(batch.num_target_tokens for batch in batches.values()))


def weights(learner: Learner) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


def weights_of(updates: LocalUpdates) -> list[list[Tensor]]:
    """Returns the weights of each replica."""
    return [[view.clone() for view in updates._views(replica.weights)] for replica in updates._own.values()]


def set_weights(learner: Learner, values: Sequence[Tensor]) -> None:
    for parameter, value in zip(learner.model.parameters(), values, strict=True):
        parameter.data.copy_(value)


def mean(several: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(each).mean(0) for each in zip(*several, strict=True)]


def bits(tensors: Sequence[Tensor]) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


# Averages


def test_an_average_after_every_step_is_that_of_two_runs_averaged_by_hand():
    _, updates = build(PLAIN)
    by_hand = [small_learner(), small_learner()]
    for step in range(4):
        learn(updates, step)
        for replica, learner in enumerate(by_hand):
            learn_alone(learner, replica, step)
        average = mean([weights(learner) for learner in by_hand])
        for learner in by_hand:  # each keeps its own moments
            set_weights(learner, average)
        for found in weights_of(updates):
            assert_near(found, average)


def test_between_averages_each_replica_learns_as_a_run_of_its_own():
    _, updates = build(replace(PLAIN, interval=4, max_interval=4))
    alone = [small_learner(), small_learner()]
    for step in range(3):
        learn(updates, step)
        for replica, learner in enumerate(alone):
            learn_alone(learner, replica, step)
            assert bits(weights_of(updates)[replica]) == bits(weights(learner))
    learn(updates, 3)
    first, second = weights_of(updates)
    assert bits(first) == bits(second)


def test_a_run_begins_with_exact_sums():
    learner, updates = build(replace(PLAIN, together_steps=3))
    exact = small_learner()
    for step in range(3):
        learn(updates, step)
        batches = {worker: batch_of(worker, step) for worker in range(NUM_WORKERS)}
        exact.learn(step, batches, plan_of(batches).num_target_tokens)
    assert bits(weights(learner)) == bits(weights(exact))
    assert not updates.has_state
    assert updates.collect([0]) == {}
    learn(updates, 3)
    assert updates.has_state
    # The moments of the steps together are those that both replicas begin with.
    assert updates.progress.is_apart
    assert [replica.num_updates for replica in updates._own.values()] == [4, 4]


def test_with_overlap_replicas_keep_what_they_learned_meanwhile_and_go_half_of_the_way_to_the_mean():
    interval = 3
    _, updates = build(replace(PLAIN, interval=interval, max_interval=interval, overlap=True))
    by_hand = [small_learner(), small_learner()]
    anchor = weights(by_hand[0])
    sent: list[list[Tensor]] = []
    for step in range(4 * interval):
        learn(updates, step)
        for replica, learner in enumerate(by_hand):
            learn_alone(learner, replica, step)
        if (step + 1) % interval == 0:
            if sent:
                moved = mean(sent)
                for learner, own in zip(by_hand, sent, strict=True):
                    now = zip(weights(learner), moved, own, strict=True)
                    set_weights(learner, [each + (common - mine) / 2 for each, common, mine in now])
                anchor = [each + common for each, common in zip(anchor, moved, strict=True)]
            sent = [[now - old for now, old in zip(weights(each), anchor, strict=True)] for each in by_hand]
        for found, learner in zip(weights_of(updates), by_hand, strict=True):
            assert_near(found, weights(learner))
    first, second = weights_of(updates)
    assert bits(first) != bits(second)


def test_diloco_moves_the_anchor_as_sgd_with_nesterov_momentum_does():
    plan = replace(PLAIN, strategy="diloco", interval=2, max_interval=2, outer_learning_rate=0.7, outer_momentum=0.9)
    _, updates = build(plan)
    by_hand = [small_learner(), small_learner()]
    anchor = [torch.nn.Parameter(each) for each in weights(by_hand[0])]
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
    for step in range(6):
        learn(updates, step)
        for replica, learner in enumerate(by_hand):
            learn_alone(learner, replica, step)
        if step % 2:
            average = mean([weights(learner) for learner in by_hand])
            for parameter, each in zip(anchor, average, strict=True):
                parameter.grad = parameter.detach() - each
            outer.step()
            for learner in by_hand:
                set_weights(learner, [parameter.detach() for parameter in anchor])
    for found in weights_of(updates):
        assert_near(found, [parameter.detach() for parameter in anchor])


def test_fragments_are_averaged_in_turn_and_cover_all_weights():
    learner, updates = build(replace(PLAIN, interval=3, max_interval=3, fragments=3))
    num_values = learner.gradients.flat.numel()
    covered = sorted((part.start, part.stop) for part in updates._fragments)
    assert covered[0][0] == 0
    assert covered[-1][1] == num_values
    assert all(end == begin for (_, end), (begin, _) in pairwise(covered))
    for step in range(6):
        learn(updates, step)
        one, other = (replica.weights for replica in updates._own.values())
        part = updates._fragments[step % 3]
        assert torch.equal(one[part], other[part])
        assert not torch.equal(one, other)


@pytest.mark.parametrize("wire", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("fragments", [1, 2])
def test_fewer_bytes_stay_near_the_exact_average(wire, fragments):
    plan = replace(PLAIN, interval=2, max_interval=2, fragments=fragments)
    (_, exact), (_, rounded) = build(plan), build(replace(plan, wire=wire))
    learn(exact, *range(8))
    learn(rounded, *range(8))
    for one, other in zip(weights_of(rounded), weights_of(exact), strict=True):
        for found, expected in zip(one, other, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-2, rtol=0)
    assert bits(weights_of(rounded)[0]) != bits(weights_of(exact)[0])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_replica_without_text_waits_for_the_next_step(overlap):
    _, updates = build(replace(PLAIN, interval=2, max_interval=2, overlap=overlap))
    learn(updates, 0)
    before = weights_of(updates)
    learn(updates, 1, workers=[0, 1])  # the exchange takes place all the same
    assert [replica.num_updates for replica in updates._own.values()] == [2, 1]
    if overlap:
        assert bits(weights_of(updates)[1]) == bits(before[1])
    else:
        assert bits(weights_of(updates)[1]) == bits(weights_of(updates)[0])
    learn(updates, 2, 3)
    assert [replica.num_updates for replica in updates._own.values()] == [4, 3]


def test_the_loss_of_a_step_is_that_of_all_replicas():
    _, updates = build(PLAIN)
    batches = {worker: batch_of(worker, 0) for worker in range(NUM_WORKERS)}
    result = updates.learn(0, batches, plan_of(batches))
    alone = [small_learner().learn(0, {worker: batches[worker]}, 1).own_loss for worker in range(NUM_WORKERS)]
    assert result.own_loss == pytest.approx(sum(alone), rel=1e-5)
    assert float(result.loss_sums.smoothed) == pytest.approx(sum(alone), rel=1e-5)


def test_replicas_apart_learn_at_a_rate_of_their_own():
    learner, updates = build(replace(PLAIN, interval=8, max_interval=8, together_steps=1, rate_factor=3.0))
    alone = small_learner()
    for step in range(3):
        set_learning_rate(learner.optimizer, 1e-2)
        learn(updates, step)
        set_learning_rate(alone.optimizer, 3e-2 if step else 1e-2)
        if step:
            learn_alone(alone, 0, step)
        else:
            batches = {worker: batch_of(worker, 0) for worker in range(NUM_WORKERS)}
            alone.learn(0, batches, plan_of(batches).num_target_tokens)
    assert bits(weights_of(updates)[0]) == bits(weights(alone))


def test_replicas_meet_less_often_as_the_learning_rate_falls():
    share = 1.0
    _, updates = build(replace(PLAIN, interval=2, max_interval=20), lambda: share)
    meetings = []
    for step in range(22):
        share = 1.0 if step < 5 else 0.5
        learn(updates, step)
        first, second = weights_of(updates)
        if bits(first) == bits(second):
            meetings.append(step + 1)
    assert meetings == [2, 4, 6, 14, 22]


# Stopped and continued

PLANS = [
    Synchronisation(
        "diloco" if is_diloco else "local",
        NUM_REPLICAS,
        3,
        3,
        together_steps=1,
        wire=wire,
        fragments=fragments,
        overlap=overlap,
        outer_learning_rate=0.7 if is_diloco else 1.0,
        outer_momentum=0.9 if is_diloco else 0.0,
    )
    for fragments, overlap, wire, is_diloco in product((1, 3), (False, True), ("fp32", "int8"), (False, True))
]


def name_of(plan: Synchronisation) -> str:
    return f"{plan.strategy}-{plan.wire}-{plan.fragments}{'-overlap' if plan.overlap else ''}"


def stop(updates: LocalUpdates) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns what a checkpoint holds, as it is read again."""
    tensors = {name: tensor.clone() for name, tensor in updates.collect([0]).items()}
    return json.loads(json.dumps(updates.facts())), tensors


@pytest.mark.parametrize("plan", PLANS, ids=name_of)
def test_a_run_stopped_anywhere_continues_bit_for_bit(plan):
    num_steps = 8
    (_, whole), (_, broken) = build(plan), build(plan)
    learn(whole, *range(num_steps))
    _, expected = stop(whole)
    last = 0
    for stop_step in (3, 6):
        learn(broken, *range(last, stop_step))
        last = stop_step
        facts, tensors = stop(broken)
        assert {name: tensor.shape for name, tensor in broken.expected_tensors(facts).items()} == {
            name: tensor.shape for name, tensor in tensors.items()
        }
        # Nothing may come from anywhere else: this learner begins with other weights.
        _, resumed = build(plan, model_seed=stop_step)
        resumed.restore(facts, tensors)
        learn(resumed, *range(stop_step, num_steps))
        _, found = stop(resumed)
        assert found.keys() == expected.keys()
        assert [name for name in found if not torch.equal(found[name], expected[name])] == []
        assert resumed.facts() == whole.facts()


@pytest.mark.parametrize("plan", PLANS, ids=name_of)
def test_a_checkpoint_is_as_large_as_expected_before_the_run(plan):
    learner, updates = build(plan)
    learn(updates, *range(4))
    facts, tensors = stop(updates)
    assert facts["is_travelling"] == plan.overlap
    num_values = sum(tensor.numel() for tensor in tensors.values())
    # Fragments are whole blocks of 256 values, so that the three of this model differ in size.
    assert num_values / learner.gradients.flat.numel() == pytest.approx(plan.checkpoint_values, rel=0.05)


def test_a_checkpoint_in_the_middle_changes_nothing():
    plan = replace(PLAIN, interval=4, max_interval=4, overlap=True, wire="int8")
    (_, whole), (_, saved) = build(plan), build(plan)
    for step in range(10):
        learn(whole, step)
        learn(saved, step)
        saved.collect([0])
    assert [bits(each) for each in weights_of(saved)] == [bits(each) for each in weights_of(whole)]


def test_a_checkpoint_in_the_middle_of_an_exchange_says_so():
    _, updates = build(replace(PLAIN, interval=3, max_interval=3, overlap=True))
    learn(updates, 0, 1)
    assert "arrived" not in stop(updates)[1]
    learn(updates, 2)
    facts, tensors = stop(updates)
    assert facts["is_travelling"]
    assert {"arrived", "sent/0", "sent/1"} <= tensors.keys()


def test_a_run_stopped_while_together_parts_later():
    plan = replace(PLAIN, together_steps=3, interval=2, max_interval=2)
    learner, updates = build(plan)
    learn(updates, 0)
    facts, tensors = stop(updates)
    assert tensors == {}
    assert updates.expected_tensors(facts) == {}
    updates.restore(facts, {})  # on the same learner, as its own files restore it
    learn(updates, *range(1, 7))
    _, whole = build(plan)
    learn(whole, *range(7))
    assert [bits(each) for each in weights_of(updates)] == [bits(each) for each in weights_of(whole)]
    assert len(list(learner.model.parameters())) == len(weights_of(whole)[0])


# Weights that all agree on


@pytest.mark.parametrize("overlap", [False, True])
def test_the_agreed_weights_are_the_mean_and_learning_continues_as_before(overlap):
    plan = replace(PLAIN, interval=3, max_interval=3, overlap=overlap)
    (learner, updates), (_, undisturbed) = build(plan), build(plan)
    for step in range(8):
        learn(updates, step)
        learn(undisturbed, step)
        before = weights_of(updates)
        with updates.agreed_weights():
            assert_near(weights(learner), mean(before))
        assert [bits(each) for each in weights_of(updates)] == [bits(each) for each in before]
        assert bits(weights(learner)) in [bits(each) for each in before]
    assert [bits(each) for each in weights_of(updates)] == [bits(each) for each in weights_of(undisturbed)]


def test_an_error_while_weights_are_agreed_gives_each_replica_its_own_back():
    learner, updates = build(replace(PLAIN, interval=8, max_interval=8))
    learn(updates, 0)
    before = weights_of(updates)
    with pytest.raises(RuntimeError), updates.agreed_weights():
        raise RuntimeError
    assert bits(weights(learner)) == bits(before[0])


def test_translators_get_the_mean_by_parameter_name():
    learner, updates = build(replace(PLAIN, interval=8, max_interval=8))
    learn(updates, 0, 1)
    agreed, moments = updates.agreed_tensors(updates.collect([0]))
    assert list(agreed) == [name for name, _ in learner.model.named_parameters()]
    assert_near(list(agreed.values()), mean(weights_of(updates)))
    first = updates._own[0].moments["exp_avg"]
    assert bits([moments[f"exp_avg/{name}"] for name in agreed]) == bits(updates._views(first))
    assert moments.keys() == optimizer_tensors(learner.model, learner.optimizer).keys()


# Stepping back


def test_a_shorter_interval_begins_at_once():
    _, updates = build(replace(PLAIN, interval=64, max_interval=64))
    learn(updates, 0)
    assert "every 16 steps" in (updates.judge((1, float("nan"), 1.0), lambda _step: 1.0) or "")
    learn(updates, *range(1, 16))
    first, second = weights_of(updates)
    assert bits(first) != bits(second)
    learn(updates, 16)
    first, second = weights_of(updates)
    assert bits(first) == bits(second)


@pytest.mark.parametrize("decision", ["the dev loss is nan", None])
def test_the_first_rank_decides_for_all_whether_replicas_hurt_each_other(monkeypatch, decision):
    """Here for one that sees it the other way round, as its processor may round the expected loss differently."""
    _, updates = build(replace(PLAIN, interval=8, max_interval=8))
    learn(updates, 0)
    asked = []
    monkeypatch.setattr(World, "is_first", False)
    monkeypatch.setattr(World, "first_error", lambda _world, own: asked.append(own) or decision)
    loss = 1.0 if decision else float("nan")
    message = updates.judge((1, loss, loss), lambda _step: 1.0)
    assert asked == [None]
    assert updates.progress.num_steps_back == (1 if decision else 0)
    assert (message or "").startswith(f"Replicas seem to hurt each other: {decision}. " if decision else "")


def test_stepping_back_shortens_the_interval_and_then_comes_together():
    learner, updates = build(replace(PLAIN, interval=8, max_interval=8, wire="int8", overlap=True))
    learn(updates, *range(9))
    assert updates.step_back() == "From now on, weights are averaged every 2 steps."
    assert updates.interval == 2
    assert updates.progress.is_apart
    learn(updates, *range(9, 19))
    facts, _ = stop(updates)
    assert facts["num_steps_back"] == 1
    assert updates.step_back() == "From now on, gradients are summed at every step."
    assert not updates.has_state
    assert not updates.progress.is_travelling
    assert updates.collect([0]) == {}
    # From here on it is a run with exact sums, from the weights and moments that it has now.
    exact = small_learner()
    set_weights(exact, weights(learner))
    for parameter, state in zip(
        exact.model.parameters(), [learner.optimizer.state[each] for each in learner.model.parameters()], strict=True
    ):
        exact.optimizer.state[parameter] = {name: tensor.clone() for name, tensor in state.items()}
    for step in range(19, 21):
        learn(updates, step)
        batches = {worker: batch_of(worker, step) for worker in range(NUM_WORKERS)}
        exact.learn(step, batches, plan_of(batches).num_target_tokens)
    assert bits(weights(learner)) == bits(weights(exact))


def test_after_stepping_back_fewer_fragments_cover_all_weights_in_the_shorter_interval():
    plan = replace(PLAIN, interval=16, max_interval=16, fragments=16, overlap=True)
    learner, updates = build(plan)
    whole = len(updates._fragments)
    learn(updates, *range(6))
    assert updates.progress.is_travelling
    assert updates.step_back() == "From now on, weights are averaged every 4 steps."
    assert len(updates._fragments) == min(4, whole)
    assert not updates.progress.is_travelling
    facts, tensors = stop(updates)
    _, other = build(plan)
    other.restore(facts, tensors)
    for each in (updates, other):
        learn(each, *range(6, 12))
    assert updates.progress == other.progress
    assert bits(weights(learner)) == bits([parameter.data for parameter in other._parameters])


@pytest.mark.parametrize("overlap", [False, True])
def test_coming_together_takes_the_mean_of_weights_and_moments(overlap):
    learner, updates = build(replace(PLAIN, interval=4, max_interval=4, overlap=overlap))
    learn(updates, *range(6))
    expected = mean(weights_of(updates))
    moments = [
        mean([updates._views(replica.moments[name]) for replica in updates._own.values()])
        for name in ("exp_avg", "exp_avg_sq")
    ]
    assert updates.step_back() == "From now on, gradients are summed at every step."
    # An exchange that arrives moves all replicas by as much as it moves their mean: not at all.
    assert_near(weights(learner), expected)
    found = optimizer_tensors(learner.model, learner.optimizer)
    names = [name for name, _ in learner.model.named_parameters()]
    for name, values in zip(("exp_avg", "exp_avg_sq"), moments, strict=True):
        assert_near([found[f"{name}/{each}"] for each in names], values)


def test_coming_together_counts_the_updates_of_the_replica_that_made_most():
    learner, updates = build(replace(PLAIN, interval=4, max_interval=4))
    learn(updates, 0)
    learn(updates, 1, workers=[2, 3])
    updates.step_back()
    counts = {float(state["step"]) for state in learner.optimizer.state.values()}
    assert counts == {2.0}


def test_a_run_that_came_together_stays_so_when_it_is_resumed():
    learner, updates = build(replace(PLAIN, interval=4, max_interval=4))
    learn(updates, *range(3))
    updates.step_back()
    facts, tensors = stop(updates)
    assert tensors == {}
    updates.restore(facts, tensors)
    learn(updates, 3)
    assert not updates.progress.is_apart
    assert learner.gradients.group.size == 1
