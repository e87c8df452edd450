"""Builds the command line from its families of commands. Heavy libraries are imported inside commands."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.compare import add_compare_command
from dragoman.cli.completion import add_completion_command, prepare_completion
from dragoman.cli.corpus import add_corpus_commands
from dragoman.cli.evaluate import add_evaluate_command
from dragoman.cli.export import add_export_command
from dragoman.cli.fetch import add_fetch_command
from dragoman.cli.help_text import PlainGroup, describe_wrong_usage
from dragoman.cli.import_model import add_import_model_command
from dragoman.cli.launch import add_launch_command
from dragoman.cli.output import flush_output, warn
from dragoman.cli.plan import add_plan_commands
from dragoman.cli.report import add_report_commands
from dragoman.cli.runs import add_run_commands
from dragoman.cli.selftest import add_selftest_command
from dragoman.cli.serve import add_serve_command
from dragoman.cli.train import add_train_commands
from dragoman.cli.translate import add_translate_commands
from dragoman.run.errors import UserError, explain_os_error

app = typer.Typer(
    name="dragoman",
    cls=PlainGroup,
    help="Trains neural translation models and tells the truth about the run.",
    epilog="dragoman demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_INTERRUPTED = 130
"""Typer's exit code for a KeyboardInterrupt."""
_MEMORY_WORDS = ("allocate memory", "out of memory", "map segment")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from dragoman import __version__

        typer.echo(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; allowed anywhere in the command.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Declares the options of every command; `main` has removed --debug already."""


# In the order of `dragoman --help`.
add_train_commands(app)
add_plan_commands(app)
add_selftest_command(app)
add_run_commands(app)
add_fetch_command(app)
add_report_commands(app)
add_evaluate_command(app)
add_compare_command(app)
add_translate_commands(app)
add_export_command(app)
add_serve_command(app)
add_import_model_command(app)
add_corpus_commands(app)
add_launch_command(app)
add_completion_command(app)


def main() -> None:
    """Runs the command `dragoman`; an error becomes a short message and an exit code: 0, 1 or 2."""
    is_debugging = "--debug" in sys.argv
    try:
        _require_current_folder()
        prepare_completion()
        code = app([argument for argument in sys.argv[1:] if argument != "--debug"], standalone_mode=False)
        flush_output()
    except Exception as error:
        if is_debugging and not isinstance(error, typer.TyperException):
            raise
        with suppress(UserError):
            flush_output()
        warn(_describe(error))
        sys.exit(getattr(error, "exit_code", 1))
    if code == _INTERRUPTED:
        warn("dragoman: Stopped by Ctrl-C or a signal.")
        sys.exit(1)
    sys.exit(code or 0)


def _require_current_folder() -> None:
    """Fails early where the current folder was deleted: libraries would end the process without an explanation."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("The current folder does not exist any more: change to another folder.") from None


def _is_lack_of_memory(failure: Exception) -> bool:
    """Whether memory was short, also for torch, whose errors have no kind of their own, and for its libraries."""
    return isinstance(failure, MemoryError) or (
        isinstance(failure, ImportError | RuntimeError) and any(words in str(failure) for words in _MEMORY_WORDS)
    )


def _describe(failure: Exception) -> str:
    """Says what went wrong in one or two sentences."""
    match failure:
        case typer.TyperException():
            return describe_wrong_usage(failure)
        case UserError():
            return f"dragoman: {failure}"
        case OSError():
            return f"dragoman: {explain_os_error(failure)}"
        case _ if _is_lack_of_memory(failure):
            return "dragoman: There is not enough memory for this. End other programs, or use a smaller input."
        case ModuleNotFoundError(name=str(package)):
            return f"dragoman: The Python package {package} is not installed here: set dragoman up as its README says."
        case RecursionError():
            return "dragoman: The input is nested too deeply to be read."
        case UnicodeEncodeError():
            return (
                f"dragoman: The output uses the encoding {failure.encoding}, which lacks some characters of this text. "
                "Set the environment variable PYTHONIOENCODING=utf-8."
            )
        case _:
            kind = type(failure).__name__
            return f"dragoman: unexpected {kind}: {failure}. Run again with --debug to see the traceback."
