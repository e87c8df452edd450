"""How commands speak: results on standard output, notices on standard error, figures as JSON on request."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print figures as JSON on standard output.")]


def say(text: str) -> None:
    """A result, on standard output."""
    typer.echo(text)


def warn(text: str) -> None:
    """A notice, on standard error: results stay clean."""
    # Not typer.echo, which writes past the bars that may be shown there, into the middle of them.
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Figures, on standard output."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def speaker(is_json: bool) -> Callable[[str], None]:
    """How long commands speak: with --json all words go to standard error, those of workers too."""
    if is_json:
        from dragoman.monitoring.console import CONSOLE_VARIABLE

        os.environ[CONSOLE_VARIABLE] = "stderr"
    return warn if is_json else say
