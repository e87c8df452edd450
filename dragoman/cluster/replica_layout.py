"""Which virtual workers form a replica, and which ranks compute for it.

Replicas belong to the run: their virtual workers never change. With few ranks, a rank computes for several replicas;
with many, several ranks compute for one.
"""

from dataclasses import dataclass

from dragoman.cluster.world import World
from dragoman.corpus.batching import share_of_rank


@dataclass(frozen=True)
class ReplicaLayout:
    """Virtual workers and ranks of each replica."""

    virtual_workers: tuple[tuple[int, ...], ...]
    ranks: tuple[tuple[int, ...], ...]
    """Ranks that compute some of a replica's virtual workers, in order; the first one leads it."""

    @classmethod
    def of_run(cls, num_virtual_workers: int, num_replicas: int, num_ranks: int) -> "ReplicaLayout":
        """Gives every replica as many virtual workers, which follow each other."""
        width = num_virtual_workers // num_replicas
        workers = [tuple(range(index * width, (index + 1) * width)) for index in range(num_replicas)]
        shares = [set(share_of_rank(num_virtual_workers, rank, num_ranks)) for rank in range(num_ranks)]
        ranks = [tuple(rank for rank, share in enumerate(shares) if share & set(own)) for own in workers]
        return cls(tuple(workers), tuple(ranks))

    @classmethod
    def of_machines(cls, num_virtual_workers: int, world: World) -> "ReplicaLayout":
        """Takes the ranks of each machine together: for sums inside machines first."""
        machines = list(dict.fromkeys(world.machines))
        ranks = [tuple(rank for rank, each in enumerate(world.machines) if each == name) for name in machines]
        workers = [
            tuple(worker for rank in own for worker in share_of_rank(num_virtual_workers, rank, world.size))
            for own in ranks
        ]
        return cls(tuple(workers), tuple(ranks))

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return len(self.ranks)

    @property
    def leaders(self) -> tuple[int, ...]:
        """The rank that speaks for each replica; one rank may lead several."""
        return tuple(ranks[0] for ranks in self.ranks)

    def own(self, rank: int) -> list[int]:
        """Returns the replicas that a rank computes for."""
        return [replica for replica, ranks in enumerate(self.ranks) if rank in ranks]

    def led_by(self, rank: int) -> list[int]:
        """Returns the replicas that a rank leads."""
        return [replica for replica, leader in enumerate(self.leaders) if leader == rank]
