"""Messages of the launcher take the place of a progress line that a killed worker left in the terminal."""

import os
import pty
import sys

import pytest

from dragoman.launch.terminal import erase_progress, print_message

ERASED, SHOWN = "\r\x1b[2K", "\x1b[?25h"


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal; returns a function that reads what it got."""
    controller, side = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(side, "w") as stream, monkeypatch.context() as redirected:
        redirected.setattr(sys, "stderr", stream)
        yield lambda: os.read(controller, 4096).decode()
    os.close(controller)


def test_a_message_erases_the_progress_line_and_shows_the_cursor(terminal):
    print_message("Worker 0 was killed.")
    assert terminal() == f"{ERASED}{SHOWN}Worker 0 was killed.\r\n"


def test_at_the_end_no_line_is_left(terminal):
    erase_progress()
    assert terminal() == ERASED + SHOWN


def test_a_simple_terminal_gets_text_only(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    print_message("a message")
    assert terminal() == "a message\r\n"


def test_a_file_gets_text_only(capsys):
    print_message("a message")
    erase_progress()
    assert capsys.readouterr().err == "a message\n"
