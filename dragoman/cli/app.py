"""Builds the command line from its families of commands. Heavy libraries are imported inside commands."""

import sys
from typing import Annotated

import typer

from dragoman.cli.corpus import add_corpus_commands
from dragoman.cli.launch import add_launch_command
from dragoman.cli.output import warn
from dragoman.cli.plan import add_plan_commands
from dragoman.cli.report import add_report_commands
from dragoman.cli.runs import add_run_commands
from dragoman.cli.train import add_train_commands
from dragoman.cli.translate import add_translate_commands
from dragoman.run.errors import UserError

app = typer.Typer(
    name="dragoman",
    help="Trains neural translation models and tells the truth about the run.",
    epilog="Start with: dragoman demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
add_run_commands(app)
add_report_commands(app)
add_translate_commands(app)
add_corpus_commands(app)
add_launch_command(app)


def main() -> None:
    """Runs the command `dragoman`; an error that the user can fix becomes a short message and an exit code."""
    is_debugging = "--debug" in sys.argv
    try:
        app([argument for argument in sys.argv[1:] if argument != "--debug"])
    except UserError as error:
        if is_debugging:
            raise
        warn(f"dragoman: {error}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has ended (`| head`): print nothing more, also not at exit.
        sys.stdout = None
        sys.exit(1)
    except SystemExit as end:
        # 130 is Typer's code for Ctrl-C; ours are 0, 1 and 2.
        sys.exit(1 if end.code == 130 else end.code)
    except Exception as error:
        if is_debugging:
            raise
        warn(f"dragoman: unexpected {type(error).__name__}: {error}. Run again with --debug to see the traceback.")
        sys.exit(1)
