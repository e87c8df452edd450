"""The progress line fits every width: nothing is cut or wrapped, and the time left goes last."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dragoman.monitoring.progress_line import ProgressFigures, ProgressLine, fit_texts

LONG = ProgressFigures(loss=10.1234, score="BLEU 26.4", tokens_per_second=123_456.7, seconds_left=45_296)


def render(width: int, figures: ProgressFigures = LONG, step: int = 99_999, num_steps: int = 100_000) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, legacy_windows=False)
    console.print(ProgressLine(step, num_steps, figures))
    return console.file.getvalue().splitlines()


def test_80_columns_show_everything():
    [line] = render(80)
    assert line.startswith("step 99999/100000 ")
    assert line.rstrip().endswith("loss 10.123  BLEU 26.4  123,457 tokens/s  12 h 35 min left")


def test_a_wide_terminal_has_a_bar():
    [line] = render(120)
    assert "━" * 20 in line
    assert line.rstrip().endswith("loss 10.123  BLEU 26.4  123,457 tokens/s  12 h 35 min left")


def test_narrow_terminals_lose_the_least_important_figures():
    assert render(60) == ["step 99999/100000 loss 10.123  BLEU 26.4  12 h 35 min left"]
    assert render(40) == ["step 99999/100000 ━━━━╸ 12 h 35 min left"]
    assert render(40, step=1, num_steps=50) == ["step 1/50 loss 10.123  12 h 35 min left"]
    assert render(33) == ["step 99999/100000 ━━━━━━━━━━━━━╸"]


def test_unknown_figures_are_left_out():
    [line] = render(80, ProgressFigures(loss=9.0))
    assert line.endswith("╸ loss 9.000")


@given(st.integers(20, 200), st.integers(0, 10**6), st.floats(0, 1e9), st.floats(0, 1e7), st.floats(0, 1e7))
def test_every_width_gets_one_line_that_fits(width, num_steps, loss, speed, seconds):
    lines = render(width, ProgressFigures(loss, "BLEU 1.0", speed, seconds), 1, num_steps)
    assert len(lines) == 1
    assert len(lines[0]) <= width
    assert "…" not in lines[0]


def test_texts_that_fit_are_all_kept():
    assert fit_texts(["loss 1", "", "5 tokens/s", "1 s left"], 100) == "loss 1  5 tokens/s  1 s left"


PROGRAM = """
import sys
from dragoman.monitoring.progress_line import ProgressFigures
from dragoman.monitoring.sinks import RunConsole
from pathlib import Path
with RunConsole(Path(sys.argv[1]), 100_000) as console:
    console.show_progress(99_999, ProgressFigures(10.1234, "BLEU 26.4", 123_456.7, 45_296))
    console.say("a message")
    if sys.argv[2] == "fail":
        raise KeyboardInterrupt
"""


@pytest.mark.parametrize("end", ["well", "fail"])
@pytest.mark.parametrize("columns", [80, 60, 40])
def test_a_terminal_shows_the_line_and_keeps_no_stale_bar(tmp_path: Path, end: str, columns: int):
    shown = run_in_terminal([sys.executable, "-c", PROGRAM, str(tmp_path / "log.txt"), end], columns)
    assert "step 99999/100000" in shown
    assert "12 h 35 min left" in shown
    after_last_line = shown.rsplit("12 h 35 min left", 1)[1]
    assert "\x1b[2K" in after_last_line  # the line is erased
    assert "\x1b[?25h" in after_last_line  # and the cursor is back
    assert (tmp_path / "log.txt").read_text() == "a message\n"


def run_in_terminal(command: list[str], columns: int) -> str:
    """Returns everything a command writes to a terminal of this width."""
    controller, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, env=environment, close_fds=True
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    process.wait(timeout=60)
    os.close(controller)
    return shown.decode()


def test_a_file_gets_no_bar_even_where_colours_are_requested(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "log.txt"), "well"],
        capture_output=True,
        text=True,
        env=os.environ | {"FORCE_COLOR": "1"},
        check=True,
    )
    assert done.stdout == "a message\n"
