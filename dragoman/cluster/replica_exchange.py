"""Lets replicas exchange tensors: their leaders over the network, each leader with the other ranks of its replica."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.cluster.heartbeat import beat, waiting
from dragoman.cluster.replica_layout import ReplicaLayout
from dragoman.cluster.world import RankGroup, World, cut


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

    def start(self, payloads: Mapping[int, Tensor], is_hidden: bool = False) -> "PendingPayloads":
        """Collective: starts to send the payload of each own replica to all others; all have the same length.

        Sent in pieces, unless hidden behind steps: the votes of these steps would queue behind all pieces.
        """
        own = [payloads[replica] for replica in self.layout.led_by(self._world.rank)]
        if self._leaders.size == 1 or not own:
            return PendingPayloads(self, dict(payloads), [], [], next(iter(payloads.values())))
        leaders = sorted(set(self.layout.leaders))
        most = max(self.layout.leaders.count(leader) for leader in leaders)
        mine = torch.stack([*own, *[torch.zeros_like(own[0])] * (most - len(own))])
        gathered = [torch.empty_like(mine) for _ in leaders]
        pieces = [(mine, *gathered)] if is_hidden else zip(*map(cut, (mine, *gathered)), strict=True)
        works = [
            dist.all_gather(list(others), sent, group=self._leaders.handle, async_op=True) for sent, *others in pieces
        ]
        return PendingPayloads(self, dict(payloads), works, gathered, own[0])

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
            self._tell(replica, table)
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
        if led and self._leaders.size > 1:
            _await([dist.all_reduce(piece, group=self._leaders.handle, async_op=True) for piece in cut(total)])
        for replica in self.own:
            if self.groups[replica].size > 1:
                self._tell(replica, total)
        return total

    def _tell(self, replica: int, tensor: Tensor) -> None:
        """Collective: sends a tensor from the leader of a replica to its other ranks."""
        leader, group = self.layout.leaders[replica], self.groups[replica].handle
        _await([dist.broadcast(piece, src=leader, group=group, async_op=True) for piece in cut(tensor)])

    def send_to(self, receivers: Sequence[int], replica: int, tensor: Tensor | None, like: Tensor) -> Tensor | None:
        """Collective: gives a replica's tensor to ranks that do not compute for it; others get what they gave."""
        leader = self.layout.leaders[replica]
        for receiver in receivers:
            if receiver in self.layout.ranks[replica]:
                continue
            if self._world.rank == leader:
                assert tensor is not None
                for piece in cut(tensor):
                    beat(f"sending the state of replica {replica}")
                    dist.send(piece, receiver)
            elif self._world.rank == receiver:
                tensor = torch.empty_like(like)
                for piece in cut(tensor):
                    with waiting(f"the state of replica {replica}"):
                        dist.recv(piece, leader)
        return tensor


def _await(works: Sequence[dist.Work | None]) -> None:
    """Waits for what other ranks send."""
    for work in works:
        assert work is not None
        with waiting("the tensors of all replicas"):
            work.wait()


@dataclass
class PendingPayloads:
    """Payloads on their way."""

    exchange: ReplicaExchange
    own: dict[int, Tensor]
    works: list[dist.Work | None]
    gathered: list[Tensor]
    like: Tensor

    def wait(self) -> list[Tensor]:
        """Collective: returns the payload of every replica, in their order."""
        _await(self.works)
        known: list[Tensor] | None
        if self.works:
            known = self.exchange.by_replica(self.gathered)
        else:
            layout = self.exchange.layout
            is_complete = len(self.own) == layout.num_replicas
            known = [self.own[replica] for replica in range(layout.num_replicas)] if is_complete else None
        return self.exchange.tell_own_ranks(known, self.like)
