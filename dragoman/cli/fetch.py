"""The command that brings the files of a run from its hosts: `dragoman fetch`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.cli.runs import RunArgument
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder, is_locked, lock_run

if TYPE_CHECKING:
    from dragoman.launch.hosts import Placement
    from dragoman.launch.mirror.host_mirror import Brought


def add_fetch_command(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    add_command(app, fetch, "dragoman fetch runs/my", "dragoman fetch /data/runs/my --hosts a,b")


def fetch(
    run: RunArgument,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Hosts that have files of the run. Default: those it was trained on."),
    ] = None,
    ssh_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="ssh config file, like ssh -F. Default: that of the run, or ssh's own files."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Bring the files of a run from its hosts to this machine.

    The hosts have the run in a folder of the same path. A launcher brings everything by itself while it trains; this is
    for what was missing when it ended or was killed.
    """
    from dragoman.launch.mirror.run_mirror import RunMirror

    folder = RunFolder(run)
    placement = _find_hosts(folder, hosts, ssh_config)
    if is_locked(folder):
        raise UserError(f"{run} is being trained from this machine; its launcher brings the files by itself.")
    is_new = not run.exists()
    run.mkdir(parents=True, exist_ok=True)
    try:
        with lock_run(folder), RunMirror(folder, placement.ssh_config, warn) as mirror:
            mirror.adopt(placement.hosts)
            missing = mirror.finish()
            brought = mirror.brought
    finally:
        if is_new and not folder.exists:
            _remove_empty(folder)
    if json:
        print_json({"run": str(run), "brought": _figures(brought), "missing": missing})
    else:
        for host, each in brought.items():
            say(_describe(host, each))
    if missing:
        raise UserError(" ".join(missing))


def _find_hosts(run: RunFolder, hosts: str | None, ssh_config: Path | None) -> "Placement":
    """Returns the hosts that were named, or those that the run remembers."""
    from dataclasses import replace

    from dragoman.launch.hosts import Placement, load_placement, parse_hosts

    if ssh_config is not None and not ssh_config.is_file():
        raise UsageError(f"--ssh-config: there is no file {ssh_config}.")
    placement = load_placement(run)
    if hosts is not None:
        named = parse_hosts(hosts)
        placement = replace(placement, hosts=named) if placement else Placement(named)
    if placement is None:
        raise UsageError(f"It is not known which hosts have {run.path}: name them with --hosts.")
    return replace(placement, ssh_config=ssh_config) if ssh_config else placement


def _figures(brought: "dict[str, Brought]") -> list[dict[str, Any]]:
    return [
        {"host": host, "files": sorted(each.files), "bytes": each.num_bytes, "checkpoints": sorted(each.steps)}
        for host, each in brought.items()
    ]


def _describe(host: str, brought: "Brought") -> str:
    """Says what came from one host."""
    from dragoman.run.units import format_bytes

    steps = [f"{step:,}" for step in sorted(brought.steps)]
    weights = [f"the checkpoint{'s' if len(steps) > 1 else ''} of step {' and '.join(steps)}"] if steps else []
    named = sorted(brought.files & {"log.txt", "metrics.jsonl"})
    num_others = len(brought.files) - len(named)
    others = [f"{num_others} other file{'s' if num_others > 1 else ''}"] if num_others else []
    what = ", ".join([*named, *others, *weights])
    return f"From {host}: {what} ({format_bytes(brought.num_bytes)})." if what else f"From {host}: nothing new."


def _remove_empty(run: RunFolder) -> None:
    """Removes a folder made for a run that no host has."""
    from contextlib import suppress

    with suppress(OSError):
        run.lock.unlink(missing_ok=True)
        run.path.rmdir()
