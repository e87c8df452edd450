"""Output of commands: results on standard output, notices on standard error, JSON on request."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print figures as JSON on standard output.")]


def say(text: str) -> None:
    """Prints a result on standard output."""
    typer.echo(text)


def warn(text: str) -> None:
    """Prints a notice on standard error, apart from results."""
    # Not typer.echo, which would write into the middle of progress bars.
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Prints a value as JSON on standard output."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def message_printer(is_json: bool) -> Callable[[str], None]:
    """Returns how to print messages: with --json they go to standard error, also those of workers."""
    if is_json:
        from dragoman.run.processes import CONSOLE_VARIABLE

        os.environ[CONSOLE_VARIABLE] = "stderr"
    return warn if is_json else say
