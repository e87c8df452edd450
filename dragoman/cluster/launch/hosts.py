"""The host list of a run, as people write it: `a:2,user@b:2`; and where each host's ranks begin."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dragoman.run.errors import UsageError

_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])")
_EXAMPLE = "for example --hosts a:2,user@b:2"


@dataclass(frozen=True)
class Host:
    """One machine, by the name ssh knows it by."""

    name: str
    num_workers: int | None = None
    """None: one per GPU, or one on a CPU machine."""

    @property
    def is_this_machine(self) -> bool:
        """Whether no ssh is needed to reach it."""
        return self.name in ("localhost", "127.0.0.1", socket.gethostname())


@dataclass(frozen=True)
class Placement:
    """Where a run's workers go."""

    hosts: tuple[Host, ...]
    min_hosts: int = 1
    """With fewer the run waits."""
    ssh_config: Path | None = None
    is_data_sent: bool = False

    @classmethod
    def on_this_machine(cls, num_workers: int) -> Self:
        """All of them here."""
        return cls((Host("localhost", num_workers),))

    @property
    def is_here_alone(self) -> bool:
        """Whether no other machine takes part."""
        return all(host.is_this_machine for host in self.hosts)

    @property
    def num_workers(self) -> int:
        """As far as it is known before the hosts are asked."""
        return sum(host.num_workers or 1 for host in self.hosts)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Reads a host list; a name that ssh could take for an option or a shell for anything else is refused."""
    hosts = tuple(_parse_host(part) for part in text.split(","))
    names = [host.name for host in hosts]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--hosts names {min(twice)} twice; give each host once, with the sum of its workers.")
    return hosts


def _parse_host(part: str) -> Host:
    match = re.fullmatch(rf"({_NAME.pattern})(?::(\d{{1,9}}))?", part.strip())
    if match is None:
        raise UsageError(f"--hosts: {part!r} is not a host name with a number of workers; {_EXAMPLE}.")
    name, num_workers = match[1], match[2]
    if num_workers is not None and int(num_workers) < 1:
        raise UsageError(f"--hosts: {name} needs at least 1 worker, not {num_workers}; {_EXAMPLE}.")
    return Host(name, int(num_workers) if num_workers else None)
