"""Commands about a run, wherever it is trained: status, watch, verdict and stop. They only need the run folder."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder, open_run

if TYPE_CHECKING:
    from dragoman.run.status import Observation

NUM_FIRST_LINES = 10
NUM_LINES_BELOW_VIEW = 3
NUM_VERDICT_RECORDS = 2_000
"""Number of last records that the live view's verdict uses; reading all of a long run each time would take too long."""

_NICENESS = 10
"""A page is built only with computing time that the run leaves free."""

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, e.g. runs/demo.")]


def add_run_commands(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    add_command(app, status, "dragoman status runs/demo", "dragoman status runs/demo --expect finished")
    add_command(
        app,
        watch,
        "dragoman watch runs/demo",
        "dragoman watch runs/demo --web --open",
        "dragoman watch runs --web",
        "dragoman watch runs/demo --json > records.jsonl",
    )
    add_command(app, verdict, "dragoman verdict runs/demo", "dragoman verdict runs/demo --json")
    add_command(app, stop, "dragoman stop runs/demo", "dragoman stop runs/demo --timeout 600")


def status(
    run: RunArgument,
    json: Json = False,
    expect: Annotated[
        str | None, typer.Option(metavar="STATE", help="Exit with code 1 unless the run has this state, e.g. finished.")
    ] = None,
) -> None:
    """Show the state of a run: progress, quality, speed, checkpoint."""
    from dragoman.run.status import PUBLIC_STATES, observe_run
    from dragoman.run.summary import run_figures, status_lines

    if expect is not None and expect not in PUBLIC_STATES:
        raise UsageError(f"--expect {expect!r} is not a state of a run. Use one of: {', '.join(PUBLIC_STATES)}.")
    folder = open_run(run)
    observation = observe_run(folder)
    figures = run_figures(folder, observation)
    if json:
        print_json(figures)
    else:
        for line in status_lines(figures, observation):
            say(line)
    if expect not in (None, observation.state):
        raise typer.Exit(1)


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or with --web also a folder of runs.")],
    lines: Annotated[
        int | None,
        typer.Option(
            min=0, show_default="10, or 3 in the live view", help="Number of last log lines to show at the start."
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Follow the log instead of the live view.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print all records of metrics.jsonl, one JSON object per line.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the report as a page on this machine that follows the run.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, show_default="a free one", help="With --web: port of the page."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="With --web: open the page in a browser.")] = False,
) -> None:
    """Show a run live until it ends. Ctrl-C ends the view, not the run.

    Outside a terminal, this follows the log. With --web, a page shows the report and renews it while the run goes on.
    """
    from dragoman.run.commands import command_for

    if web:
        if log or json or lines is not None:
            raise UsageError("--web is a view of its own: leave out --log, --json and --lines.")
        _serve_pages(run, port or 0, open_page)
        return
    if port is not None or open_page:
        raise UsageError("--port and --open belong to --web.")
    folder = open_run(run)
    try:
        if json:
            observation = _watch_records(folder)
        elif not sys.stdout.isatty():
            observation = _watch_log(folder, NUM_FIRST_LINES if lines is None else lines)
        elif log or not _can_draw():
            observation = _watch_log_in_terminal(folder, NUM_FIRST_LINES if lines is None else lines)
        else:
            observation = _watch_live(folder, NUM_LINES_BELOW_VIEW if lines is None else lines)
    except KeyboardInterrupt:
        warn(f"{run} continues. To stop it: {command_for('stop', run)}")
        return
    _report_end(folder, observation, warn if json else say)


def verdict(run: RunArgument, json: Json = False) -> None:
    """Say what limited the speed of a run, with the evidence.

    It may be computing, the network, the input, a slow machine or overhead.
    """
    from dragoman.report.evidence import read_evidence
    from dragoman.report.findings import Findings

    found = Findings(read_evidence(open_run(run))).verdict
    if json:
        print_json(found.to_json())
        return
    say(f"{found.why} Confidence {found.confidence:.0%}." if found.is_known else found.why)
    for message in (*found.evidence, *found.misleading):
        say(message)
    for message in found.advice:
        say(f"What would help: {message}")


def stop(
    run: RunArgument,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait until the run has ended.")
    ] = 120,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Request the stop and return at once.")] = False,
    json: Json = False,
) -> None:
    """Ask a run to stop after the current step and to save.

    Waits until the run has ended.
    """
    from dragoman.run.status import observe_run, request_stop
    from dragoman.run.summary import run_figures

    folder = open_run(run)
    report = warn if json else say
    observation = observe_run(folder)
    if not observation.is_alive:
        _report_not_running(folder, observation, report)
    elif observation.status is None:
        raise UserError(
            f"{run} cannot be stopped from here: the program that trains it writes no {folder.status.name} and does "
            "not see requests. Press Ctrl-C where it runs, or send SIGTERM to its process."
        )
    else:
        request_stop(folder)
        report(f"{run} was asked to stop after the current step.")
        if not no_wait:
            observation = _wait_for_end(folder, timeout)
            _report_end(folder, observation, report)
    if json:
        print_json(run_figures(folder, observation))


def _serve_pages(path: Path, port: int, is_to_open: bool) -> None:
    """Serves the page of a run, or of a folder of runs, until Ctrl-C or SIGTERM."""
    import threading
    import webbrowser

    from dragoman.live.server import LiveServer
    from dragoman.run.interruption import signals_as_keyboard_interrupt

    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a folder: --web shows a run folder or a folder of runs.")
    os.nice(_NICENESS)
    with suppress(KeyboardInterrupt), signals_as_keyboard_interrupt(), LiveServer(path, port) as server:
        say(f"{path} is shown at {server.address}")
        warn("Ctrl-C ends the page, not the run.")
        if is_to_open:
            # In a thread: a browser without windows would keep this program waiting.
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        server.serve_forever(poll_interval=0.1)


def _watch_records(run: RunFolder) -> "Observation":
    """Prints records as they are written; returns how the run ended."""
    import json

    from dragoman.run.line_follower import LineFollower
    from dragoman.run.records import parse_object

    with LineFollower(run.metrics) as metrics:

        def show(_: "Observation") -> None:
            for record in filter(None, map(parse_object, metrics.read_lines())):
                say(json.dumps(record, separators=(",", ":")))

        return _follow_run(run, show)


def _watch_log(run: RunFolder, num_lines: int) -> "Observation":
    """Prints log lines as they are written; returns how the run ended."""
    from dragoman.run.line_follower import LineFollower

    with LineFollower(run.log, num_lines) as log:

        def show(_: "Observation") -> None:
            for line in log.read_lines():
                say(line)

        return _follow_run(run, show)


def _can_draw() -> bool:
    """Whether the terminal can move its cursor and can show the characters of bars and curves."""
    from rich.console import Console

    console = Console()
    return not console.is_dumb_terminal and console.encoding.startswith("utf")


def _watch_live(run: RunFolder, num_lines: int) -> "Observation":
    """Shows the live view; returns how the run ended."""
    from dragoman.diagnosis.verdict import verdict_of_run
    from dragoman.monitoring.live_view import LiveView

    with LiveView(run, num_lines, partial(verdict_of_run, num_records=NUM_VERDICT_RECORDS)) as view:
        return _follow_run(run, view.show)


def _watch_log_in_terminal(run: RunFolder, num_lines: int) -> "Observation":
    """Prints log lines as they are written, above a progress bar; returns how the run ended."""
    from dragoman.monitoring.progress_line import ProgressFigures
    from dragoman.monitoring.sinks import RunConsole
    from dragoman.run.line_follower import LineFollower
    from dragoman.run.status import planned_training
    from dragoman.run.summary import NUM_RECENT_RECORDS, LastRecords, last_records, progress_figures

    last: LastRecords = {}
    num_steps = int(planned_training(run).get("max_steps", 0))
    with (
        LineFollower(run.log, num_lines) as log,
        LineFollower(run.metrics, NUM_RECENT_RECORDS) as metrics,
        # The console also writes a log, which is not needed here: the lines come from the log of the run.
        RunConsole(Path(os.devnull), num_steps) as console,
    ):

        def show(observation: "Observation") -> None:
            for line in log.read_lines():
                console.say(line)
            last.update(last_records(metrics.read_lines()))
            figures = progress_figures(run, observation, last)
            score = "" if figures["bleu"] is None else f"BLEU {figures['bleu']:.1f}"
            console.show_progress(
                figures["step"] or 0,
                ProgressFigures(figures["loss"], score, figures["target_tokens_per_second"], figures["seconds_left"]),
            )

        return _follow_run(run, show)


def _follow_run(run: RunFolder, show: "Callable[[Observation], None]") -> "Observation":
    """Calls `show` twice a second until the run has ended, and reports unusual states."""
    from dragoman.run.status import observe_until_end
    from dragoman.run.summary import describe_observation, with_full_stop

    before = "running"
    for observation in observe_until_end(run):
        if observation.state != before and not observation.has_ended:
            warn(with_full_stop(f"{run.path} is {describe_observation(observation)}"))
        before = observation.state
        # After the observation, so that the last lines before the end are shown.
        show(observation)
    return observation


def _wait_for_end(run: RunFolder, timeout_seconds: float) -> "Observation":
    """Waits until a run that was asked to stop has ended; raises UserError if that takes too long."""
    from dragoman.run.commands import command_for
    from dragoman.run.status import clear_stop_request, observe_until_end

    look_again = f"To see its state: {command_for('status', run.path)}"
    try:
        *_, observation = observe_until_end(run, timeout_seconds)
    except UserError:
        if run.path.exists():
            raise
        raise UserError(f"{run.path} was stopped before it had trained anything, so it was removed.") from None
    except KeyboardInterrupt:
        raise UserError(f"Stopped waiting; {run.path} was asked to stop and will still do so. {look_again}") from None
    if not observation.has_ended:
        raise UserError(
            f"{run.path} was asked to stop but has not ended after {timeout_seconds:g} s; it will still stop. "
            f"{look_again}"
        )
    clear_stop_request(run)  # a request that is left over would stop the run as soon as it is continued
    return observation


def _report_not_running(run: RunFolder, observation: "Observation", report: Callable[[str], None]) -> None:
    from dragoman.run.status import clear_stop_request

    clear_stop_request(run)
    if observation.state == "unstarted":
        raise UserError(f"{run.path} is not running: it has not started.")
    if observation.state != "lost":
        report(f"{run.path} is not running.")
    _report_end(run, observation, report)


def _report_end(run: RunFolder, observation: "Observation", report: Callable[[str], None]) -> None:
    """Reports how the run ended; raises UserError if it failed or is lost."""
    from dragoman.run.summary import describe_end, run_figures

    message = describe_end(run, observation, run_figures(run, observation)["step"])
    if observation.state in ("failed", "lost"):
        raise UserError(message)
    report(message)
