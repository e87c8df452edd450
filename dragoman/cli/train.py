"""The command that trains: from a config, from two text files, or further; here, on a host list, or as one of the
processes that torchrun, mpirun or srun started.
"""

import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.output import Json, print_json, say, speaker
from dragoman.run.errors import UsageError
from dragoman.run.folder import RunFolder

if TYPE_CHECKING:
    from dragoman.cluster.environment import Place
    from dragoman.launch.hosts import Placement
    from dragoman.run.config import Settings

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", "-w", help="Worker processes. Default: one per GPU, or one on a CPU machine.")
]

Hosts = Annotated[
    str | None, typer.Option(metavar="A:N,B:N", help="Machines to use, over ssh, with a number of workers on each.")
]
SendData = Annotated[
    bool, typer.Option("--send-data", help="With --hosts: copy the prepared data to hosts that lack it.")
]
SshConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With --hosts: as ssh -F. Default: ssh's own files.")
]

_EXAMPLES = """Examples: dragoman train --source my.en --target my.de |
dragoman train config.toml --set training.max_steps=5000 --workers 2 |
dragoman train config.toml --hosts a:2,b:2 --send-data --detach |
mpirun -H a:2,b:2 dragoman train config.toml --run-dir runs/my --continue |
dragoman train --resume --run-dir runs/my"""


def add_train_command(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.command(epilog=_EXAMPLES)(train)


def train(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings of the run.")] = None,
    source: Annotated[list[Path] | None, typer.Option(help="Own source text instead of a config.")] = None,
    target: Annotated[list[Path] | None, typer.Option(help="Its translation, line by line.")] = None,
    overrides: Overrides = None,
    workers: Workers = None,
    hosts: Hosts = None,
    min_hosts: Annotated[
        int, typer.Option(min=1, help="With --hosts: go on as long as so many are left; lost ones are taken back.")
    ] = 1,
    send_data: SendData = False,
    ssh_config: SshConfig = None,
    hang_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The same as --set cluster.hang_timeout=SECONDS.")
    ] = None,
    check: Annotated[
        bool | None,
        typer.Option("--check/--no-check", help="Measure machines and links first. Default: on several machines."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background, also without terminal.")] = False,
    run_dir: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run-dir.")] = False,
    is_continued: Annotated[
        bool, typer.Option("--continue", help="Continue the run in --run-dir if there is one, else start it.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model: from a config, from two text files, or further from where a run stopped."""
    from dragoman.cluster.environment import find_place

    changes = list(overrides or [])
    if hang_timeout:
        changes.append(f"cluster.hang_timeout={hang_timeout}")
    if check is not None:
        changes.append(f'cluster.check="{"always" if check else "never"}"')
    order = _Order(config, tuple(source or ()), tuple(target or ()), changes, run_dir, resume, is_continued)
    order.check()
    place = find_place()
    if place is not None:
        if workers or hosts or detach:
            raise UsageError(
                f"{place.launcher} has started {place.size} processes: give no --workers, --hosts, --detach."
            )
        _train_as_rank(order, place, json)
        return
    order.load_settings()  # a mistake in them is told before anything is made
    placement = place_workers(workers, hosts, min_hosts, ssh_config, send_data)
    run, figures = order.choose_run(), {}
    if detach:
        from dragoman.launch.detach import detach_run

        detach_run(run, say)
        return
    tell = speaker(json)
    tell(f"Run folder: {run.path}")
    if order.source:
        from dragoman.cli.own_text import train_on_own_text

        figures = train_on_own_text(run, list(order.source), list(order.target), changes, placement, tell)
    else:
        from dragoman.launch.local import launch_run

        is_old = order.make_ready(run, placement.num_workers, placement.is_here_alone)
        launch_run(run, placement, is_old)
    if json:
        print_run(run, figures)


@dataclass(frozen=True)
class _Order:
    """What a person asked for."""

    config: Path | None
    source: tuple[Path, ...]
    target: tuple[Path, ...]
    changes: list[str]
    run_dir: Path | None
    is_resumed: bool
    is_continued: bool

    def check(self) -> None:
        """Refuses what makes no sense together."""
        if self.source or self.target:
            if self.config or self.is_resumed or self.is_continued:
                raise UsageError("Give either a config (or --resume) or --source and --target, not both.")
            if not (self.source and self.target):
                raise UsageError("--source and --target belong together.")
        elif self.config is None and not self.is_resumed:
            raise UsageError("Nothing to train: give a config, or --source and --target, or --resume --run-dir RUN.")
        if self.is_resumed and self.run_dir is None and self.config is None:
            raise UsageError("--resume needs --run-dir, the run to continue.")

    def load_settings(self) -> "Settings | None":
        """Those of the config, with what was changed; None where there is no config."""
        from dragoman.run.config import load_settings

        return load_settings(self.config, self.changes) if self.config else None

    def choose_run(self) -> RunFolder:
        """The folder of the run; one that is not named gets a name that is free, unless it is to be continued."""
        name = (self.config or (self.source[0] if self.source else Path("run"))).stem
        if self.run_dir is not None:
            return RunFolder(self.run_dir)
        is_old = self.is_resumed or self.is_continued
        return RunFolder(Path("runs") / name if is_old else free_run_dir(name))

    def make_ready(self, run: RunFolder, num_workers: int, is_all_here: bool) -> bool:
        """Creates the run, or sees that it can go on; True for the latter. `is_all_here`: no host has checkpoints."""
        from dragoman.training.start import create_run, reopen_run

        settings = self.load_settings()
        if self.is_resumed or (self.is_continued and run.checkpoint_steps()):
            reopen_run(run, settings, self.changes, num_workers, is_all_here)
            return True
        assert settings is not None
        create_run(run, settings, num_workers)
        return False


def _train_as_rank(order: _Order, place: "Place", is_json: bool) -> None:
    """As one of the processes a foreign launcher started; one that is started again continues the run."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported, which reads it once
    if place.launcher == "mpirun":
        # It gives its first process a terminal even where its own output goes to a file: no bars, then.
        os.environ.setdefault("TTY_COMPATIBLE", "0")
    from dataclasses import replace

    from dragoman.launch.foreign import train_as_rank
    from dragoman.training.worker import end_process

    if order.source:
        raise UsageError(f"With {place.launcher}, prepare the text first (dragoman prepare), then train a config.")
    if place.is_restart and not order.is_resumed:
        order = replace(order, is_continued=True)
    tell = speaker(is_json)

    def make_ready(num_workers: int) -> RunFolder:
        run = order.choose_run()
        tell(f"Run folder: {run.path}")
        order.make_ready(run, num_workers, is_all_here=True)
        return run

    run = train_as_rank(place, order.run_dir.parent if order.run_dir else Path("runs"), make_ready)
    if is_json:
        print_run(run, {})
    end_process(0)


def place_workers(
    workers: int | None, hosts: str | None, min_hosts: int, ssh_config: Path | None, is_data_sent: bool
) -> "Placement":
    """Where the workers go, by what a person gave."""
    from dragoman.launch.hosts import Placement, parse_hosts

    if hosts is None:
        if is_data_sent or ssh_config or min_hosts > 1:
            raise UsageError("--send-data, --ssh-config and --min-hosts belong to --hosts.")
        return Placement.on_this_machine(num_workers(workers))
    if workers is not None:
        raise UsageError("Give either --workers or --hosts, which has the number of workers of each host.")
    parsed = parse_hosts(hosts)
    if min_hosts > len(parsed):
        raise UsageError(f"--min-hosts {min_hosts} is more than the {len(parsed)} hosts given.")
    if ssh_config is not None and not ssh_config.is_file():
        raise UsageError(f"--ssh-config: there is no file {ssh_config}.")
    return Placement(parsed, min_hosts, ssh_config, is_data_sent)


def print_run(run: RunFolder, figures: dict[str, Any]) -> None:
    """A run in figures, and what else is known of it."""
    from dragoman.run.summary import summarise_run

    print_json(summarise_run(run) | figures)


def num_workers(asked: int | None) -> int:
    """As asked, or what fits this machine."""
    if asked is not None:
        return asked
    from dragoman.launch.hosts import count_gpus

    return max(1, count_gpus())


def free_run_dir(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, runs/NAME-3, … that does not exist."""
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
