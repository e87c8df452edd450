"""The terminal that the launcher shares with its workers: a killed worker leaves its progress line there."""

import os
import sys

_ERASE_LINE, _SHOW_CURSOR = "\r\x1b[2K", "\x1b[?25h"


def print_message(text: str) -> None:
    """Prints a message of the launcher in place of the progress line, which a running worker draws again below it."""
    print(f"{_in_place_of_progress()}{text}", file=sys.stderr, flush=True)


def erase_progress() -> None:
    """Erases a progress line that no worker erases any more, and shows the cursor again."""
    print(_in_place_of_progress(), end="", file=sys.stderr, flush=True)


def _in_place_of_progress() -> str:
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return _ERASE_LINE + _SHOW_CURSOR if is_terminal else ""
