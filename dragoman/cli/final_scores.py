"""Scores of test sets at the end of a command that trains: a fault there does not fail a run that is trained."""

import sys
from collections.abc import Callable
from typing import TypeVar

from dragoman.cli.output import warn
from dragoman.run.commands import command_for
from dragoman.run.errors import describe_fault
from dragoman.run.folder import RunFolder
from dragoman.run.interruption import signals_as_keyboard_interrupt

Scores = TypeVar("Scores")


@signals_as_keyboard_interrupt()
def try_to_score(run: RunFolder, score: Callable[[], Scores]) -> Scores | None:
    """Returns the scores of a trained run; None where a fault prevents them, after saying how to try again."""
    try:
        return score()
    except BrokenPipeError:
        raise  # the reader of our output has ended
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        reason = describe_fault(error)
        warn(
            f"The model is trained and saved, but could not be evaluated ({reason.rstrip('.')}). "
            f"Try again with: {command_for('evaluate', run.path)}"
        )
        return None
