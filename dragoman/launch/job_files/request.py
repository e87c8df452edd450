"""A request for job files or a command, checked before anything is rendered."""

import re
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.launch.hosts import Host, parse_hosts
from dragoman.run.config import Settings
from dragoman.run.errors import UsageError

_NOT_ALLOWED = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that end lines, control terminals or are incomplete."""

_ONLY_FOR = {
    "hosts": ("mpirun", "torchrun"),
    "ssh_config": ("mpirun",),
    "partition": ("slurm", "srun"),
    "time": ("slurm", "srun", "kubernetes"),
    "image": ("kubernetes", "docker"),
    "data": ("kubernetes", "docker"),
    "claim": ("kubernetes",),
}
"""Options that some kinds do not use."""

_PATTERNS = {
    # The strictest rule is that of Kubernetes: a DNS label, short enough for the suffixes of pods.
    "name": (re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"), "small letters, digits and -, a letter first, 40 at most"),
    "partition": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*"), "letters, digits and _ . , -"),
    "image": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}"), "letters, digits and _ . / : @ -"),
    "claim": (re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"), "small letters, digits, . and -"),
}
_TIME = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)", re.ASCII)


@dataclass(frozen=True)
class JobRequest:
    """A job as a person asked for it; None stands for a default."""

    config: Path
    settings: Settings
    name: str
    overrides: tuple[str, ...] = ()
    num_nodes: int = 1
    workers_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_worker: int | None = None
    """None: 4 where a scheduler must know it; without one, the workers of a machine divide its cores."""
    run_dir: Path | None = None
    time: str | None = None
    partition: str | None = None
    image: str | None = None
    data: Path | None = None
    claim: str | None = None
    hosts: tuple[Host, ...] | None = None
    """The nodes by name, each with its number of workers; None where a scheduler chooses them."""
    ssh_config: Path | None = None

    @property
    def num_workers(self) -> int:
        """Number of workers on all nodes."""
        if self.hosts is None:
            return self.num_nodes * self.workers_per_node
        return sum(host.num_workers or 1 for host in self.hosts)

    def describe_workers(self) -> str:
        """Returns for example "4 workers on 2 nodes"."""
        nodes = f"{self.num_nodes} nodes" if self.num_nodes > 1 else "1 node"
        workers = f"{self.num_workers} workers" if self.num_workers > 1 else "1 worker"
        return f"{workers} on {nodes}"


def check_request(request: JobRequest, kind: str) -> None:
    """Refuses a request that could not become a job that runs."""
    for option, kinds in _ONLY_FOR.items():
        if getattr(request, option) is not None and kind not in kinds:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} means nothing for {kind}, only for {', '.join(kinds)}: leave it out.")
    _check_texts(request)
    _check_numbers(request)


def _check_texts(request: JobRequest) -> None:
    for option, (pattern, allowed) in _PATTERNS.items():
        value = getattr(request, option)
        if value is not None and not pattern.fullmatch(value):
            raise UsageError(f"--{option} cannot be {value!r}: it takes {allowed}.")
    paths = {
        "The config": request.config,
        "The run folder": request.run_dir,
        "The folder of data": request.data,
        "data.prepared": request.settings.data.prepared,
        "The ssh config": request.ssh_config,
        "The current folder": Path.cwd(),
    }
    for what, path in paths.items():
        _require_one_line(str(path or ""), what)
    for override in request.overrides:
        _require_one_line(override, "--set")


def _require_one_line(text: str, what: str) -> None:
    """Refuses characters that could end a line: comments and directives in scripts cannot be quoted."""
    if any(unicodedata.category(character) in _NOT_ALLOWED for character in text):
        raise UsageError(f"{what} {text!r} has a character that cannot stand in a job file: rename it.")


def _check_numbers(request: JobRequest) -> None:
    virtual_workers = request.settings.training.virtual_workers
    if request.num_workers > virtual_workers:
        raise UsageError(
            f"{request.describe_workers()} cannot share {virtual_workers} virtual workers: "
            f"ask for at most {virtual_workers} workers, or raise training.virtual_workers."
        )
    if 0 < request.gpus_per_node < request.workers_per_node:
        raise UsageError(
            f"--gpus-per-node {request.gpus_per_node} is not enough for {request.workers_per_node} workers, "
            f"each of which needs its own; 0 trains on CPUs."
        )
    if request.time is not None:
        parse_time(request.time)


def parse_time(time: str) -> int:
    """Converts [DAYS-]HOURS:MINUTES:SECONDS, as Slurm writes times, to seconds."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise UsageError(f"--time cannot be {time!r}: write HH:MM:SS or D-HH:MM:SS, for example 12:00:00.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def choose_hosts(text: str | None, nodes: int | None, workers_per_node: int) -> tuple[Host, ...] | None:
    """Parses a list of hosts; those without a number get the number of workers that is meant for all."""
    if text is None:
        return None
    hosts = parse_hosts(text)
    if nodes not in (None, len(hosts)):
        raise UsageError(f"--nodes {nodes} does not fit the {len(hosts)} hosts in --hosts: leave it out.")
    return tuple(replace(host, num_workers=host.num_workers or workers_per_node) for host in hosts)


def name_job(config: Path) -> str:
    """Derives a name that every scheduler accepts from the name of the config file."""
    words = re.sub(r"[^a-z0-9]+", "-", config.stem.lower()).strip("-")
    name = words if words[:1].isalpha() else f"run-{words}"
    return name[:40].strip("-")
