"""The hosts of a run: which ones a person asked for, what each reports about itself, and whether it can take part."""

import hashlib
import ipaddress
import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

import dragoman
from dragoman.run.budget import Budget
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import read_json, write_json
from dragoman.run.folder import RunFolder
from dragoman.run.processes import num_physical_cores
from dragoman.run.units import format_bytes

if TYPE_CHECKING:
    from dragoman.run.config import Settings

CLOCK_WARNING_SECONDS = 2.0
CLOCK_ERROR_SECONDS = 60.0
_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?"
_NAME = rf"{_USER}(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])"
_BARE_IPV6 = re.compile(rf"({_USER})([0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*)")
_INSTALL_THE_SAME = "install the same on both."
_EXAMPLE = "for example --hosts a:2,user@b:2"


@dataclass(frozen=True)
class Host:
    """A machine a person asked for, by its name in ssh."""

    name: str
    """As it was given; an IPv6 address is in brackets."""
    num_workers: int | None = None
    """None: one per GPU; without GPUs one per core of this machine if it is alone, otherwise one per machine."""

    @property
    def is_this_machine(self) -> bool:
        """Whether it is reached without ssh."""
        return self.name in ("localhost", "127.0.0.1", "[::1]", socket.gethostname())

    @property
    def ssh_name(self) -> str:
        """The name for ssh, which takes IPv6 addresses without brackets."""
        return self.name.replace("[", "").replace("]", "")

    @property
    def copy_name(self) -> str:
        """The name for rsync and scp, which take IPv6 addresses in brackets, because a path follows after a colon."""
        return self.name

    @property
    def text(self) -> str:
        """Writes the host as --hosts takes it: "a:2"."""
        return self.name if self.num_workers is None else f"{self.name}:{self.num_workers}"


@dataclass(frozen=True)
class Placement:
    """Where the workers of a run are started."""

    hosts: tuple[Host, ...]
    min_hosts: int = 1
    """The run waits while fewer hosts are up."""
    ssh_config: Path | None = None
    is_data_sent: bool = False

    @classmethod
    def on_this_machine(cls, num_workers: int | None = None) -> Self:
        """Places all workers on this machine; None lets the launcher choose their number."""
        return cls((Host("localhost", num_workers),))

    @property
    def is_only_this_machine(self) -> bool:
        """Whether no other machine takes part."""
        return all(host.is_this_machine for host in self.hosts)

    @property
    def is_chosen(self) -> bool:
        """Whether a person chose hosts or a number of workers."""
        return self != Placement.on_this_machine()

    @property
    def num_workers(self) -> int:
        """Number of workers, as far as it is known before the hosts are asked."""
        return sum(1 if host.num_workers is None else host.num_workers for host in self.hosts)


@dataclass(frozen=True)
class _SavedHost:
    """One host in hosts.json."""

    name: str
    workers: Annotated[int, Field(ge=1, strict=True)] | None


@dataclass(frozen=True)
class _SavedPlacement:
    """Content of hosts.json."""

    hosts: Annotated[list[_SavedHost], Field(min_length=1)]
    min_hosts: Annotated[int, Field(ge=1, strict=True)]
    ssh_config: str | None
    send_data: Annotated[bool, Field(strict=True)]


def save_placement(run: RunFolder, placement: Placement) -> None:
    """Writes hosts.json, so that the run can be continued without naming its hosts again."""
    config = placement.ssh_config
    saved = _SavedPlacement(
        [_SavedHost(host.name, host.num_workers) for host in placement.hosts],
        placement.min_hosts,
        str(config.absolute()) if config else None,
        placement.is_data_sent,
    )
    write_json(run.placement, asdict(saved))


def load_placement(run: RunFolder) -> Placement | None:
    """Reads hosts.json; None where a run has none, and a UserError where it is damaged."""
    try:
        saved = TypeAdapter(_SavedPlacement).validate_python(read_json(run.placement))
        # Parsed like the option: ssh could read a name in a damaged file as an option of its own.
        hosts = parse_hosts(",".join(Host(host.name, host.workers).text for host in saved.hosts))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(run, f"it cannot be read ({describe_os_error(error)})") from None
    except (ValidationError, ValueError, RecursionError, UsageError):
        raise _unusable(run, "it is damaged") from None
    if saved.min_hosts > len(hosts):
        raise _unusable(run, "it is damaged")
    ssh_config = Path(saved.ssh_config) if saved.ssh_config else None
    if ssh_config and ssh_config.resolve().is_relative_to(run.path.resolve()):
        # An ssh config can name programs to start; a run folder may come from somebody else.
        raise _unusable(run, f"its ssh config {ssh_config} is inside the run folder")
    return Placement(hosts, saved.min_hosts, ssh_config, saved.send_data)


def _unusable(run: RunFolder, reason: str) -> UserError:
    return UserError(
        f"The hosts of the run cannot be taken from {run.placement}: {reason}. Give them again with --hosts A:N,B:N "
        "(and --ssh-config), or --workers N for this machine."
    )


@dataclass(frozen=True)
class LaunchPlan:
    """A run to launch: its module, its hosts and its limits."""

    run: RunFolder
    module: str
    """The module that each worker runs, with the run folder as its argument."""
    placement: Placement
    prepared: Path
    kept_bytes: int
    """Disk space for the checkpoints kept at one time."""
    max_workers: int
    hang_timeout: float
    """Infinite where nobody looks for hangs."""
    host_timeout: float
    max_restarts: int
    """Allowed restarts in a row that reach no new step."""
    ports: range | None = None
    """Ports that hosts may use between each other; None for any."""
    is_resumed: bool = False
    """Whether the run must continue from a checkpoint."""
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def from_settings(
        cls,
        run: RunFolder,
        settings: "Settings",
        placement: Placement,
        module: str,
        kept_bytes: int = 0,
        is_resumed: bool = False,
    ) -> Self:
        """Builds the plan of a run; other hosts get absolute paths."""
        cluster = settings.cluster
        return cls(
            run if placement.is_only_this_machine else RunFolder(run.path.absolute()),
            module,
            placement,
            settings.data.prepared.absolute(),
            kept_bytes,
            settings.training.virtual_workers,
            cluster.hang_timeout or math.inf,
            cluster.host_timeout,
            cluster.max_restarts,
            cluster.port_range,
            is_resumed,
            Budget.from_settings(settings.training),
        )


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parses a host list; refuses names that ssh could read as an option or a shell as a command."""
    hosts = tuple(_parse_host(item) for item in text.split(","))
    names = [host.name for host in hosts]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--hosts names {min(twice)} twice; give each host once, with the sum of its workers.")
    return hosts


def _parse_host(item: str) -> Host:
    match = re.fullmatch(rf"({_NAME})(?::(\d{{1,9}}))?", item.strip())
    if match is None:
        if (bare := _BARE_IPV6.fullmatch(item.strip())) and _is_ipv6(bare[2]):
            raise UsageError(f"--hosts: {item!r} is unclear: {_in_brackets(bare[1], bare[2])}.")
        raise UsageError(f"--hosts: {item!r} is not a host name with a number of workers; {_EXAMPLE}.")
    name, num_workers = match[1], match[2]
    if num_workers is not None and int(num_workers) < 1:
        raise UsageError(f"--hosts: {name} needs at least 1 worker, not {num_workers}; {_EXAMPLE}.")
    if name.endswith("]"):
        _check_ipv6(name.partition("[")[2].rstrip("]"))
    return Host(name, int(num_workers) if num_workers else None)


def _in_brackets(user: str, address: str) -> str:
    """Says how to write an IPv6 address, of which the last part may have been meant as a number of workers."""
    first, _, last = address.rpartition(":")
    is_number = last.isdecimal() and _is_ipv6(first)
    with_number = f", or {user}[{first}]:{last} for {last} workers on {first}" if is_number else ""
    return f"write an IPv6 address in brackets, {user}[{address}]{with_number}"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _check_ipv6(text: str) -> None:
    """Refuses addresses at which no other host can reach a host."""
    if not _is_ipv6(text):
        raise UsageError(f"--hosts: [{text}] is not an IPv6 address; for example --hosts [fd00::1]:2.")
    address = ipaddress.IPv6Address(text)
    if address.is_link_local:
        raise UsageError(
            f"--hosts: {text} is a link-local address, which has a meaning on one network card only: use the name of "
            "the host, or an address that begins differently than fe80."
        )
    if address.is_unspecified or address.is_multicast:
        raise UsageError(f"--hosts: {text} is not the address of one host.")


@dataclass(frozen=True)
class HostFacts:
    """Facts that a host reports about itself and its copy of the run."""

    hostname: str
    dragoman: str
    code: str
    """Hash of the package's source files: two clones may have the same version but different code."""
    torch: str
    num_cores: int
    num_gpus: int
    data: str | None
    """Hash of the prepared corpus; None if it is missing or incomplete."""
    config: str | None
    """Hash of the run's config.toml; None if there is none."""
    shares_run_folder: bool
    """Whether the host sees the launcher's run folder."""
    newest_step: int | None
    """The step of the newest checkpoint in its run folder."""
    free_disk_bytes: int
    time: float

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, name: str, values: Mapping[str, Any], here: Self) -> Self:
        """Builds the facts of a host from what `to_json` returned there.

        Versions are compared first, as a UserError: the facts of another version may have other names.
        """
        version, code = values.get("dragoman", "of an unknown version"), str(values.get("code"))
        if version != here.dragoman:
            raise UserError(f"{name} has dragoman {version}, this machine has {here.dragoman}: {_INSTALL_THE_SAME}")
        if code != here.code:
            raise UserError(
                f"{name} runs different dragoman code from this machine ({code[:12]} there, {here.code[:12]} here): "
                "check out the same commit on both."
            )
        return cls(**values)


def gather_facts(run: RunFolder, prepared: Path, token: str) -> HostFacts:
    """Collects the facts of this machine; `token` is the name of a file the launcher made in its run folder."""
    return HostFacts(
        hostname=socket.gethostname(),
        dragoman=dragoman.__version__,
        code=code_fingerprint(),
        torch=version("torch"),
        num_cores=num_physical_cores(),
        num_gpus=count_gpus(),
        data=data_fingerprint(prepared),
        config=config_fingerprint(run),
        shares_run_folder=(run.path / token).exists(),
        newest_step=max(run.checkpoint_steps(), default=None),
        free_disk_bytes=free_disk(run.path),
        time=time.time(),
    )


def code_fingerprint() -> str:
    """Returns a hash of the package's source files."""
    folder = Path(dragoman.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def data_fingerprint(prepared: Path) -> str | None:
    """Returns a hash of the manifest of a prepared corpus; None if files are missing or too short."""
    try:
        files = read_json(prepared / "manifest.json")["files"]
        is_complete = all((prepared / name).stat().st_size == record["num_bytes"] for name, record in files.items())
        # The reports for people name the user's files, which may differ between hosts.
        content = {name: record["sha256"] for name, record in files.items() if not name.endswith(".md")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() if is_complete else None


def config_fingerprint(run: RunFolder) -> str | None:
    """Returns a hash of the config in the run folder; None if there is none."""
    try:
        return hashlib.sha256(run.config.read_bytes()).hexdigest()
    except OSError:
        return None


def free_disk(folder: Path) -> int:
    """Returns the free bytes on the disk of a folder, which need not exist yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def count_gpus() -> int:
    """Counts the GPUs this process may use, without importing torch, which takes seconds."""
    if version("torch").endswith("+cpu"):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def host_problems(
    name: str, there: HostFacts, here: HostFacts, plan: LaunchPlan, clock_skew_seconds: float
) -> Iterator[str]:
    """Returns every reason not to start with a host, each with what to do; `here` are the facts of this machine."""
    if there.torch != here.torch:
        yield f"{name} has torch {there.torch}, this machine has {here.torch}: {_INSTALL_THE_SAME}"
    if there.data is None and not plan.placement.is_data_sent:
        yield (
            f"{name} has no complete prepared corpus in {plan.prepared} ({str(here.data)[:12]} here): "
            "copy it there, or use --send-data."
        )
    elif there.data not in (None, here.data):
        yield (
            f"{name} has different data from this machine in {plan.prepared} ({str(there.data)[:12]} there, "
            f"{str(here.data)[:12]} here): remove it there and use --send-data, or prepare it again."
        )
    has_own_run = not there.shares_run_folder and there.config is not None
    if has_own_run and there.config != here.config and not plan.is_resumed:
        yield (
            f"{name} has a different run in {plan.run.path} (config {str(there.config)[:12]} there, "
            f"{str(here.config)[:12]} here): choose another --run-dir, or remove it there."
        )
    if there.free_disk_bytes < plan.kept_bytes:
        yield (
            f"{name} has {format_bytes(there.free_disk_bytes)} free for {plan.run.path}, but the checkpoints kept "
            f"there need {format_bytes(plan.kept_bytes)}: free some space, or lower checkpoints.keep_last."
        )
    if abs(clock_skew_seconds) > CLOCK_ERROR_SECONDS:
        yield f"{_describe_skew(name, clock_skew_seconds)}: set the clocks (NTP)."


def clock_warning(name: str, clock_skew_seconds: float) -> str | None:
    """Returns a warning about a clock that is a few seconds off; None if it is right or wrong enough to be refused."""
    if CLOCK_WARNING_SECONDS < abs(clock_skew_seconds) <= CLOCK_ERROR_SECONDS:
        return f"{_describe_skew(name, clock_skew_seconds)}; times in its records will be off."
    return None


def _describe_skew(name: str, seconds: float) -> str:
    direction = "ahead of" if seconds > 0 else "behind"
    return f"The clock of {name} is {abs(seconds):.1f} s {direction} this machine's"
