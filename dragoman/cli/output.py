"""Output of commands: results on standard output, notices on standard error, JSON on request."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from dragoman.run.errors import UserError, describe_os_error

Json = Annotated[bool, typer.Option("--json", help="Print figures as JSON on standard output.")]


def say(text: str) -> None:
    """Prints a result on standard output; characters that its encoding lacks are written as numbers."""
    # Not typer.echo, which would write into the middle of progress bars.
    try:
        print(text, flush=True)
    except UnicodeEncodeError as error:
        print(text.encode(error.encoding, "backslashreplace").decode(error.encoding), flush=True)
    except BrokenPipeError:
        raise  # the reader of our output has ended, which `main` expects
    except OSError as error:
        raise _refused_output(error) from None


def warn(text: str) -> None:
    """Prints a notice on standard error, apart from results."""
    with suppress(OSError):  # it may be closed or on a full disk; the exit code still counts
        print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Prints a value as JSON on standard output."""
    import json

    is_unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    say(json.dumps(value, indent=2, ensure_ascii=not is_unicode))


def flush_output() -> None:
    """Writes what is still buffered; raises UserError if standard output refuses it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # otherwise the interpreter tries again at its end, with a traceback
    except OSError as error:
        sys.stdout = None
        raise _refused_output(error) from None


def _refused_output(error: OSError) -> UserError:
    return UserError(f"Standard output cannot be written: {describe_os_error(error)}.")


def message_printer(is_json: bool) -> Callable[[str], None]:
    """Returns how to print messages: with --json they go to standard error, also those of workers."""
    if is_json:
        from dragoman.run.processes import CONSOLE_VARIABLE

        os.environ[CONSOLE_VARIABLE] = "stderr"
    return warn if is_json else say
