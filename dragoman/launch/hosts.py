"""Hosts: which ones a run is placed on, what each has, and whether it can take part."""

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import dragoman
from dragoman.run.errors import UsageError
from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.run.processes import num_cores

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


@dataclass(frozen=True)
class Facts:
    """Of one host."""

    hostname: str
    dragoman: str
    code: str
    """Hash of the program's own files: two clones may have the same version and differ."""
    torch: str
    python: str
    num_cores: int
    num_gpus: int
    data: str | None
    """Hash of the prepared corpus; None where there is none, or not all of it."""
    config: str | None
    """Hash of the run's config.toml; None where there is none."""
    shares_run_folder: bool
    """Whether what the launcher writes into the run folder is seen here."""
    free_disk_bytes: int
    time: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def gather_facts(run: RunFolder, prepared: Path, token: str) -> Facts:
    """The facts of this machine, about this run."""
    return Facts(
        hostname=socket.gethostname(),
        dragoman=dragoman.__version__,
        code=code_fingerprint(),
        torch=version("torch"),
        python=sys.version.split()[0],
        num_cores=num_cores(),
        num_gpus=count_gpus(),
        data=data_fingerprint(prepared),
        config=config_fingerprint(run),
        shares_run_folder=(run.path / token).exists(),
        free_disk_bytes=free_disk(run.path),
        time=time.time(),
    )


def code_fingerprint() -> str:
    """A hash over the program's source files."""
    folder = Path(dragoman.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def data_fingerprint(prepared: Path) -> str | None:
    """A hash of what the manifest of a prepared corpus says it holds; None where files are missing or cut off."""
    try:
        files = read_json(prepared / "manifest.json")["files"]
        is_whole = all((prepared / name).stat().st_size == record["num_bytes"] for name, record in files.items())
        # The pages for people name the user's files, which may differ.
        content = {name: record["sha256"] for name, record in files.items() if not name.endswith(".md")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() if is_whole else None


def config_fingerprint(run: RunFolder) -> str | None:
    """Of the settings as they stand in the run folder."""
    try:
        return hashlib.sha256(run.config.read_bytes()).hexdigest()
    except OSError:
        return None


def free_disk(folder: Path) -> int:
    """Bytes free where a folder is, or would be."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def count_gpus() -> int:
    """GPUs this process may use, asked of the system and not of torch, whose import takes seconds."""
    if version("torch").endswith("+cpu"):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


CLOCK_WARNING_SECONDS = 2.0
CLOCK_ERROR_SECONDS = 60.0


@dataclass(frozen=True)
class HostFacts:
    """What a host said of itself, and when."""

    name: str
    facts: Facts
    clock_skew_seconds: float
    """How far its clock is ahead of ours."""


@dataclass(frozen=True)
class Expected:
    """What every host should have."""

    here: Facts
    prepared: Path
    run_path: Path
    kept_bytes: int
    """Disk the checkpoints kept at one time will take."""
    is_resumed: bool = False
    """Then a host's own settings of the run may be older ones, and are replaced."""


def problems_of(host: HostFacts, expected: Expected) -> Iterator[str]:
    """Each reason not to start with this host, in one sentence."""
    there, here, name = host.facts, expected.here, host.name
    if there.dragoman != here.dragoman:
        yield f"{name} has dragoman {there.dragoman}, this machine has {here.dragoman}: install the same on both."
    elif there.code != here.code:
        yield (
            f"{name} has other code of dragoman {there.dragoman} ({there.code[:12]}) than this machine "
            f"({here.code[:12]}): bring both to the same commit."
        )
    if there.torch != here.torch:
        yield f"{name} has torch {there.torch}, this machine has {here.torch}: install the same on both."
    if there.data != here.data and there.data is not None:
        yield (
            f"{name} has other data in {expected.prepared} ({there.data[:12]}) than this machine "
            f"({str(here.data)[:12]}): remove it there and use --send-data, or prepare it again."
        )
    has_own_run = not there.shares_run_folder and there.config is not None
    if has_own_run and there.config != here.config and not expected.is_resumed:
        yield (
            f"{name} has another run in {expected.run_path} (config {str(there.config)[:12]}) than this machine "
            f"({str(here.config)[:12]}): choose another --run-dir, or remove it there."
        )
    if there.free_disk_bytes < expected.kept_bytes:
        yield (
            f"{name} has {there.free_disk_bytes / 1e9:.1f} GB free for {expected.run_path}, but the checkpoints kept "
            f"will take {expected.kept_bytes / 1e9:.1f} GB: free some, or lower checkpoints.keep_last."
        )
    if abs(host.clock_skew_seconds) > CLOCK_ERROR_SECONDS:
        yield f"{describe_skew(host)}: set the clocks (NTP)."


def is_data_missing(host: HostFacts) -> bool:
    """Whether the prepared corpus is not there at all."""
    return host.facts.data is None


def missing_data_problem(host: HostFacts, expected: Expected) -> str:
    """What to do about it."""
    return (
        f"{host.name} has no whole prepared corpus in {expected.prepared}, "
        f"this machine has {str(expected.here.data)[:12]}: copy it there, or let --send-data do it."
    )


def warnings_of(host: HostFacts) -> Iterator[str]:
    """What is odd but no reason to stop."""
    if CLOCK_WARNING_SECONDS < abs(host.clock_skew_seconds) <= CLOCK_ERROR_SECONDS:
        yield f"{describe_skew(host)}; times in its records will be off."


def describe_skew(host: HostFacts) -> str:
    """Whose clock is how far off."""
    direction = "ahead of" if host.clock_skew_seconds > 0 else "behind"
    return f"The clock of {host.name} is {abs(host.clock_skew_seconds):.1f} s {direction} this machine's"
