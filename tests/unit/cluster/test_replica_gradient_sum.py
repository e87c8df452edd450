"""Sums of gradients between replicas in fewer bytes: nothing is lost for ever, and ranks do not matter."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from torch import Tensor, nn

from dragoman.cluster.replica_exchange import ReplicaExchange
from dragoman.cluster.replica_gradient_sum import EncodedSum, HierarchicalSum, PowerSgdSum, ReplicaGradientSum
from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.wire_formats import wire_format
from dragoman.cluster.world import World

SHAPES = ((24, 20), (7,), (40, 12), (3, 5))
"""Two matrices that are worth factoring, a vector, and a matrix that is not."""
POWERSGD_RANK = 2
STRATEGIES = ("hierarchical", "fp16", "bf16", "int8", "powersgd")


def make_parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def build_sum(
    strategy: str, parameters: Sequence[nn.Parameter], num_workers: int, num_replicas: int, world: World
) -> ReplicaGradientSum:
    if strategy == "hierarchical":
        return HierarchicalSum(parameters, world, ReplicaExchange(ReplicaLayout.of_machines(num_workers, world), world))
    exchange = ReplicaExchange(ReplicaLayout.of_run(num_workers, num_replicas, world.size), world)
    if strategy == "powersgd":
        return PowerSgdSum(parameters, world, exchange, POWERSGD_RANK)
    return EncodedSum(parameters, world, exchange, strategy)


def gradient_of(worker: int, step: int) -> list[Tensor]:
    """Returns whole numbers, whose sums do not depend on the order of adding."""
    generator = torch.Generator().manual_seed(1_000 * step + worker)
    return [torch.randint(-1_000, 1_000, shape, generator=generator).float() for shape in SHAPES]


def make_step(
    sums: ReplicaGradientSum, parameters: Sequence[nn.Parameter], gradients: dict[int, list[Tensor]]
) -> list[Tensor]:
    """Makes the backward passes of a step, as the learner does; returns the summed gradient of each parameter."""
    sums.start_step()
    for part in sums.contributions(dict.fromkeys(gradients)):
        for place, worker in enumerate(part, start=1):
            if place == len(part):
                sums.expect_last_backward()
            pairs = zip(parameters, gradients[worker], strict=True)
            sum(((parameter * gradient).sum() for parameter, gradient in pairs), torch.zeros(())).backward()
    assert sums.finish() is sums.flat
    return [parameter.grad.clone() for parameter in parameters]


def steps_alone(
    strategy: str, num_workers: int, num_replicas: int, num_steps: int
) -> Iterator[tuple[list[Tensor], list[Tensor], ReplicaGradientSum]]:
    """Yields the result of each step of one rank, the exact sum, and what made it."""
    parameters = make_parameters()
    sums = build_sum(strategy, parameters, num_workers, num_replicas, World())
    for step in range(num_steps):
        gradients = {worker: gradient_of(worker, step) for worker in range(num_workers)}
        exact = [torch.stack(each).sum(0) for each in zip(*gradients.values(), strict=True)]
        yield make_step(sums, parameters, gradients), exact, sums


# One rank


@pytest.mark.parametrize(("strategy", "tolerance"), [("hierarchical", 0.0), ("fp16", 2.0**-10), ("bf16", 2.0**-7)])
def test_sums_without_memory_are_near_the_exact_one(strategy, tolerance):
    for found, exact, sums in steps_alone(strategy, 4, 2, 3):
        assert not sums.residuals
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other, atol=tolerance * 4_000, rtol=0)


@pytest.mark.parametrize("strategy", ["int8", "powersgd"])
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_what_a_step_leaves_out_comes_later(strategy, num_replicas):
    """All steps together are exact up to what replicas have not sent yet."""
    total, exact_total = torch.zeros(0), torch.zeros(0)
    for found, exact, sums in steps_alone(strategy, 4, num_replicas, 20):
        flat, exact_flat = (torch.cat([each.flatten().double() for each in tensors]) for tensors in (found, exact))
        total, exact_total = (flat, exact_flat) if not len(total) else (total + flat, exact_total + exact_flat)
        unsent = torch.stack([residual.double() for residual in sums.residuals.values()]).sum(0)
        unsent_flat = torch.cat([_part(unsent, shape, sums).flatten() for shape in SHAPES])
        torch.testing.assert_close(total + unsent_flat, exact_total, atol=0.05, rtol=1e-5)
        assert flat.ne(exact_flat).any()


def _part(flat: Tensor, shape: tuple[int, ...], sums: ReplicaGradientSum) -> Tensor:
    """Returns the part of a flat tensor that belongs to the parameter of this shape."""
    (parameter,) = [each for each in sums._bucket_of if tuple(each.shape) == shape]
    begin = parameter.grad.storage_offset()
    return flat[begin : begin + parameter.numel()].view(shape)


def test_the_sum_of_many_int8_steps_is_off_by_one_step_only():
    """Without feedback the error would grow: half of these gradients are below half a unit of their block."""
    parameter = nn.Parameter(torch.zeros(256))
    sums = EncodedSum([parameter], World(), ReplicaExchange(ReplicaLayout.of_run(2, 2, 1), World()), "int8")
    gradient = torch.full((256,), 0.3)
    gradient[:128] = 100.0
    total = torch.zeros(256)
    for _ in range(100):
        total += make_step(sums, [parameter], {0: [gradient], 1: [gradient]})[0]
    unit = 100.0 / 127
    assert (total - 200 * gradient).abs().max() <= 2 * unit
    assert make_step(sums, [parameter], {0: [gradient], 1: [gradient]})[0][200] in (0.0, pytest.approx(unit, rel=0.1))


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(0, POWERSGD_RANK), st.sampled_from([1, 2, 4]))
def test_powersgd_sends_a_matrix_of_low_rank_exactly(seed, rank, num_replicas):
    """All replicas have gradients of the same columns and rows, so that their sum has a low rank too."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = SHAPES[0]
    left, right = torch.randn(rows, rank, generator=generator), torch.randn(rank, columns, generator=generator)
    parameter = nn.Parameter(torch.zeros(rows, columns))
    exchange = ReplicaExchange(ReplicaLayout.of_run(4, num_replicas, 1), World())
    sums = PowerSgdSum([parameter], World(), exchange, POWERSGD_RANK)
    for step in range(3):
        gradients = {worker: [left @ (torch.eye(rank) * (worker + step + 1)) @ right] for worker in range(4)}
        exact = torch.stack([gradient for (gradient,) in gradients.values()]).sum(0)
        (found,) = make_step(sums, [parameter], gradients)
        torch.testing.assert_close(found, exact, atol=1e-3, rtol=1e-3)


def test_powersgd_recovers_from_steps_without_any_gradient():
    parameter = nn.Parameter(torch.zeros(SHAPES[0]))
    sums = PowerSgdSum([parameter], World(), ReplicaExchange(ReplicaLayout.of_run(2, 2, 1), World()), POWERSGD_RANK)
    zeros = torch.zeros(SHAPES[0])
    for _ in range(2):
        assert not make_step(sums, [parameter], {0: [zeros], 1: [zeros]})[0].any()
    generator = torch.Generator().manual_seed(5)
    gradient = torch.randn(SHAPES[0][0], 1, generator=generator) @ torch.randn(1, SHAPES[0][1], generator=generator)
    total = sum(make_step(sums, [parameter], {0: [gradient], 1: [gradient]})[0] for _ in range(4))
    torch.testing.assert_close(total, 8 * gradient, atol=1e-3, rtol=1e-3)


def test_powersgd_sends_vectors_exactly():
    for found, exact, _ in steps_alone("powersgd", 4, 2, 3):
        assert torch.equal(found[1], exact[1])
        assert torch.equal(found[3], exact[3])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("place", range(len(SHAPES)))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_reaches_the_result_and_is_forgotten_then(strategy, place, bad):
    parameters = make_parameters()
    sums = build_sum(strategy, parameters, 4, 2, World())
    gradients = {worker: gradient_of(worker, 0) for worker in range(4)}
    make_step(sums, parameters, gradients)
    damaged = {**gradients, 2: [gradient.clone() for gradient in gradients[2]]}
    damaged[2][place].view(-1)[3] = bad
    found = make_step(sums, parameters, damaged)
    assert not found[place].isfinite().all()
    assert all(residual.isfinite().all() for residual in sums.residuals.values())
    for _ in range(2):
        found = make_step(sums, parameters, gradients)
        assert all(each.isfinite().all() for each in found)
    exact = torch.stack([each[1] for each in gradients.values()]).sum(0)
    torch.testing.assert_close(found[1], exact, atol=200.0, rtol=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_without_text_for_a_replica_sends_the_others(strategy):
    parameters = make_parameters()
    sums = build_sum(strategy, parameters, 4, 2, World())
    gradients = {worker: gradient_of(worker, 0) for worker in range(2)}
    found = make_step(sums, parameters, gradients)
    exact = gradients[0][1] + gradients[1][1]
    torch.testing.assert_close(found[1], exact, atol=20.0, rtol=0)


@pytest.mark.parametrize("strategy", ["fp16", "bf16", "int8"])
def test_the_announced_bytes_are_those_of_a_payload(strategy):
    sums = build_sum(strategy, make_parameters(), 4, 2, World())
    assert sums.num_exchanged_bytes == wire_format(strategy).encode(sums.flat).numel()


def test_powersgd_announces_factors_and_vectors():
    sums = build_sum("powersgd", make_parameters(), 4, 2, World())
    num_factored = (24 + 20 + 40 + 12) * POWERSGD_RANK
    assert sums.num_exchanged_bytes == 4 * (num_factored + 7 + 15)
    assert sums.num_exchanged_bytes < sums.flat.nbytes / 3


# Several ranks

NUM_WORKERS, NUM_REPLICAS, NUM_STEPS = 4, 2, 3


def sum_on_rank(world: World) -> dict[str, Any]:
    """Makes some steps with every strategy; returns the last sum and the residuals of this rank's replicas."""
    torch.set_num_threads(1)
    found = {}
    for strategy in STRATEGIES:
        parameters = make_parameters()
        sums = build_sum(strategy, parameters, NUM_WORKERS, NUM_REPLICAS, world)
        begin, end = (rank * NUM_WORKERS // world.size for rank in (world.rank, world.rank + 1))
        for step in range(NUM_STEPS):
            make_step(sums, parameters, {worker: gradient_of(worker, step) for worker in range(begin, end)})
        residuals = {replica: residual.tolist() for replica, residual in sums.residuals.items()}
        found[strategy] = {"sum": sums.flat.tolist(), "residuals": residuals}
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return sum_on_rank(World())


@pytest.fixture(scope="module", params=[2, 3, 4])
def together(request, processes) -> list[dict[str, Any]]:
    """What each rank found; the last one is on a machine of its own."""
    size = request.param
    return run_ranks(processes, size, sum_on_rank, machines=("a",) * (size - 1) + ("b",))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_several_ranks_sum_as_one_does(alone, together, strategy):
    sums = [found[strategy]["sum"] for found in together]
    assert sums == [sums[0]] * len(together)
    if strategy == "powersgd":  # its factors are no whole numbers
        torch.testing.assert_close(torch.tensor(sums[0]), torch.tensor(alone[strategy]["sum"]), atol=0.1, rtol=1e-4)
    else:
        assert sums[0] == alone[strategy]["sum"]


@pytest.mark.parametrize("strategy", ["int8", "powersgd"])
def test_every_rank_of_a_replica_keeps_what_it_has_not_sent(alone, together, strategy):
    expected = alone[strategy]["residuals"]
    found = [(replica, each) for rank in together for replica, each in rank[strategy]["residuals"].items()]
    assert {replica for replica, _ in found} == set(range(NUM_REPLICAS))
    for replica, residual in found:
        torch.testing.assert_close(torch.tensor(residual), torch.tensor(expected[replica]), atol=0.1, rtol=1e-4)
