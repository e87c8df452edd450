"""Commands that train: `demo`, and `train` on this machine, on a list of hosts, or as a process of another launcher."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from json import dumps as dump_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, message_printer, print_json, say
from dragoman.run.errors import UsageError, UserError
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
        "dragoman train config.toml --hosts a:2,b:2 --sync auto",
        "dragoman train --from runs/my --source new.en --target new.de",
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
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[@WHICH]",
            help="Fine-tune: start from the weights of a run; WHICH is as in --checkpoint. Default: best.",
        ),
    ] = None,
    overrides: Overrides = None,
    workers: Workers = None,
    hosts: Hosts = None,
    min_hosts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="1",
            help="Keep training while at least N hosts are up; returning hosts rejoin.",
        ),
    ] = None,
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
    sync: Annotated[
        str | None,
        typer.Option(
            metavar="STRATEGY",
            help="How workers agree on weights: every_step (default), hierarchical, bf16, fp16, int8, powersgd, local, "
            "diloco, or auto: measure the links and choose. See docs/slow-networks.md.",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Train in the background, also after logout.")] = False,
    run_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run folder. Default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run-dir, on its hosts.")] = False,
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
    if sync is not None:
        changes.append(f"synchronisation.strategy={dump_json(sync)}")
    if start is not None:
        if resume:
            raise UsageError("--from starts a new run; a resumed run already has its weights.")
        changes.append(f"training.start_from={dump_json(start)}")
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
    run = request.choose_run()
    tell = message_printer(json)
    options = (min_hosts, ssh_config, send_data)
    placement = _recall_placement(request, run, options, tell) if workers is None and hosts is None else None
    placement = placement or place_workers(workers, hosts, *options)
    if detach:
        from dragoman.launch.launcher import detach_run

        detach_run(run, say)
        return
    figures = _train_from_here(request, run, placement, tell)
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
        return RunFolder(Path("runs") / name if self.may_be_old else unused_run_dir(name))

    @property
    def may_be_old(self) -> bool:
        """Whether the run may exist already."""
        return self.is_resumed or self.is_continued

    def make_ready(self, run: RunFolder, num_workers: int, has_other_hosts: bool) -> bool:
        """Creates or reopens the run; True if reopened."""
        from dragoman.training.run_setup import create_run, reopen_run

        settings = self.load_settings()
        # Checkpoints may be on other hosts only; a run that has trained there has records here.
        has_trained = bool(run.checkpoint_steps()) or (has_other_hosts and run.exists and run.metrics.exists())
        if self.is_resumed or (self.is_continued and has_trained):
            reopen_run(run, settings, self.changes, num_workers, has_other_hosts)
            return True
        assert settings is not None
        create_run(run, settings, num_workers, has_other_hosts)
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

    has_other_hosts = not placement.is_only_this_machine
    is_trained = launch_run(run, placement, lambda: request.make_ready(run, placement.num_workers, has_other_hosts))
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
    from dragoman.run.status import require_untrained
    from dragoman.training.worker import end_process

    if request.source:
        raise UsageError(f"With {rank_info.launcher}, prepare the text first (dragoman prepare), then train a config.")
    if rank_info.is_restart and not request.is_resumed:
        request = replace(request, is_continued=True)
    tell = message_printer(is_json)

    def make_ready(num_workers: int) -> RunFolder:
        run = request.choose_run()
        tell(f"Run folder: {run.path}")
        require_untrained(run)
        request.make_ready(run, num_workers, has_other_hosts=False)
        return run

    run = train_as_rank(rank_info, request.run_dir.parent if request.run_dir else Path("runs"), make_ready)
    if is_json:
        print_run(run, {})
    end_process(0)


def place_workers(
    workers: int | None, hosts: str | None, min_hosts: int | None, ssh_config: Path | None, is_data_sent: bool
) -> "Placement":
    """Decides which hosts the workers run on."""
    from dragoman.launch.hosts import Placement, parse_hosts

    if hosts is None:
        if is_data_sent or ssh_config or (min_hosts or 1) > 1:
            raise UsageError("--send-data, --ssh-config and --min-hosts are for use with --hosts.")
        return Placement.on_this_machine(workers)
    if workers is not None:
        raise UsageError("Give either --workers or --hosts A:N,B:N, not both: N is the number of workers on each host.")
    return _change_placement(Placement(parse_hosts(hosts)), min_hosts, ssh_config, is_data_sent)


def _change_placement(
    placement: "Placement", min_hosts: int | None, ssh_config: Path | None, is_data_sent: bool
) -> "Placement":
    """Applies the options that were given beside the hosts."""
    if min_hosts is not None and min_hosts > len(placement.hosts):
        raise UsageError(f"--min-hosts {min_hosts} is more than the {len(placement.hosts)} hosts of the run.")
    if ssh_config is not None and not ssh_config.is_file():
        raise UsageError(f"--ssh-config: there is no file {ssh_config}.")
    return replace(
        placement,
        min_hosts=min_hosts or placement.min_hosts,
        ssh_config=ssh_config or placement.ssh_config,
        is_data_sent=is_data_sent or placement.is_data_sent,
    )


def _recall_placement(
    request: _TrainRequest, run: RunFolder, options: tuple[int | None, Path | None, bool], tell: Callable[[str], None]
) -> "Placement | None":
    """Returns the hosts and workers that the run remembers, changed by the options; None if it remembers none."""
    from dragoman.launch.hosts import Placement, load_placement

    saved = load_placement(run) if request.may_be_old else None
    if saved is None:
        return None
    if saved == Placement.on_this_machine(saved.num_workers):
        tell(f"Workers of the run: {saved.num_workers} (from {run.placement}); --workers or --hosts chooses others.")
        return place_workers(saved.num_workers, None, *options)
    placement = _change_placement(saved, *options)
    if placement.ssh_config and not placement.ssh_config.is_file():
        raise UserError(
            f"The ssh config of the run, {placement.ssh_config} (from {run.placement}), does not exist any more: "
            "name it with --ssh-config FILE."
        )
    hosts = ", ".join(host.text for host in placement.hosts)
    tell(f"Hosts of the run: {hosts} (from {run.placement}); --hosts or --workers chooses others.")
    return placement


def print_run(run: RunFolder, figures: dict[str, Any]) -> None:
    """Prints a run's summary and further figures as JSON."""
    from dragoman.run.summary import summarise_run

    print_json(summarise_run(run) | figures)


def unused_run_dir(name: str) -> Path:
    """Returns runs/NAME, or the first of runs/NAME-2, runs/NAME-3, … that does not exist."""
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
