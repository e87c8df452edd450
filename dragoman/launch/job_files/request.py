"""What a job file is asked for, and quoting for the shells and formats it is written in."""

import os
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.run.config import Settings
from dragoman.run.errors import UsageError

_NOT_ON_A_LINE = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode categories of what ends lines, steers terminals or is no character at all."""


def require_one_line(text: str, what: str) -> None:
    """Refuses what could end a line: scripts have comments and directives, which no quoting protects."""
    if any(unicodedata.category(character) in _NOT_ON_A_LINE for character in text):
        raise UsageError(f"{what} {text!r} has a character that cannot stand in a job file: rename it.")


def yaml_text(text: str) -> str:
    """A YAML scalar that reads as exactly this text."""
    return '"' + "".join(_yaml_character(character) for character in text) + '"'


def _yaml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def yaml_list(texts: list[str], indent: int) -> str:
    """A YAML list of texts, one a line, to stand under its key."""
    return "\n".join(f"{' ' * indent}- {yaml_text(text)}" for text in texts)


def yaml_block(text: str, indent: int) -> str:
    """Lines of text as a YAML value that people can read, or as one scalar where a block could change them."""
    if not _survives_as_block(text):
        return yaml_text(text)
    return "|\n" + textwrap.indent(text.removesuffix("\n"), " " * indent)


def _survives_as_block(text: str) -> bool:
    """Whether a block keeps it all: YAML counts the first line's margin, and may drop blanks and further line ends."""
    *lines, rest = text.split("\n")
    if rest or not lines or not lines[-1] or lines[0] != lines[0].strip() or not lines[0]:
        return False
    return all(line.isprintable() and not line.isspace() for line in lines)


def double_dollars(text: str) -> str:
    """Text that survives the expansion of $VARIABLES by Compose, or of $(VARIABLES) by Kubernetes."""
    return text.replace("$", "$$")


SECONDS_TO_SAVE = 120
"""Between the polite signal and the hard one: time to finish a step and write a checkpoint."""

_ONLY_FOR = {
    "partition": ("slurm",),
    "time": ("slurm", "kubernetes"),
    "image": ("kubernetes", "docker"),
    "data": ("kubernetes", "docker"),
    "claim": ("kubernetes",),
}
"""Options that not every kind has a use for."""

_PATTERNS = {
    # The strictest of all, Kubernetes': a label of the domain name system, short enough for the suffixes of pods.
    "name": (re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"), "small letters, digits and -, a letter first, 40 at most"),
    "partition": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*"), "letters, digits and _ . , -"),
    "image": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}"), "letters, digits and _ . / : @ -"),
    "claim": (re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"), "small letters, digits, . and -"),
}
_TIME = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)", re.ASCII)


@dataclass(frozen=True)
class JobRequest:
    """A job as a person asked for it; None is what they left to us."""

    config: Path
    settings: Settings
    name: str
    overrides: tuple[str, ...] = ()
    num_nodes: int = 1
    workers_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_worker: int = 4
    run_dir: Path | None = None
    time: str | None = None
    partition: str | None = None
    image: str | None = None
    data: Path | None = None
    claim: str | None = None

    @property
    def num_workers(self) -> int:
        """On all nodes together."""
        return self.num_nodes * self.workers_per_node

    @property
    def workers_in_words(self) -> str:
        """For comments and complaints."""
        nodes = f"{self.num_nodes} nodes" if self.num_nodes > 1 else "1 node"
        workers = f"{self.num_workers} workers" if self.num_workers > 1 else "1 worker"
        return f"{workers} on {nodes}"


def check_request(request: JobRequest, kind: str) -> None:
    """Refuses, in one sentence, what could not become a job that runs."""
    for option, kinds in _ONLY_FOR.items():
        if getattr(request, option) is not None and kind not in kinds:
            raise UsageError(f"--{option} means nothing for {kind}, only for {' and '.join(kinds)}: leave it out.")
    _check_words(request)
    _check_numbers(request)


def _check_words(request: JobRequest) -> None:
    for option, (pattern, allowed) in _PATTERNS.items():
        value = getattr(request, option)
        if value is not None and not pattern.fullmatch(value):
            raise UsageError(f"--{option} cannot be {value!r}: it takes {allowed}.")
    texts = {
        "The config": request.config,
        "The run folder": request.run_dir,
        "The folder of data": request.data,
        "data.prepared": request.settings.data.prepared,
        "The present folder": Path.cwd(),
    }
    for what, path in texts.items():
        require_one_line(str(path or ""), what)
    for override in request.overrides:
        require_one_line(override, "--set")


def _check_numbers(request: JobRequest) -> None:
    virtual_workers = request.settings.training.virtual_workers
    if request.num_workers > virtual_workers:
        raise UsageError(
            f"{request.workers_in_words} cannot share {virtual_workers} virtual workers: "
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
    """Seconds of [DAYS-]HOURS:MINUTES:SECONDS, Slurm's way to write them."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise UsageError(f"--time cannot be {time!r}: write HH:MM:SS or D-HH:MM:SS, for example 12:00:00.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def name_job(config: Path) -> str:
    """A name any scheduler takes, from the config file's."""
    words = re.sub(r"[^a-z0-9]+", "-", config.stem.lower()).strip("-")
    name = words if words[:1].isalpha() else f"run-{words}"
    return name[:40].strip("-")


def train_command(config: Path, run_dir: Path, overrides: Sequence[str] = ()) -> list[str]:
    """The arguments every worker gets: the same command starts the run and continues it."""
    changes = [word for override in overrides for word in ("--set", override)]
    return ["train", str(config), "--run-dir", str(run_dir), *changes, "--continue"]


def absolute(path: Path, beside: Path | None = None) -> Path:
    """The path from the root, without `..`; links stay as people named them, since nodes may mount them elsewhere."""
    return Path(os.path.abspath((beside or Path.cwd()) / path))  # noqa: PTH100 - resolve() would follow links
