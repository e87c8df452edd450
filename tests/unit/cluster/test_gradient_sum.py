"""Gradients in one flat buffer and a world of one, without a second process."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from torch import nn

from dragoman.cluster.gradient_sum import ALIGNMENT_ELEMENTS, GradientSum
from dragoman.cluster.world import World, join_world, leave_world

WORLD_OF_TWO = World(rank=0, size=2)


def make_parameters(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(size)) for size in sizes]


def test_gradients_are_views_of_the_flat_buffer():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    gradients = GradientSum(model.parameters(), World())
    gradients.start_step()
    model(torch.randn(4, 3)).pow(2).sum().backward()
    storage = gradients.flat.untyped_storage().data_ptr()
    for parameter in model.parameters():
        assert parameter.grad.untyped_storage().data_ptr() == storage
        assert parameter.grad.any()
    total = sum(float(parameter.grad.sum()) for parameter in model.parameters())
    assert float(gradients.flat.sum()) == pytest.approx(total, rel=1e-4, abs=1e-5)


def test_gradients_equal_those_without_the_buffer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    inputs = torch.randn(4, 3)
    expected = torch.autograd.grad(model(inputs).pow(2).sum(), list(model.parameters()))
    gradients = GradientSum(model.parameters(), World())
    gradients.start_step()
    model(inputs).pow(2).sum().backward()
    assert gradients.finish() is gradients.flat
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_backward_adds_up_within_a_step_and_a_new_step_begins_at_zero():
    parameter = nn.Parameter(torch.ones(3))
    gradients = GradientSum([parameter], World())
    gradients.start_step()
    for _ in range(2):
        (2 * parameter).sum().backward()
    assert parameter.grad.tolist() == [4.0] * 3
    gradients.start_step()
    assert parameter.grad.tolist() == [0.0] * 3


def test_changing_the_flat_buffer_changes_what_the_optimizer_sees():
    parameter = nn.Parameter(torch.ones(3))
    gradients = GradientSum([parameter], World())
    gradients.flat.fill_(7.0)
    assert parameter.grad.tolist() == [7.0] * 3


def test_every_gradient_is_aligned():
    parameters = make_parameters(1, 17, 16, 5)
    gradients = GradientSum(parameters, World())
    for parameter in parameters:
        assert parameter.grad.storage_offset() % ALIGNMENT_ELEMENTS == 0
    assert gradients.flat.numel() == 16 + 32 + 16 + 16


def test_gradients_are_in_the_reverse_order_of_the_model():
    parameters = make_parameters(4, 4, 4)
    GradientSum(parameters, World())
    offsets = [parameter.grad.storage_offset() for parameter in parameters]
    assert offsets == sorted(offsets, reverse=True)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(64, 2_000))
def test_buckets_cover_the_buffer_once_and_split_no_gradient(sizes, bucket_bytes):
    parameters = make_parameters(*sizes)
    gradients = GradientSum(parameters, WORLD_OF_TWO, bucket_bytes)
    buckets = gradients._buckets
    assert sum(bucket.numel() for bucket in buckets) == gradients.flat.numel()
    assert all(bucket.numel() for bucket in buckets)
    begins = [bucket.storage_offset() for bucket in buckets]
    for parameter in parameters:
        begin, end = parameter.grad.storage_offset(), parameter.grad.storage_offset() + parameter.numel()
        holders = [b for b, bucket in zip(begins, buckets, strict=True) if b <= begin and end <= b + bucket.numel()]
        assert len(holders) == 1
    assert sum(gradients._bucket_sizes) == len(parameters)
    assert len(gradients._bucket_sizes) == len(buckets)


class FakeWork:
    def wait(self) -> None:
        pass


@pytest.fixture
def sent(monkeypatch):
    """Collects the sizes of buckets given to all-reduce, which doubles them like an equal peer."""
    sizes: list[int] = []

    def all_reduce(bucket: torch.Tensor, group: object, async_op: bool) -> FakeWork:
        assert async_op
        assert group is None  # all ranks
        sizes.append(bucket.numel())
        bucket.mul_(2)
        return FakeWork()

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    return sizes


def test_buckets_are_sent_in_order_during_the_last_backward_and_each_once(sent):
    first, last = make_parameters(16, 32)
    gradients = GradientSum([first, last], WORLD_OF_TWO, bucket_bytes=64)
    for _ in range(2):
        sent.clear()
        gradients.start_step()
        (first.sum() + last.sum()).backward()
        assert sent == []  # more is to come
        gradients.expect_last_backward()
        (first.sum() + last.sum()).backward()
        assert sent == [32, 16]
        gradients.finish()
        assert sent == [32, 16]
        assert first.grad.tolist() == [4.0] * 16
        assert last.grad.tolist() == [4.0] * 32


def test_a_rank_without_a_batch_still_sends_every_bucket(sent):
    parameters = make_parameters(16, 32, 16)
    gradients = GradientSum(parameters, WORLD_OF_TWO, bucket_bytes=64)
    gradients.start_step()
    gradients.finish()
    assert sum(sent) == gradients.flat.numel()


def test_a_world_of_one_sends_nothing(sent):
    (parameter,) = make_parameters(16)
    gradients = GradientSum([parameter], World())
    gradients.start_step()
    gradients.expect_last_backward()
    parameter.sum().backward()
    gradients.finish()
    assert sent == []
    assert parameter.grad.tolist() == [1.0] * 16


def test_a_world_of_one_returns_its_own_values():
    world = World()
    assert world.is_first
    assert world.sum_numbers([1.5, -2.0]) == [1.5, -2.0]
    assert world.largest_numbers([1.5, -2.0]) == [1.5, -2.0]
    assert world.gather_texts([(2, "c"), (0, "a"), (1, "b")]) == ["a", "b", "c"]
    assert world.start_vote(3).result() == 3


def test_without_a_rendezvous_a_process_is_alone():
    world = join_world(None)
    assert (world.rank, world.size, world.device) == (0, 1, torch.device("cpu"))
    leave_world(world)


def test_only_rank_zero_is_first():
    assert not World(rank=1, size=2).is_first


# Memory that ends in the middle of backward


def build_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))


def inputs_of(rank: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(rank))


def start_again_on_the_first_rank(world: World) -> dict[str, Any]:
    """Fails when gradients of the last layers are sent already, and computes the batch again in halves."""
    model, inputs = build_layers(), inputs_of(world.rank)
    gradients = GradientSum(model.parameters(), world, bucket_bytes=4 * 72)
    num_sent = 0
    for _ in range(2):  # the second step begins as if nothing had happened
        gradients.start_step()
        gradients.expect_last_backward()
        if world.rank == 0:
            hidden = model[:2](inputs)
            hidden.register_hook(fail)
            with pytest.raises(torch.OutOfMemoryError):
                model[2:](hidden).pow(2).sum().backward()
            num_sent = len(gradients._works)
            gradients.start_again()
            model(inputs[:2]).pow(2).sum().backward()
            gradients.expect_last_backward()
            inputs_left = inputs[2:]
        else:
            inputs_left = inputs
        model(inputs_left).pow(2).sum().backward()
        gradients.finish()
    return {"sent": num_sent, "gradients": [parameter.grad.tolist() for parameter in model.parameters()]}


def fail(_: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("out of memory")


def test_buckets_that_were_sent_before_memory_ended_are_not_counted_twice(processes):
    found = run_ranks(processes, 2, start_again_on_the_first_rank)
    assert 0 < found[0]["sent"] < 4
    model = build_layers()
    sum(model(inputs_of(rank)).pow(2).sum() for rank in range(2)).backward()
    for each in found:
        for parameter, gradient in zip(model.parameters(), each["gradients"], strict=True):
            torch.testing.assert_close(parameter.grad, torch.tensor(gradient), atol=1e-5, rtol=1e-5)
