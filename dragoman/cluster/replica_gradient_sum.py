"""Sums gradients exactly inside each replica, and between replicas in fewer bytes or over fewer ranks.

What a lossy format leaves out is kept by its replica and added to the next gradient, so that nothing is lost for ever.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.cluster.gradient_sum import GradientSum
from dragoman.cluster.replica_exchange import ReplicaExchange
from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.step_clock import Part
from dragoman.cluster.wire_formats import WIRE_FORMATS, WireFormat, wire_format
from dragoman.cluster.world import World, wait_for_device
from dragoman.corpus.batching import MicroBatch


class ReplicaGradientSum(GradientSum):
    """A sum in two stages; how the second one works is for its subclasses to say."""

    residuals: dict[int, Tensor]
    """What each own replica has not sent yet; part of its checkpoint."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], world: World, exchange: ReplicaExchange, **options: Any
    ) -> None:
        super().__init__(parameters, world, **options)
        self._exchange = exchange
        self._sums: dict[int, Tensor] = {}
        self.residuals = {}

    def start_step(self) -> None:
        """Forgets the gradients of the last step."""
        super().start_step()
        self._sums = {}

    def contributions(self, batches: dict[int, MicroBatch]) -> Iterator[dict[int, MicroBatch]]:
        """Yields the batches of each own replica; between them, sums its gradients over its ranks."""
        for replica in self._exchange.own:
            super().start_step()
            self.group = self._exchange.groups[replica]
            workers = self._exchange.layout.virtual_workers[replica]
            yield {worker: batches[worker] for worker in workers if worker in batches}
            self._clock.switch(Part.WAITING)
            summed = super().finish()
            self._sums[replica] = summed if len(self._exchange.own) == 1 else summed.clone()

    def finish(self) -> Tensor:
        """Collective: returns the flat gradient summed over all replicas."""
        return self.flat.copy_(self._combine(self._sums))

    def _combine(self, sums: Mapping[int, Tensor]) -> Tensor:
        raise NotImplementedError


class HierarchicalSum(ReplicaGradientSum):
    """Sums inside each machine, then over machines: every gradient crosses a port once instead of 2(N-1)/N times."""

    def _combine(self, sums: Mapping[int, Tensor]) -> Tensor:
        return self._exchange.sum_exactly(sums)


class EncodedSum(ReplicaGradientSum):
    """Sends the gradient of a replica in fp16, bf16 or int8."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        world: World,
        exchange: ReplicaExchange,
        wire: str,
        **options: Any,
    ) -> None:
        super().__init__(parameters, world, exchange, **options)
        self._format = wire_format(wire)
        if self._format.loses_much:
            self.residuals = {replica: torch.zeros_like(self.flat) for replica in exchange.own}

    @property
    def num_exchanged_bytes(self) -> int:
        """Bytes of the gradient of one replica."""
        return self._format.num_bytes(self.flat.numel())

    def _combine(self, sums: Mapping[int, Tensor]) -> Tensor:
        payloads = {
            replica: self._format.encode(summed, self.residuals.get(replica)) for replica, summed in sums.items()
        }
        return sum_payloads(self._format, self._exchange.start(payloads).wait(), self.flat.numel())


def sum_payloads(wire: WireFormat, payloads: list[Tensor], num_values: int) -> Tensor:
    """Adds up payloads in the order of replicas, so that the sum does not depend on which rank sent them."""
    total = torch.zeros(num_values, device=payloads[0].device)
    for payload in payloads:
        wire.add_to(total, payload)
    return total


class PowerSgdSum(ReplicaGradientSum):
    """Sends low-rank factors of each matrix's gradient (Vogels et al. 2019, arXiv 1905.13727); vectors as they are.

    Torch's own hook needs DistributedDataParallel, which is not used here.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        world: World,
        exchange: ReplicaExchange,
        rank: int,
        **options: Any,
    ) -> None:
        parameters = list(parameters)
        super().__init__(parameters, world, exchange, **options)
        self._rank = rank
        self.residuals = {replica: torch.zeros_like(self.flat) for replica in exchange.own}
        self._matrices, self._others = _divide(parameters, self.flat, rank)
        generator = torch.Generator().manual_seed(1)
        width = sum(columns for _, _, columns in self._matrices)
        self.factors = torch.randn(width * rank, generator=generator).to(self.flat.device)
        """The right factor of every matrix, one after the other; the next step starts from it."""

    @property
    def num_exchanged_bytes(self) -> int:
        """Bytes of both factors and of the vectors."""
        num_others = sum(int(part.stop - part.start) for part in self._others)
        num_factors = sum((rows + columns) * self._rank for _, rows, columns in self._matrices)
        return int(self.flat.itemsize) * (num_factors + num_others)

    def _combine(self, sums: Mapping[int, Tensor]) -> Tensor:
        for replica, summed in sums.items():
            self.residuals[replica] += summed
        right = self._split_factors(self.factors)
        left = self._exchange.sum_exactly(
            {
                replica: torch.cat(
                    [*((self._matrix(own, place) @ right[place]).view(-1) for place in range(len(right)))]
                    + [own[part] for part in self._others]
                )
                for replica, own in self.residuals.items()
            }
        )
        left_factors, begin = [], 0
        for _, rows, _ in self._matrices:
            factor = left[begin : begin + rows * self._rank].view(rows, self._rank)
            left_factors.append(_orthonormal(factor))
            begin += rows * self._rank
        factors = self._exchange.sum_exactly(
            {
                replica: torch.cat(
                    [
                        (self._matrix(own, place).T @ left_factors[place]).reshape(-1)
                        for place in range(len(left_factors))
                    ]
                )
                for replica, own in self.residuals.items()
            }
        )
        right = self._split_factors(factors)
        total = torch.zeros_like(self.flat)
        for place, factor in enumerate(left_factors):
            self._matrix(total, place).copy_(factor @ right[place].T)
        for part in self._others:
            length = part.stop - part.start
            total[part] = left[begin : begin + length]
            begin += length
        share = total / self._exchange.layout.num_replicas
        for own in self.residuals.values():
            own.sub_(share).nan_to_num_(0.0, 0.0, 0.0)
            for part in self._others:
                own[part] = 0.0
        if bool(factors.isfinite().all()):
            self.factors = factors
        return total

    def _matrix(self, flat: Tensor, place: int) -> Tensor:
        begin, rows, columns = self._matrices[place]
        return flat[begin : begin + rows * columns].view(rows, columns)

    def _split_factors(self, factors: Tensor) -> list[Tensor]:
        sizes = [columns * self._rank for _, _, columns in self._matrices]
        return [part.view(-1, self._rank) for part in torch.split(factors, sizes)]


def measure_encoding(
    parameters: Iterable[nn.Parameter], gradients: GradientSum, num_replicas: int, powersgd_rank: int
) -> dict[str, tuple[int, float]]:
    """Returns, by wire format, the bytes of a replica's gradient and the seconds to encode it and add up all of them.

    PowerSGD takes over the gradients of the parameters: no step can be made afterwards.
    """
    values = torch.randn_like(gradients.flat)
    found = {}
    for name in WIRE_FORMATS:
        wire = wire_format(name)
        residual = torch.zeros_like(values) if wire.loses_much else None
        seconds = _time(partial(_encode_and_sum, wire, values, residual, num_replicas), values.device)
        found[name] = wire.num_bytes(values.numel()), seconds
    alone = World(device=values.device)
    sums = PowerSgdSum(list(parameters), alone, ReplicaExchange(ReplicaLayout.of_run(1, 1, 1), alone), powersgd_rank)
    found["powersgd"] = sums.num_exchanged_bytes, _time(lambda: sums._combine({0: values}), values.device)
    return found


def _encode_and_sum(wire: WireFormat, values: Tensor, residual: Tensor | None, num_replicas: int) -> None:
    payload = wire.encode(values, residual)
    sum_payloads(wire, [payload] * num_replicas, values.numel())


def _time(action: Callable[[], object], device: torch.device) -> float:
    """Returns the seconds of the faster one of two calls; the first also allocates memory."""
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        action()
        wait_for_device(device)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _divide(parameters: list[nn.Parameter], flat: Tensor, rank: int) -> tuple[list[tuple[int, int, int]], list[slice]]:
    """Returns begin, rows and columns of matrices worth factoring, and the places of everything else."""
    matrices, others = [], []
    for parameter in parameters:
        assert parameter.grad is not None
        begin = int(parameter.grad.storage_offset() - flat.storage_offset())
        if parameter.dim() == 2 and (parameter.shape[0] + parameter.shape[1]) * rank < parameter.numel():
            matrices.append((begin, parameter.shape[0], parameter.shape[1]))
        else:
            others.append(slice(begin, begin + parameter.numel()))
    return matrices, others


def _orthonormal(matrix: Tensor) -> Tensor:
    """Returns an orthonormal basis of the columns; zeros where they are not finite or all zero."""
    if not bool(matrix.isfinite().all()):
        return matrix
    basis: Tensor = torch.linalg.qr(matrix)[0]
    return basis
