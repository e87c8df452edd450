"""Replicas exchange tensors: every rank gets what one rank alone would have, however replicas are spread over ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from ranks import run_ranks

from dragoman.cluster import heartbeat
from dragoman.cluster import world as world_module
from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.replica_exchange import ReplicaExchange
from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.world import World

CASES = ((4, 2), (4, 4), (8, 4), (6, 3), (6, 2), (4, 1))
"""Virtual workers and replicas; on three ranks, one of six virtual workers in two replicas computes for both."""
NUM_VALUES, NUM_PIECES = 11, 3


def values_of(replica: int, seed: int = 0) -> torch.Tensor:
    """Returns values whose sum depends on the order of adding."""
    return torch.randn(NUM_VALUES, generator=torch.Generator().manual_seed(10 * seed + replica))


def exchange_everything(world: World) -> dict[tuple[int, int], dict[str, Any]]:
    """Exchanges payloads, sums and tensors to save, for every case."""
    torch.set_num_threads(1)
    _cut_small(world)
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for num_virtual_workers, num_replicas in CASES:
        layout = ReplicaLayout.of_run(num_virtual_workers, num_replicas, world.size)
        exchange = ReplicaExchange(layout, world)
        found[num_virtual_workers, num_replicas] = {
            "own": exchange.own,
            "payloads": [_exchange_payloads(exchange, world, seed) for seed in range(2)],
            "sum": exchange.sum_exactly({replica: values_of(replica) for replica in exchange.own}).tolist(),
            "saved": _collect(exchange, world),
        }
    return found


def _cut_small(world: World) -> None:
    """Lets all values travel in three pieces; a rank that is alone sends nothing, and is this very process."""
    if world.size > 1:
        world_module.PIECE_BYTES = 16


def _exchange_payloads(exchange: ReplicaExchange, world: World, seed: int) -> list[list[int]]:
    payloads = {replica: values_of(replica, seed).view(torch.uint8) for replica in exchange.own}
    pending = exchange.start(payloads, is_hidden=bool(seed))
    world.sum_numbers([1.0])  # while they travel, ranks exchange other things
    exchange.sum_exactly({replica: torch.ones(3) for replica in exchange.own})
    return [payload.tolist() for payload in pending.wait()]


def _collect(exchange: ReplicaExchange, world: World) -> dict[int, list[float]]:
    """Gives the tensors of all replicas to the first and the last rank."""
    found = {}
    for replica in range(exchange.layout.num_replicas):
        own = values_of(replica) if replica in exchange.own else None
        tensor = exchange.send_to([0, world.size - 1], replica, own, torch.empty(NUM_VALUES))
        if tensor is not None:
            found[replica] = tensor.tolist()
    return found


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request, processes) -> list[dict[tuple[int, int], dict[str, Any]]]:
    """What each rank found, by case."""
    return run_ranks(processes, request.param, exchange_everything)


@pytest.mark.parametrize("case", CASES)
def test_every_rank_gets_the_payloads_of_all_replicas_in_their_order(ranks, case):
    expected = [
        [values_of(replica, seed).view(torch.uint8).tolist() for replica in range(case[1])] for seed in range(2)
    ]
    assert [found[case]["payloads"] for found in ranks] == [expected] * len(ranks)


@pytest.mark.parametrize("case", CASES)
def test_exact_sums_are_the_same_bits_on_every_rank(ranks, case):
    sums = [found[case]["sum"] for found in ranks]
    assert sums == [sums[0]] * len(ranks)
    expected = torch.stack([values_of(replica).double() for replica in range(case[1])]).sum(0)
    torch.testing.assert_close(torch.tensor(sums[0]).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_save_get_the_tensors_of_all_replicas_and_others_keep_their_own(ranks, case):
    last = len(ranks) - 1
    for rank, found in enumerate(ranks):
        expected = range(case[1]) if rank in (0, last) else found[case]["own"]
        assert found[case]["saved"] == {replica: values_of(replica).tolist() for replica in expected}


def note_silence(world: World) -> dict[str, list[bool]]:
    """Returns the heartbeats during each exchange that a slow link would make long: whether the rank was waiting."""
    torch.set_num_threads(1)
    _cut_small(world)
    exchange = ReplicaExchange(ReplicaLayout.of_run(2, 2, world.size), world)
    own = {replica: values_of(replica) for replica in exchange.own}
    parameters = [torch.nn.Parameter(torch.zeros(16)) for _ in range(NUM_PIECES)]
    gradients = GradientSum(parameters, world, bucket_bytes=64)
    gradients.start_step()
    found: dict[str, list[bool]] = {}
    with _noted(found, "state of a replica"):
        exchange.send_to([1], 0, own.get(0), torch.empty(NUM_VALUES))
    with _noted(found, "exact sum"):
        exchange.sum_exactly(own)
    with _noted(found, "payloads"):
        exchange.start({replica: values.view(torch.uint8) for replica, values in own.items()}).wait()
    with _noted(found, "weights"):
        world.send_tensor(torch.zeros(NUM_VALUES), 0)
    with _noted(found, "gradients"):
        gradients.finish()
    return found


@contextmanager
def _noted(found: dict[str, list[bool]], name: str) -> Iterator[None]:
    notes: list[bool] = []
    heartbeat._heartbeat.note = lambda _doing, is_waiting, step=None: notes.append(is_waiting)  # type: ignore[method-assign]
    yield
    found[name] = list(notes)


def test_a_link_that_is_slow_is_not_taken_for_a_hang(processes):
    """Each piece ends the silence of both ends; one that sends does not wait for others."""
    sender, receiver = run_ranks(processes, 2, note_silence)
    assert sender["state of a replica"] == [False] * NUM_PIECES
    assert sum(receiver["state of a replica"]) == NUM_PIECES
    for name in ("exact sum", "payloads", "weights", "gradients"):
        assert [sum(rank[name]) for rank in (sender, receiver)] == [NUM_PIECES] * 2, name
