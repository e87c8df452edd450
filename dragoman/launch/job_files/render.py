"""Renders job files and commands from the templates in this folder, and shows or saves them.

The config travels inside the Kubernetes manifest because pods see the cluster's volumes, not the person's machine. The
manifest mounts them with `runtimePatches`, which replaced `podTemplateOverrides` in Kubeflow Trainer 2.2.
"""

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dragoman import __version__
from dragoman.launch.hosts import Host
from dragoman.launch.job_files.request import JobRequest, check_request, parse_time
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder

SECONDS_TO_SAVE = 120
"""Time between the stop signal and the kill: to finish a step and write a checkpoint."""
_SECONDS_FOR_WORKERS = SECONDS_TO_SAVE - 10
"""torchrun kills workers 30 seconds after a stop signal by default; it needs a few seconds more to end itself."""
_DEFAULT_CPUS = 4
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
_TORCHRUN_PORT = 29_500
_MPI_NAME = re.compile(r"[A-Za-z0-9.-]+")
"""Open MPI's daemons crash at other characters in the name of a host."""
_THREADS_VARIABLE = "OMP_NUM_THREADS"
_PASSED_ON = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT")
"""Variables that workers read; mpirun hands down only those it is told to."""


def build_job_files(kind: str, request: JobRequest) -> dict[str, str]:
    """Checks the request and returns the text of each file by its name."""
    match kind:
        case "slurm":
            build = _slurm_files
        case "kubernetes":
            build = _kubernetes_files
        case "docker":
            build = _docker_files
        case "mpirun":
            build = _mpirun_command
        case "srun":
            build = _srun_command
        case "torchrun":
            build = _torchrun_commands
        case _:
            raise UsageError(f"--for is {kind!r}; it can be slurm, kubernetes, docker, mpirun, srun or torchrun.")
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
    _require_time_to_train(time)
    run = RunFolder(_run_folder(job))
    if "\\" in str(run.path):
        raise UsageError(
            f"The run folder {run.path} has a backslash, which Slurm removes from names of log files: rename it."
        )
    text = _render(
        "job.sbatch",
        job,
        run_dir=str(run.path),
        log=str(run.launch_log),
        status=str(run.status),
        time=time,
        program=_own_program(),
        current_folder=str(Path.cwd()),
        train=_train_command(_absolute(job.config), run.path, job.overrides, job.num_workers == 1),
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
    text = _render(
        "train_job.yaml",
        job,
        data=str(data),
        image=job.image or _DEFAULT_IMAGE,
        config_text=job.config.read_text(encoding="utf-8").strip() + "\n",
        config_folder=_CONFIG_IN_POD.parent,
        deadline_seconds=parse_time(job.time) if job.time else None,
        torchrun_arguments=_torchrun_arguments(_train_command(_CONFIG_IN_POD, run_dir, _with_corpus(job, prepared))),
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
        job,
        data=str(data),
        image=image,
        working_folder=str(Path.cwd() if Path.cwd().is_relative_to(data) else config.parent),
        torchrun_arguments=_torchrun_arguments(_train_command(config, run_dir, job.overrides)),
    )
    return {"Dockerfile": _render("Dockerfile", job, image=image), "compose.yaml": compose}


def _mpirun_command(job: JobRequest) -> dict[str, str]:
    """Renders a command for Open MPI, which starts the workers of other machines over ssh."""
    hosts = _require_hosts(job, "mpirun") or (Host("localhost", job.workers_per_node),)
    for host in hosts:
        if not _MPI_NAME.fullmatch(host.name):
            raise UsageError(
                f"--hosts: mpirun cannot use {host.name!r}, only letters, digits, - and dots: "
                "name the host in the ssh config, with its address and user, and give that name."
            )
    words = ["mpirun", "-H", ",".join(f"{host.name}:{host.num_workers}" for host in hosts)]
    # Otherwise each worker would be bound to one core or one socket.
    words += ["--bind-to", "none"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    if job.ssh_config is not None:
        words += ["--mca", "plm_rsh_agent", f"ssh -F {_ssh_config_for_mpirun(job.ssh_config)}"]
    for name, value in _variables(job, (_THREADS_VARIABLE, *_PASSED_ON)).items():
        words += ["-x", f"{name}={value}"]
    return _command_file("mpirun", job, [words])


def _ssh_config_for_mpirun(file: Path) -> Path:
    """Returns the full path; mpirun cuts the command of ssh at spaces and knows no quotes."""
    path = _absolute(file)
    if not path.is_file():
        raise UsageError(f"--ssh-config: there is no file {path}.")
    if " " in str(path):
        raise UsageError(f"--ssh-config {path} has a space, which mpirun cannot pass to ssh: rename or copy it.")
    return path


def _srun_command(job: JobRequest) -> dict[str, str]:
    """Renders a command that asks Slurm for nodes and waits until they have trained."""
    words = ["srun", f"--job-name={job.name}", f"--nodes={job.num_nodes}", f"--ntasks={job.num_workers}"]
    words += [f"--ntasks-per-node={job.workers_per_node}", f"--cpus-per-task={job.cpus_per_worker or _DEFAULT_CPUS}"]
    words += [f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []
    words += [f"--partition={job.partition}"] if job.partition else []
    if job.time:
        _require_time_to_train(job.time)
        words += [f"--time={job.time}", f"--signal=TERM@{SECONDS_TO_SAVE}"]
    # The others would wait for a worker that failed.
    return _command_file("srun", job, [[*words, "--kill-on-bad-exit=1"]])


def _torchrun_commands(job: JobRequest) -> dict[str, str]:
    """Renders a command for each machine; one machine alone needs no address."""
    hosts = _require_hosts(job, "torchrun")
    places = [["--standalone", f"--nproc-per-node={job.num_workers}"]]
    if len(hosts) > 1:
        first = hosts[0].name.rpartition("@")[2]
        if first in ("localhost", "127.0.0.1", "[::1]"):
            raise UsageError(f"--hosts: others cannot reach the first host as {first}: give its name in the network.")
        address = [f"--nnodes={len(hosts)}", f"--master-addr={first}", f"--master-port={_TORCHRUN_PORT}"]
        places = [
            [*address, f"--node-rank={rank}", f"--nproc-per-node={host.num_workers}"] for rank, host in enumerate(hosts)
        ]
    settings = [f"{name}={value}" for name, value in _variables(job, (_THREADS_VARIABLE,)).items()]
    program = [*(["env", *settings] if settings else []), str(Path(_own_program()).with_name("torchrun"))]
    return _command_file("torchrun", job, [[*program, *place, *_torchrun_options()] for place in places])


def _require_time_to_train(time: str) -> None:
    if parse_time(time) < _SHORTEST_SECONDS:
        raise UsageError(
            f"--time {time} is too short: Slurm asks workers to stop up to 3 minutes before; give 5 minutes or more."
        )


def _require_hosts(job: JobRequest, kind: str) -> tuple[Host, ...]:
    """Returns the hosts, none if the workers run on this machine only."""
    if job.hosts is None and job.num_nodes > 1:
        raise UsageError(f"--for {kind} needs the names of the {job.num_nodes} machines, for example --hosts a:2,b:2.")
    return job.hosts or ()


def _variables(job: JobRequest, names: Sequence[str]) -> dict[str, str]:
    """Returns the variables that are set here, and the number of threads if it was asked for."""
    found = {name: value for name in names if (value := os.environ.get(name))}
    return found | ({_THREADS_VARIABLE: str(job.cpus_per_worker)} if job.cpus_per_worker else {})


def _command_file(kind: str, job: JobRequest, launchers: Sequence[Sequence[str]]) -> dict[str, str]:
    """Renders commands to copy into a shell: those of a launcher, each with the command of the workers."""
    run_dir, program = _run_folder(job), _own_program()
    overrides = _with_corpus(job, _absolute(job.settings.data.prepared))
    # torchrun gives a rank even to a worker that is alone.
    is_alone = job.num_workers == 1 and kind != "torchrun"
    train = shlex.join([program, *_train_command(_absolute(job.config), run_dir, overrides, is_alone)])
    commands = [f"{shlex.join(words)} \\\n  {train}" for words in launchers]
    text = _render("command.sh", job, kind=kind, program=program, run_dir=str(run_dir), commands=commands)
    return {f"{job.name}.sh": text}


# Words of commands


def _run_folder(job: JobRequest) -> Path:
    return _absolute(job.run_dir or Path("runs") / job.name)


def _own_program() -> str:
    """Returns the full path of the running program, so that a job needs no activated environment."""
    installed = Path(sys.executable).with_name("dragoman")
    return str(installed) if installed.exists() else "dragoman"


def _train_command(config: Path, run_dir: Path, overrides: Sequence[str], is_alone: bool = False) -> list[str]:
    """Returns the arguments of every worker; the same command starts the run and continues it.

    `is_alone`: mpirun or srun starts one process, which cannot tell that from being started by a person and would start
    a worker for each core.
    """
    changes = [word for override in overrides for word in ("--set", override)]
    number = ["--workers", "1"] if is_alone else []
    return ["train", str(config), "--run-dir", str(run_dir), *changes, *number, "--continue"]


def _with_corpus(job: JobRequest, prepared: Path) -> list[str]:
    """Returns the changes of settings; a relative path of the corpus is made absolute for workers in other folders."""
    is_absolute = prepared == job.settings.data.prepared
    return [*job.overrides, *([] if is_absolute else [f"data.prepared={prepared}"])]


def _torchrun_arguments(train: Sequence[str]) -> list[str]:
    """Returns the arguments with which torchrun starts a worker in a container; those about nodes come before them."""
    return [*_torchrun_options(), "dragoman", *train]


def _torchrun_options() -> list[str]:
    return [f"--shutdown-timeout={_SECONDS_FOR_WORKERS}", "--no-python"]


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


def _render(name: str, job: JobRequest, **values: Any) -> str:
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
    cpus_per_worker = job.cpus_per_worker or _DEFAULT_CPUS
    template = environment.get_template(f"{name}.j2")
    return template.render(values, job=job, cpus_per_worker=cpus_per_worker, seconds_to_save=SECONDS_TO_SAVE)


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
