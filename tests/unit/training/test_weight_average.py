"""Averages of weights, against plain arithmetic."""

import torch
from learners import learn_steps, small_learner

from dragoman.training.weight_average import MovingAverage, WeightAverage


def test_a_moving_average_follows_its_formula():
    learner = small_learner()
    learner.average = MovingAverage(learner.model, decay=0.6)
    expected = {name: each.detach().double() for name, each in learner.model.named_parameters()}
    for number in range(1, 8):
        learn_steps(learner, number)
        decay = min(0.6, (1 + number) / (10 + number))
        for name, weight in learner.model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * weight.detach().double()
    assert learner.average.facts() == {"kind": "ema", "decay": 0.6, "updates": 7}
    for name, tensor in learner.average.tensors.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-7)


def test_an_update_that_overflowed_does_not_move_the_average():
    learner = small_learner()
    learner.average = MovingAverage(learner.model, decay=0.6)
    learner.optimizer.param_groups[0]["params"][0].data.fill_(float("nan"))
    before = {name: tensor.clone() for name, tensor in learner.average.tensors.items()}
    learn_steps(learner, 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.average.tensors.items())


def test_a_model_gets_its_own_weights_back():
    model = small_learner().model
    own = {name: each.data_ptr() for name, each in model.named_parameters()}
    other = dict(small_learner(model_seed=1).model.named_parameters())
    average = WeightAverage.of_checkpoints({name: each.detach() for name, each in other.items()}, [1, 2])
    try:
        with average.used_by(model):
            assert all(torch.equal(each, other[name]) for name, each in model.named_parameters())
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert {name: each.data_ptr() for name, each in model.named_parameters()} == own


def test_frozen_weights_are_not_touched():
    model = small_learner().model
    model.target_embedding.requires_grad_(False)
    average = MovingAverage(model, decay=0.9)
    frozen = average.tensors["target_embedding"].clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    average.update()
    assert torch.equal(average.tensors["target_embedding"], frozen)
    assert not torch.equal(average.tensors["encoder.norm.weight"], model.encoder.norm.weight)
