"""Reads hosts, ranks, network interface and transport from the lines of NCCL and Open MPI in any trainer's log."""

import re
from dataclasses import dataclass, field

from dragoman.importing.imported_run import MAX_LISTED, NO_INTERFACE, ImportedRun, LogLaunch
from dragoman.importing.log_text import clean_text

_MAX_RANKS = 100_000

_SPEAKER = re.compile(r"([A-Za-z0-9][\w.-]{0,252}):[0-9]{1,10}:[0-9]{1,10} \[[0-9-]{1,4}\] NCCL INFO ")
_RANK = re.compile(r"\brank ([0-9]{1,7}) nranks ([0-9]{1,7})\b")
_INTERFACE = re.compile(
    r"(?:Bootstrap : Using|OOB|NET/Socket : Using|NET : Using interface|NET/IB : Using interface) "
    r"(?:\[[0-9]{1,3}\])?([A-Za-z][\w.@-]{0,30})(?::|\b)"
)
_USED_NETWORK = re.compile(r"\bvia NET/([A-Za-z]{1,20})")
_CHOSEN_NETWORK = re.compile(r"Using (?:internal Network|network) ([A-Za-z]{1,20})")
_VERSION = re.compile(r"NCCL version ([0-9][\w.]{0,20})(?:\+cuda([0-9.]{1,10}))?")
_MPI_PEER = re.compile(r"\[([A-Za-z0-9][\w.-]{0,252})\]\[\[[0-9]{1,9},[0-9]{1,9}\],([0-9]{1,7})\]")
_MPI_HOST = re.compile(r"\[([A-Za-z][\w.-]{0,252}):[0-9]{5,7}\] ")

_NO_INFINIBAND = (
    "Open MPI found no InfiniBand and used another transport: not a failure, but the ranks then talk over sockets."
)


@dataclass
class _Cluster:
    """Hosts, ranks and network of one launch."""

    num_ranks: int = 0
    ranks_of_host: dict[str, set[int]] = field(default_factory=dict)
    mpi_hosts: dict[str, None] = field(default_factory=dict)
    interface: str = ""
    chosen_network: str = ""
    used_network: str = ""

    @property
    def hosts(self) -> list[str]:
        """The hosts in the order of their ranks."""
        by_rank = sorted(self.ranks_of_host, key=lambda host: min(self.ranks_of_host[host], default=_MAX_RANKS))
        return by_rank or list(self.mpi_hosts)


class NcclReader:
    """Reads the lines of NCCL and Open MPI among all lines of a run, for each launch on its own."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._launch: LogLaunch | None = None
        self._cluster = _Cluster()
        self._clusters: list[tuple[LogLaunch | None, _Cluster]] = [(None, self._cluster)]

    def read(self, line: str) -> None:
        """Reads a line."""
        launches = self._run.launches
        if launches and launches[-1] is not self._launch:
            self._begin_launch(launches[-1])
        if "NCCL" in line:
            self._read_nccl(line)
        elif line.startswith("["):
            self._read_mpi(line)
        elif line.startswith("Another transport will be used instead"):
            self._run.note(_NO_INFINIBAND)

    def finish(self) -> None:
        """Adds the facts of the last launch that trained."""
        facts = self._run.facts
        for launch, cluster in self._clusters:
            if launch is not None and cluster.hosts:
                launch.hosts = cluster.hosts
        cluster = self._main_cluster()
        if cluster.num_ranks:
            facts["num_ranks"] = max(cluster.num_ranks, facts.get("num_ranks", 0))
        if cluster.hosts:
            facts.setdefault("hosts", cluster.hosts)
        if ranks := max((len(ranks) for ranks in cluster.ranks_of_host.values()), default=0):
            facts.setdefault("ranks_per_host", ranks)
        if cluster.interface:
            facts.setdefault("interface", cluster.interface)
        if transport := cluster.used_network or cluster.chosen_network:
            facts.setdefault("transport", transport)
        if "interface" not in facts and facts.get("num_ranks", 1) > 1:
            self._run.note(NO_INTERFACE)

    def _begin_launch(self, launch: LogLaunch) -> None:
        before, cluster = self._clusters[-1]
        if before is None:
            # mpirun and ssh write before the trainer's first line: what has no launch yet belongs to this one.
            self._clusters[-1] = (launch, cluster)
        else:
            self._clusters.append((launch, _Cluster()))
        self._launch, self._cluster = launch, self._clusters[-1][1]

    def _main_cluster(self) -> _Cluster:
        """Returns the hosts and ranks of the last launch that trained, as far as its log names them."""
        main = self._run.main_launch
        of_main = [cluster for launch, cluster in self._clusters if launch is main and cluster.hosts]
        named = [cluster for _, cluster in self._clusters if cluster.hosts or cluster.num_ranks]
        return next(reversed(of_main or named), self._cluster)

    def _read_nccl(self, line: str) -> None:
        if version := _VERSION.search(line):
            self._add_version(version)
        speaker = _SPEAKER.search(line)
        if not speaker:
            return
        self._read_rank(clean_text(speaker[1]), line)
        cluster = self._cluster
        if not cluster.interface and (interface := _INTERFACE.search(line, speaker.end())):
            cluster.interface = interface[1]
        if used := _USED_NETWORK.search(line, speaker.end()):
            cluster.used_network = used[1]
        elif chosen := _CHOSEN_NETWORK.search(line, speaker.end()):
            cluster.chosen_network = chosen[1]

    def _read_rank(self, host: str, line: str) -> None:
        cluster = self._cluster
        if host not in cluster.ranks_of_host and len(cluster.ranks_of_host) >= MAX_LISTED:
            return
        ranks = cluster.ranks_of_host.setdefault(host, set())
        found = _RANK.search(line)
        if not found:
            return
        rank, num_ranks = int(found[1]), int(found[2])
        # Groups of ranks have their own communicators; the largest communicator has all ranks.
        if num_ranks > cluster.num_ranks:
            cluster.num_ranks = num_ranks
            for known in cluster.ranks_of_host.values():
                known.clear()
        if num_ranks == cluster.num_ranks and rank < min(num_ranks, _MAX_RANKS):
            ranks.add(rank)

    def _read_mpi(self, line: str) -> None:
        found = _MPI_PEER.match(line) or _MPI_HOST.match(line)
        if not found:
            return
        if self._launch is not None and self._launch.end != "unknown" and self._clusters[-1][0] is not None:
            self._cluster = _Cluster()  # mpirun starts the next launch, of which the trainer has written nothing yet
            self._clusters.append((None, self._cluster))
        if len(self._cluster.mpi_hosts) < MAX_LISTED:
            self._cluster.mpi_hosts[found[1]] = None

    def _add_version(self, version: re.Match[str]) -> None:
        software = self._run.facts.setdefault("software", {})
        software["NCCL"] = version[1]
        if version[2]:
            software["CUDA"] = version[2]
