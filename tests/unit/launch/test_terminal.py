"""Messages of the launcher take the place of a progress line that a killed worker left in the terminal."""

import os
import pty
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from dragoman.launch.terminal import erase_progress, print_message

ERASED, SHOWN = "\r\x1b[2K", "\x1b[?25h"


def shown_in_terminal(write: Callable[[], None], kind: str) -> str:
    """Returns what a function writes to standard error where that is a terminal of this kind."""
    controller, side = pty.openpty()
    with os.fdopen(side, "w") as stream, pytest.MonkeyPatch.context() as redirected:
        redirected.setattr(sys, "stderr", stream)
        redirected.setenv("TERM", kind)
        write()
    shown = b""
    with suppress(OSError):  # all is read, and the other side is closed
        while chunk := os.read(controller, 4096):
            shown += chunk
    os.close(controller)
    return shown.decode()


def test_a_message_erases_the_progress_line_and_shows_the_cursor():
    shown = shown_in_terminal(lambda: print_message("Worker 0 was killed."), "xterm")
    assert shown == f"{ERASED}{SHOWN}Worker 0 was killed.\r\n"


def test_at_the_end_no_line_is_left():
    assert shown_in_terminal(erase_progress, "xterm") == ERASED + SHOWN


def test_a_simple_terminal_gets_text_only():
    assert shown_in_terminal(lambda: print_message("a message"), "dumb") == "a message\r\n"


def test_a_file_gets_text_only(capsys):
    print_message("a message")
    erase_progress()
    assert capsys.readouterr().err == "a message\n"
