"""Renders job files from the templates in this folder, and shows or saves them.

The config travels inside the Kubernetes manifest because pods see the cluster's volumes, not the person's machine. The
manifest mounts them with `runtimePatches`, which replaced `podTemplateOverrides` in Kubeflow Trainer 2.2.
"""

import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dragoman import __version__
from dragoman.launch.job_files.request import JobRequest, check_request, parse_time
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder

SECONDS_TO_SAVE = 120
"""Time between the stop signal and the kill: to finish a step and write a checkpoint."""
_SECONDS_FOR_WORKERS = SECONDS_TO_SAVE - 10
"""torchrun kills workers 30 seconds after a stop signal by default; it needs a few seconds more to end itself."""
_DEFAULT_TIME = "12:00:00"
_MAX_RESTARTS = 10
"""A killed worker is restarted, but not without end: if memory is too small, it is killed again."""
_SHORTEST_SECONDS = 300
"""Slurm may send its signal a minute early; a job without time to train would be queued again forever."""
_DEFAULT_IMAGE = f"dragoman:{__version__}"
"""A version and not `latest`, which Kubernetes would pull at every start."""
_DEFAULT_DATA = Path("/data")
"""Where pods mount their volume."""
_CONFIG_IN_POD = Path("/etc/dragoman/config.toml")


def build_job_files(kind: str, request: JobRequest) -> dict[str, str]:
    """Checks the request and returns the text of each file by its name."""
    match kind:
        case "slurm":
            build = _slurm_files
        case "kubernetes":
            build = _kubernetes_files
        case "docker":
            build = _docker_files
        case _:
            raise UsageError(f"--for is {kind!r}; it can be slurm, kubernetes or docker.")
    check_request(request, kind)
    return build(request)


def show_files(files: dict[str, str]) -> str:
    """Joins the files to one text; with several files, a line before each gives its name."""
    if len(files) == 1:
        return "".join(files.values())
    return "\n".join(f"# --- {name} ---\n{text}" for name, text in files.items())


def save_files(files: dict[str, str], out: Path, may_replace: bool) -> list[Path]:
    """Writes the files into a folder, or a single file to `out` itself; returns their paths."""
    is_folder = len(files) > 1 or out.is_dir()
    texts = {out / name if is_folder else out: text for name, text in files.items()}
    for path in texts:
        if path.exists() and not may_replace:
            raise UserError(f"{path} exists already: give --force to replace it, or another place with --out.")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {describe_os_error(error)}.") from error
    return list(texts)


# Kinds


def _slurm_files(job: JobRequest) -> dict[str, str]:
    """Renders a script that saves before the time limit and queues itself again, but only after an orderly stop."""
    time = job.time or _DEFAULT_TIME
    if parse_time(time) < _SHORTEST_SECONDS:
        raise UsageError(
            f"--time {time} is too short: Slurm asks workers to stop up to 3 minutes before; give 5 minutes or more."
        )
    run = RunFolder(_absolute(job.run_dir or Path("runs") / job.name))
    if "\\" in str(run.path):
        raise UsageError(
            f"The run folder {run.path} has a backslash, which Slurm removes from names of log files: rename it."
        )
    text = _render(
        "job.sbatch",
        job=job,
        run_dir=str(run.path),
        log=str(run.launch_log),
        status=str(run.status),
        time=time,
        program=_own_program(),
        current_folder=str(Path.cwd()),
        train=_train_command(_absolute(job.config), run.path, job.overrides),
        max_restarts=_MAX_RESTARTS,
    )
    return {f"{job.name}.sbatch": text}


def _kubernetes_files(job: JobRequest) -> dict[str, str]:
    """Renders a TrainJob of Kubeflow Trainer, and a ConfigMap with the config it reads."""
    data = _absolute(job.data or _DEFAULT_DATA)
    if ":" in str(data):
        raise UsageError(f"--data {data} has a colon, which Kubernetes does not allow in a mount path: rename it.")
    # Pods look for relative paths in the mounted folder, the only one they know.
    run_dir = _absolute(job.run_dir or Path("runs") / job.name, base=data)
    prepared = _absolute(job.settings.data.prepared, base=data)
    _require_below(run_dir, data, "The run folder")
    _require_below(prepared, data, "data.prepared")
    is_absolute = prepared == job.settings.data.prepared
    overrides = [*job.overrides, *([] if is_absolute else [f"data.prepared={prepared}"])]
    text = _render(
        "train_job.yaml",
        job=job,
        data=str(data),
        image=job.image or _DEFAULT_IMAGE,
        config_text=job.config.read_text(encoding="utf-8").strip() + "\n",
        config_folder=_CONFIG_IN_POD.parent,
        deadline_seconds=parse_time(job.time) if job.time else None,
        torchrun_arguments=_torchrun_arguments(_train_command(_CONFIG_IN_POD, run_dir, overrides)),
    )
    return {f"{job.name}.yaml": text}


def _docker_files(job: JobRequest) -> dict[str, str]:
    """Renders a Dockerfile and a compose file: one container per machine, on the machine's own network."""
    data, config = _absolute(job.data or Path.cwd()), _absolute(job.config)
    run_dir = _absolute(job.run_dir or data / "runs" / job.name)
    _require_below(config, data, "The config")
    _require_below(run_dir, data, "The run folder")
    _require_below(_absolute(job.settings.data.prepared), data, "data.prepared")
    image = job.image or _DEFAULT_IMAGE
    compose = _render(
        "compose.yaml",
        job=job,
        data=str(data),
        image=image,
        working_folder=str(Path.cwd() if Path.cwd().is_relative_to(data) else config.parent),
        torchrun_arguments=_torchrun_arguments(_train_command(config, run_dir, job.overrides)),
    )
    return {"Dockerfile": _render("Dockerfile", image=image, job=job), "compose.yaml": compose}


def _own_program() -> str:
    """Returns the full path of the running program, so that a job needs no activated environment."""
    installed = Path(sys.executable).with_name("dragoman")
    return str(installed) if installed.exists() else "dragoman"


def _train_command(config: Path, run_dir: Path, overrides: Sequence[str]) -> list[str]:
    """Returns the arguments of every worker; the same command starts the run and continues it."""
    changes = [word for override in overrides for word in ("--set", override)]
    return ["train", str(config), "--run-dir", str(run_dir), *changes, "--continue"]


def _torchrun_arguments(train: Sequence[str]) -> list[str]:
    """Returns the arguments with which torchrun starts a worker; those about nodes come before them."""
    return [f"--shutdown-timeout={_SECONDS_FOR_WORKERS}", "--no-python", "dragoman", *train]


def _require_below(path: Path, folder: Path, what: str) -> None:
    """Refuses a path that containers cannot find: they see one folder only."""
    if not path.is_relative_to(folder):
        raise UsageError(
            f"{what} is {path}, but containers see only {folder}: "
            f"move it there, or name a folder that contains it with --data."
        )


def _absolute(path: Path, base: Path | None = None) -> Path:
    """Returns the path from the root, without `..`; links are kept, since nodes may mount them elsewhere."""
    return Path(os.path.abspath((base or Path.cwd()) / path))  # noqa: PTH100 - resolve() would follow links


# Templates and quoting


def _render(name: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701 - not HTML; the filters below quote for shells and YAML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "shell": shlex.quote,
        "sbatch": quote_directive,
        "yaml": quote_yaml,
        "yaml_block": quote_yaml_block,
        "double_dollars": double_dollars,
    }
    return environment.get_template(f"{name}.j2").render(values, seconds_to_save=SECONDS_TO_SAVE)


def quote_directive(text: str) -> str:
    """Quotes for sbatch, which is no shell: a backslash escapes even between quotes, but never a space outside them."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def double_dollars(text: str) -> str:
    """Protects a text from the expansion of $VARIABLES by Compose, or of $(VARIABLES) by Kubernetes."""
    return text.replace("$", "$$")


def quote_yaml(text: str) -> str:
    """Returns a YAML scalar that reads as exactly this text."""
    return '"' + "".join(_escape_for_yaml(character) for character in text) + '"'


def _escape_for_yaml(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def quote_yaml_block(text: str, indent: int) -> str:
    """Returns a YAML block, which people can read, or one scalar if a block could change the text."""
    if not _survives_as_block(text):
        return quote_yaml(text)
    return "|\n" + textwrap.indent(text.removesuffix("\n"), " " * indent)


def _survives_as_block(text: str) -> bool:
    """Whether a block keeps the whole text: YAML uses the first line's margin and may drop blanks and line ends."""
    *lines, rest = text.split("\n")
    if rest or not lines or not lines[-1] or lines[0] != lines[0].strip() or not lines[0]:
        return False
    return all(line.isprintable() and not line.isspace() for line in lines)
