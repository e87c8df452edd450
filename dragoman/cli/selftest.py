"""The command that tries dragoman on the user's own machine: `dragoman selftest`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, message_printer, print_json
from dragoman.cli.train import SshConfig, place_workers, unused_run_dir
from dragoman.run.errors import UsageError

if TYPE_CHECKING:
    from dragoman.selftest.stage_result import StageResult


def add_selftest_command(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    add_command(
        app,
        selftest,
        "dragoman selftest",
        "dragoman selftest --device cuda",
        "dragoman selftest --hosts a:2,b:2 --json",
    )


def selftest(
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to test: cpu or cuda. Default: the GPU, if there is one.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="A:N,B:N", help="Also train and measure on these hosts, over ssh.")
    ] = None,
    ssh_config: SshConfig = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="New folder for the test's runs and selftest.json. Default: runs/selftest."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Test whether this machine trains rightly and fast.

    In two minutes, stage by stage: kernels against 64-bit numbers, precisions, updates, equal losses on several
    workers, resume, exchange of gradients, and speed and memory against `dragoman plan`. Attach selftest.json to a
    report of a problem.
    Exit code 1: a stage failed.
    """
    folder = out or unused_run_dir("selftest")
    if folder.exists():
        raise UsageError(f"--out: {folder} exists already; name a new folder.")
    place_workers(None, hosts, 1, ssh_config, False)  # refuses wrong options before anything is made
    from dragoman.selftest.stages import RESULT_FILE, run_selftest

    tell = message_printer(json)

    def show(number: int, num_stages: int, name: str, outcome: "StageResult") -> None:
        tell(f"[{number}/{num_stages}] {name}: {outcome.state}. {outcome.why}")

    result = run_selftest(folder, device, hosts, ssh_config, show)
    if json:
        print_json(result)
    else:
        for line in _published_beside(result["stages"]["speed"]["figures"]):
            tell(line)
        verdict = "No stage failed" if result["is_passed"] else "A stage failed"
        tell(f"{verdict}, {result['seconds']:.0f} s. All figures: {folder / RESULT_FILE}")
    if not result["is_passed"]:
        raise typer.Exit(1)


def _published_beside(own: dict[str, Any]) -> Iterator[str]:
    """Yields published speeds, and the measured one below them; nothing where no speed was measured."""
    if "published" not in own:
        return
    published = own["published"]
    yield f"Published speeds of {published['model']} ({published['source']}):"
    for row in published["rows"]:
        yield f"  {row['device']}, {row['precision']}: {row['tokens_per_second']:,} tokens/s"
    yield f"  {published['scaling']}"
    model = "" if own["model"] == published["model"] else f" (but {own['model']}, a model of another size)"
    yield f"  this device, {own['precision']}: {own['tokens_per_second']:,.0f} tokens/s{model}"
