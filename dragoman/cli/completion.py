"""The command `completion`, and the answers that a shell asks for while somebody types."""

import os
from typing import Annotated, Literal

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import say

_VARIABLE = "_DRAGOMAN_COMPLETE"


def add_completion_command(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    add_command(app, completion, "dragoman completion bash > ~/.local/share/bash-completion/completions/dragoman")


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands in a shell."""
    from typer._completion_shared import get_completion_script

    say(get_completion_script(prog_name="dragoman", complete_var=_VARIABLE, shell=shell))


def prepare_completion() -> None:
    """Makes ready for the question of a shell, which comes in a variable."""
    if _VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
