"""Commands that train: `demo`, and `train` on this machine, on a list of hosts, or as a process of another launcher."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, message_printer, print_json, say
from dragoman.run.errors import UsageError
from dragoman.run.folder import RunFolder
from dragoman.run.processes import waiting_variables

if TYPE_CHECKING:
    from dragoman.cluster.environment import RankInfo
    from dragoman.launch.hosts import Placement
    from dragoman.run.config import Settings

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", help="Worker processes. Default: one per GPU, or one per core without GPU."),
]
Hosts = Annotated[
    str | None, typer.Option(metavar="A:N,B:N", help="Hosts to use over ssh, with the number of workers on each.")
]
SendData = Annotated[
    bool, typer.Option("--send-data", help="With --hosts: copy the prepared data to hosts that lack it.")
]
SshConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --hosts: ssh config file, like ssh -F. Default: ssh's own files."),
]


def add_train_commands(app: typer.Typer) -> None:
    """Adds the commands of this file to the command line."""
    add_command(app, demo, "dragoman demo", "dragoman demo --run-dir runs/first")
    add_command(
        app,
        train,
        "dragoman train --source my.en --target my.de",
        "dragoman train config.toml --set training.max_steps=5000 --workers 2",
        "dragoman train config.toml --hosts a:2,b:2 --send-data --detach",
        "mpirun -H a:2,b:2 dragoman train config.toml --run-dir runs/my --continue",
        "dragoman train --resume --run-dir runs/my",
    )


def demo(
    run_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run folder. Default: runs/demo.")] = None,
    workers: Workers = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Train a translator on the corpus inside the package.

    It takes about 3 minutes on 2 CPU cores.
    """
    from dragoman.cli.demo import run_demo

    run = RunFolder(run_dir or unused_run_dir("demo"))
    figures = run_demo(run, workers, overrides or [], message_printer(json))
    if json:
        print_run(run, figures)


def train(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Settings of the run.")] = None,
    source: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Your own source text, instead of a config.")
    ] = None,
    target: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Its translation, line by line.")] = None,
    languages: Annotated[
        str | None,
        typer.Option(metavar="FROM-TO", help="With --source: both languages, e.g. en-de. Default: detected."),
    ] = None,
    overrides: Overrides = None,
    workers: Workers = None,
    hosts: Hosts = None,
    min_hosts: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Keep training while at least N hosts are up; returning hosts rejoin."),
    ] = 1,
    send_data: SendData = False,
    ssh_config: SshConfig = None,
    hang_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The same as --set cluster.hang_timeout=SECONDS; 0: never.")
    ] = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check", help="What to measure before step 1: all, or nothing. Default: cluster.check."
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Train in the background, also after logout.")] = False,
    run_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run folder. Default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run-dir.")] = False,
    is_continued: Annotated[
        bool, typer.Option("--continue", help="Continue the run in --run-dir if there is one, otherwise start it.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model from a config or two text files; continue a run."""
    from dragoman.cluster.environment import find_rank_info

    changes = list(overrides or [])
    if hang_timeout is not None:
        changes.append(f"cluster.hang_timeout={hang_timeout}")
    if check is not None:
        changes.append(f'cluster.check="{"always" if check else "never"}"')
    text = (tuple(source or ()), tuple(target or ()), languages)
    request = _TrainRequest(config, *text, changes, run_dir, resume, is_continued)
    request.check()
    if (rank_info := find_rank_info()) is not None:
        if workers is not None or hosts is not None or detach:
            raise UsageError(
                f"{rank_info.launcher} has started {rank_info.size} processes: "
                "remove --workers, --hosts and --detach from the command."
            )
        _train_as_rank(request, rank_info, json)
        return
    request.load_settings()  # reports a mistake before anything is created
    placement = place_workers(workers, hosts, min_hosts, ssh_config, send_data)
    run = request.choose_run()
    if detach:
        from dragoman.launch.launcher import detach_run

        detach_run(run, say)
        return
    figures = _train_from_here(request, run, placement, message_printer(json))
    if json:
        print_run(run, figures)


@dataclass(frozen=True)
class _TrainRequest:
    """The options of `train` that say what to train and where to save it."""

    config: Path | None
    source: tuple[Path, ...]
    target: tuple[Path, ...]
    languages: str | None
    changes: list[str]
    run_dir: Path | None
    is_resumed: bool
    is_continued: bool

    def check(self) -> None:
        """Refuses options that contradict each other."""
        if self.source or self.target:
            if self.config or self.is_resumed or self.is_continued:
                raise UsageError("Give either a config (or --resume) or --source and --target, not both.")
            if not (self.source and self.target):
                raise UsageError("Give both --source and --target.")
        elif self.languages:
            raise UsageError("--languages is for use with --source and --target.")
        elif self.config is None and not self.is_resumed:
            raise UsageError("Nothing to train: give a config, or --source and --target, or --resume --run-dir RUN.")
        if self.is_resumed and self.run_dir is None and self.config is None:
            raise UsageError("--resume needs --run-dir, the run to continue.")

    def load_settings(self) -> "Settings | None":
        """Reads the config and applies --set; None if there is no config."""
        from dragoman.run.config import load_settings

        return load_settings(self.config, self.changes) if self.config else None

    def choose_run(self) -> RunFolder:
        """Returns the run folder; without --run-dir, a new run gets a name that is free."""
        name = (self.config or (self.source[0] if self.source else Path("run"))).stem
        if self.run_dir is not None:
            return RunFolder(self.run_dir)
        is_old = self.is_resumed or self.is_continued
        return RunFolder(Path("runs") / name if is_old else unused_run_dir(name))

    def make_ready(self, run: RunFolder, num_workers: int, are_checkpoints_here: bool) -> bool:
        """Creates or reopens the run; True if reopened. `are_checkpoints_here`: no other host has checkpoints."""
        from dragoman.training.run_setup import create_run, reopen_run

        settings = self.load_settings()
        if self.is_resumed or (self.is_continued and run.checkpoint_steps()):
            reopen_run(run, settings, self.changes, num_workers, are_checkpoints_here)
            return True
        assert settings is not None
        create_run(run, settings, num_workers)
        return False


def _train_from_here(
    request: _TrainRequest, run: RunFolder, placement: "Placement", tell: Callable[[str], None]
) -> dict[str, Any]:
    """Starts workers on this machine or on hosts, waits for the end, and returns scores if there are any."""
    tell(f"Run folder: {run.path}")
    if request.source:
        from dragoman.cli.own_text import OwnText, train_on_own_text

        text = OwnText(request.source, request.target, request.languages)
        return train_on_own_text(run, text, request.changes, placement, tell)
    from dragoman.launch.launcher import launch_run

    is_resumed = request.make_ready(run, placement.num_workers, placement.is_only_this_machine)
    is_trained = launch_run(run, placement, is_resumed)
    if is_trained and run.chosen_config.exists():
        from dragoman.cli.own_text import score_held_out

        return score_held_out(run, tell)
    return {}


def _train_as_rank(request: _TrainRequest, rank_info: "RankInfo", is_json: bool) -> None:
    """Trains as one of the processes that another launcher started; a restarted one continues the run."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported, which reads it once
    os.environ.update(waiting_variables())
    if rank_info.launcher == "mpirun":
        # mpirun gives its first process a terminal even if its own output goes to a file: show no progress bars.
        os.environ.setdefault("TTY_COMPATIBLE", "0")
    from dragoman.launch.other_launchers import train_as_rank
    from dragoman.training.worker import end_process

    if request.source:
        raise UsageError(f"With {rank_info.launcher}, prepare the text first (dragoman prepare), then train a config.")
    if rank_info.is_restart and not request.is_resumed:
        request = replace(request, is_continued=True)
    tell = message_printer(is_json)

    def make_ready(num_workers: int) -> RunFolder:
        run = request.choose_run()
        tell(f"Run folder: {run.path}")
        request.make_ready(run, num_workers, are_checkpoints_here=True)
        return run

    run = train_as_rank(rank_info, request.run_dir.parent if request.run_dir else Path("runs"), make_ready)
    if is_json:
        print_run(run, {})
    end_process(0)


def place_workers(
    workers: int | None, hosts: str | None, min_hosts: int, ssh_config: Path | None, is_data_sent: bool
) -> "Placement":
    """Decides which hosts the workers run on."""
    from dragoman.launch.hosts import Placement, parse_hosts

    if hosts is None:
        if is_data_sent or ssh_config or min_hosts > 1:
            raise UsageError("--send-data, --ssh-config and --min-hosts are for use with --hosts.")
        return Placement.on_this_machine(workers)
    if workers is not None:
        raise UsageError("Give either --workers or --hosts A:N,B:N, not both: N is the number of workers on each host.")
    parsed = parse_hosts(hosts)
    if min_hosts > len(parsed):
        raise UsageError(f"--min-hosts {min_hosts} is more than the {len(parsed)} hosts given.")
    if ssh_config is not None and not ssh_config.is_file():
        raise UsageError(f"--ssh-config: there is no file {ssh_config}.")
    return Placement(parsed, min_hosts, ssh_config, is_data_sent)


def print_run(run: RunFolder, figures: dict[str, Any]) -> None:
    """Prints a run's summary and further figures as JSON."""
    from dragoman.run.summary import summarise_run

    print_json(summarise_run(run) | figures)


def unused_run_dir(name: str) -> Path:
    """Returns runs/NAME, or the first of runs/NAME-2, runs/NAME-3, … that does not exist."""
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
