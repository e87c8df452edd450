"""Reads hosts, ranks, network interface and transport from the lines of NCCL and Open MPI in any trainer's log."""

import re

from dragoman.importing.imported_run import MAX_LISTED, NO_INTERFACE, ImportedRun
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


class NcclReader:
    """Reads the lines of NCCL and Open MPI among all lines of a run."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self._num_ranks = 0
        self._ranks_of_host: dict[str, set[int]] = {}
        self._mpi_hosts: dict[str, None] = {}
        self._chosen_network = ""
        self._used_network = ""

    def read(self, line: str) -> None:
        """Reads a line."""
        if "NCCL" in line:
            self._read_nccl(line)
        elif line.startswith("["):
            self._read_mpi(line)
        elif line.startswith("Another transport will be used instead"):
            self._run.note(_NO_INFINIBAND)

    def finish(self) -> None:
        """Adds the facts that need all lines."""
        facts = self._run.facts
        if self._num_ranks:
            facts["num_ranks"] = max(self._num_ranks, facts.get("num_ranks", 0))
        if hosts := self._hosts_by_rank() or list(self._mpi_hosts):
            facts.setdefault("hosts", hosts)
        if ranks := max((len(ranks) for ranks in self._ranks_of_host.values()), default=0):
            facts.setdefault("ranks_per_host", ranks)
        if transport := self._used_network or self._chosen_network:
            facts.setdefault("transport", transport)
        if "interface" not in facts and facts.get("num_ranks", 1) > 1:
            self._run.note(NO_INTERFACE)

    def _hosts_by_rank(self) -> list[str]:
        return sorted(self._ranks_of_host, key=lambda host: min(self._ranks_of_host[host], default=_MAX_RANKS))

    def _read_nccl(self, line: str) -> None:
        if version := _VERSION.search(line):
            self._add_version(version)
        speaker = _SPEAKER.search(line)
        if not speaker:
            return
        self._read_rank(clean_text(speaker[1]), line)
        if interface := _INTERFACE.search(line, speaker.end()):
            self._run.facts.setdefault("interface", interface[1])
        if used := _USED_NETWORK.search(line, speaker.end()):
            self._used_network = used[1]
        elif chosen := _CHOSEN_NETWORK.search(line, speaker.end()):
            self._chosen_network = chosen[1]

    def _read_rank(self, host: str, line: str) -> None:
        if host not in self._ranks_of_host and len(self._ranks_of_host) >= MAX_LISTED:
            return
        ranks = self._ranks_of_host.setdefault(host, set())
        found = _RANK.search(line)
        if not found:
            return
        rank, num_ranks = int(found[1]), int(found[2])
        # Groups of ranks have their own communicators; the largest communicator has all ranks.
        if num_ranks > self._num_ranks:
            self._num_ranks = num_ranks
            for known in self._ranks_of_host.values():
                known.clear()
        if num_ranks == self._num_ranks and rank < min(num_ranks, _MAX_RANKS):
            ranks.add(rank)

    def _read_mpi(self, line: str) -> None:
        found = _MPI_PEER.match(line) or _MPI_HOST.match(line)
        if found and len(self._mpi_hosts) < MAX_LISTED:
            self._mpi_hosts[found[1]] = None

    def _add_version(self, version: re.Match[str]) -> None:
        software = self._run.facts.setdefault("software", {})
        software["NCCL"] = version[1]
        if version[2]:
            software["CUDA"] = version[2]
