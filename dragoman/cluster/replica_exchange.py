"""Lets replicas exchange tensors: their leaders over the network, each leader with the other ranks of its replica."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.cluster.heartbeat import waiting
from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.world import RankGroup, World


class ReplicaExchange:
    """The process groups of a layout; every rank builds them in the same order."""

    def __init__(self, layout: ReplicaLayout, world: World) -> None:
        """Collective: starts the groups."""
        self.layout, self._world = layout, world
        self._leaders = world.start_group(sorted(set(layout.leaders)))
        known: dict[tuple[int, ...], RankGroup] = {}
        for ranks in layout.ranks:
            known.setdefault(ranks, world.start_group(ranks))
        self.groups = [known[ranks] for ranks in layout.ranks]
        """The ranks of each replica."""

    @property
    def own(self) -> list[int]:
        """Replicas that this rank computes for."""
        return self.layout.own(self._world.rank)

    def start(self, payloads: Mapping[int, Tensor]) -> "PendingPayloads":
        """Collective: starts to send the payload of each own replica to all others; all have the same length."""
        own = [payloads[replica] for replica in self.layout.led_by(self._world.rank)]
        if self._leaders.size == 1 or not own:
            return PendingPayloads(self, dict(payloads), None, [], next(iter(payloads.values())))
        leaders = sorted(set(self.layout.leaders))
        most = max(self.layout.leaders.count(leader) for leader in leaders)
        mine = torch.stack([*own, *[torch.zeros_like(own[0])] * (most - len(own))])
        gathered = [torch.empty_like(mine) for _ in leaders]
        work = dist.all_gather(gathered, mine, group=self._leaders.handle, async_op=True)
        return PendingPayloads(self, dict(payloads), work, gathered, own[0])

    def by_replica(self, gathered: Sequence[Tensor]) -> list[Tensor]:
        """Returns the payload of each replica from what the leaders gathered."""
        leaders = sorted(set(self.layout.leaders))
        found = {
            replica: gathered[place][index]
            for place, leader in enumerate(leaders)
            for index, replica in enumerate(self.layout.led_by(leader))
        }
        return [found[replica] for replica in range(self.layout.num_replicas)]

    def tell_own_ranks(self, payloads: list[Tensor] | None, like: Tensor) -> list[Tensor]:
        """Collective: leaders send what they know to the other ranks of their replicas."""
        known = payloads
        for replica in self.own:
            group = self.groups[replica]
            if group.size == 1:
                continue
            table = torch.stack(known) if known is not None else like.new_empty(self.layout.num_replicas, *like.shape)
            dist.broadcast(table, src=self.layout.leaders[replica], group=group.handle)
            known = list(table)
        assert known is not None
        return known

    def sum_exactly(self, own: Mapping[int, Tensor]) -> Tensor:
        """Collective: sums float32 tensors over all replicas; the same bits on every rank."""
        led = self.layout.led_by(self._world.rank)
        like = next(iter(own.values()))
        total = torch.zeros_like(like)
        for replica in led:
            total += own[replica]
        with waiting("the weights of all replicas"):
            if led and self._leaders.size > 1:
                dist.all_reduce(total, group=self._leaders.handle)
            for replica in self.own:
                if self.groups[replica].size > 1:
                    dist.broadcast(total, src=self.layout.leaders[replica], group=self.groups[replica].handle)
        return total

    def send_to(self, receivers: Sequence[int], replica: int, tensor: Tensor | None, like: Tensor) -> Tensor | None:
        """Collective: gives a replica's tensor to ranks that do not compute for it; others get what they gave."""
        leader = self.layout.leaders[replica]
        for receiver in receivers:
            if receiver in self.layout.ranks[replica]:
                continue
            if self._world.rank == leader:
                assert tensor is not None
                dist.send(tensor, receiver)
            elif self._world.rank == receiver:
                tensor = torch.empty_like(like)
                with waiting(f"the state of replica {replica}"):
                    dist.recv(tensor, leader)
        return tensor


@dataclass
class PendingPayloads:
    """Payloads on their way."""

    exchange: ReplicaExchange
    own: dict[int, Tensor]
    work: dist.Work | None
    gathered: list[Tensor]
    like: Tensor

    def wait(self) -> list[Tensor]:
        """Collective: returns the payload of every replica, in their order."""
        with waiting("the payloads of all replicas"):
            if self.work is not None:
                self.work.wait()
                known: list[Tensor] | None = self.exchange.by_replica(self.gathered)
            else:
                layout = self.exchange.layout
                is_complete = len(self.own) == layout.num_replicas
                known = [self.own[replica] for replica in range(layout.num_replicas)] if is_complete else None
            return self.exchange.tell_own_ranks(known, self.like)
