"""Progress of long work: few lines in a log, bars in a terminal, and rates that resumed work does not distort."""

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.run.progress import StageProgress, progress_bars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Scene:
    """A clock that the test sets, and the output."""

    def __init__(self, file: io.StringIO | None = None) -> None:
        self.now = 1000.0
        self.file = file or io.StringIO()

    def bars(self, unit: str = "pairs"):
        return progress_bars(unit, lambda: self.now, self.file)

    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def test_short_work_prints_nothing():
    scene = Scene()
    with scene.bars() as show:
        for number in range(49):
            scene.now += 0.1
            show("encoding", number, 49)
    assert scene.lines() == []


def test_a_line_every_half_minute_and_one_at_the_end():
    scene = Scene()
    with scene.bars() as show:
        for second in range(101):
            show("encoding", 14_000 * second, 4_500_000)
            scene.now += 1
    assert scene.lines() == [
        "encoding: 420,000 of 4,500,000 pairs, 14,000 pairs/s, 4 min 51 s left",
        "encoding: 840,000 of 4,500,000 pairs, 14,000 pairs/s, 4 min 21 s left",
        "encoding: 1,260,000 of 4,500,000 pairs, 14,000 pairs/s, 3 min 51 s left",
        "encoding: 1,400,000 pairs in 1 min 41 s",
    ]


def test_without_a_total_there_is_no_time_left():
    scene = Scene()
    with scene.bars("kB") as show:
        for second in range(31):
            show("europarl.tgz", 21_312 * second, None)
            scene.now += 1
    assert scene.lines()[0] == "europarl.tgz: 639,360 kB, 21,300 kB/s"


def test_a_stage_ends_when_another_begins():
    scene = Scene()
    with scene.bars() as show:
        show("reading", 10, 10)
        scene.now += 60  # between two stages: the first is complete, the next reports when it begins
        show("training the tokenizer", 0, None)
        scene.now += 23
        show("encoding", 0, 10)
        scene.now += 4
        show("encoding", 10, 10)
    assert scene.lines() == ["training the tokenizer: done in 23 s"]


def test_a_stage_that_reports_only_its_end_has_a_line():
    scene = Scene()
    with scene.bars() as show:
        scene.now += 20
        show("encoding", 900, 900)
        scene.now += 100
    assert scene.lines() == ["encoding: 900 pairs in 20 s"]


def test_alternating_stages_end_once():
    scene = Scene()
    with scene.bars() as show:
        for number in range(10):
            for name in ("left", "right"):
                show(name, number, 100)
                scene.now += 6
    assert len(scene.lines()) <= 2 + 2 * 120 / 30
    assert sum(" in " in line for line in scene.lines()) == 2


def test_failed_work_is_not_shown_as_done():
    scene = Scene()

    def work() -> None:
        with scene.bars() as show:
            show("encoding", 1, 10)
            scene.now += 20
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert scene.lines() == []


def test_items_done_before_do_not_count_for_the_rate():
    stage = StageProgress("encoding", 0.0)
    for number in range(100):
        stage.report(5 + number / 100, 10_000 * number, 2_000_000)
    assert stage.rate is None
    stage.report(16.0, 1_000_000, 2_000_000)
    stage.report(26.0, 1_010_000, 2_000_000)
    # 990,000 were done after a second of reports; only the 20,000 after that took time.
    assert stage.rate == pytest.approx(20_000 / (26 - 5.99))
    assert stage.seconds_left == pytest.approx(990_000 / stage.rate)


def test_the_rate_is_that_of_the_last_half_minute():
    stage = StageProgress("encoding", 0.0)
    for second in range(100):
        stage.report(second, 1000 * second, None)
    for second in range(100, 140):
        stage.report(second, 99_000 + 10 * (second - 99), None)
    assert stage.rate == pytest.approx(10)


def test_rare_reports_still_give_a_rate():
    stage = StageProgress("encoding", 0.0)
    for number in range(5):
        stage.report(100.0 * number, 500 * number, None)
    assert stage.rate == pytest.approx(5)


def test_a_count_that_falls_restarts_the_rate():
    stage = StageProgress("download", 0.0)
    for second in range(10):
        stage.report(second, 1000 * second, None)
    stage.report(10, 0, None)
    assert stage.rate is None
    stage.report(11, 50, None)
    assert stage.rate == pytest.approx(50)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 10**12), st.none() | st.integers(0, 10**12))))
def test_any_sequence_of_reports_gives_few_lines(reports: list[tuple[float, int, int | None]]):
    scene = Scene()
    with scene.bars() as show:
        for seconds, num_done, num_total in reports:
            scene.now += seconds
            show("stage", num_done, num_total)
    assert len(scene.lines()) <= 1 + (scene.now - 1000) / 30


@pytest.mark.parametrize(("rate", "text"), [(0.25, "0.2 pairs/s"), (37, "37 pairs/s"), (21_349, "21,300 pairs/s")])
def test_rates_have_three_digits(rate: float, text: str):
    scene = Scene()
    with scene.bars() as show:
        show("encoding", 0, None)
        scene.now += 1000
        show("encoding", round(1000 * rate), None)
    assert scene.lines()[0].endswith(f", {text}")


def test_a_terminal_has_bars_that_fit_and_disappear(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    scene = Scene(Terminal())
    with scene.bars() as show:
        show("training the tokenizer", 0, None)
        for second in range(11):
            show("encoding [bold] text", 14_000 * second, 4_500_000)
            scene.now += 1
        drawn = _drawn_now(show, scene)
    assert "encoding [bold] text" in drawn
    assert "154k/4.50M pairs" in drawn
    assert "14,000 pairs/s" in drawn
    assert "0:00:11" in drawn
    assert "5:10 left" in drawn
    assert scene.file.getvalue().rstrip().endswith("\x1b[2K")


def _drawn_now(show: Callable[..., None], scene: Scene) -> str:
    """Returns the output once a thread has drawn the bars."""
    show("encoding [bold] text", 154_000, 4_500_000)
    for _ in range(600):
        if "5:10 left" in scene.file.getvalue():
            break
        time.sleep(0.05)
    return scene.file.getvalue()


def test_a_dumb_terminal_has_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    scene = Scene(Terminal())
    with scene.bars() as show:
        scene.now += 6
        show("encoding", 5, 5)
    assert scene.lines() == ["encoding: 5 pairs in 6 s"]


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]):
    clock = iter([0.0, 40.0, 41.0])
    with progress_bars(clock=lambda: next(clock)) as show:
        show("encoding", 1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("encoding: 1 of 2 pairs\n")


BARS_PROGRAM = """
import os, signal, sys, time
from dragoman.cli.output import say, warn
from dragoman.run.progress import progress_bars

print("before", flush=True)
try:
    with progress_bars() as show:
        for number in range(3):
            show("reading", number, 100)
            time.sleep(0.12)  # the bar is drawn ten times a second
            if number == 1:
                {event}
except KeyboardInterrupt:
    warn("stopped")
except ValueError as error:
    warn(str(error))
print("after")
"""


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("pass", ["before", "after"]),
        ("raise ValueError('failed')", ["before", "failed", "after"]),
        ("os.kill(os.getpid(), signal.SIGINT)", ["before", "stopped", "after"]),
        ("os.kill(os.getpid(), signal.SIGTERM)", ["before", "stopped", "after"]),
        ("say('result'); warn('notice')", ["before", "result", "notice", "after"]),
        ("say('runs/' + 100 * 'x')", ["before", "runs/" + 75 * "x", 25 * "x", "after"]),
    ],
)
def test_no_bar_stays_in_a_terminal(event: str, expected: list[str]):
    drawn = run_in_terminal(BARS_PROGRAM.format(event=event))
    assert "\x1b[?25l" in drawn  # a bar was drawn: it hides the cursor
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
    assert screen_of(drawn) == expected


def test_output_to_a_file_does_not_move_above_the_bars(tmp_path: Path):
    program = f"import sys; sys.stdout = open({str(tmp_path / 'out')!r}, 'w')\n" + BARS_PROGRAM
    drawn = run_in_terminal(program.format(event="say('result')"))
    assert screen_of(drawn) == []
    assert (tmp_path / "out").read_text() == "before\nresult\nafter\n"


def run_in_terminal(program: str) -> str:
    """Runs Python code in a terminal of 80 columns; returns everything it wrote there."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    drawn = b""
    with suppress(OSError):  # the end of the terminal is an input/output error
        while part := os.read(ours, 65_536):
            drawn += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return drawn.decode()


def screen_of(drawn: str, num_columns: int = 80) -> list[str]:
    """Returns the lines that stay visible: what a terminal does with the codes that rich sends."""
    lines, row, column = [""], 0, 0
    for code in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|.|\n", drawn, re.DOTALL):
        if code == "\r":
            column = 0
        elif code == "\n":
            row, column = row + 1, 0
        elif code.startswith("\x1b"):
            if code.endswith("A"):
                row = max(0, row - int(code[2:-1] or 1))
            elif code == "\x1b[2K":
                lines[row] = ""
        else:
            if column == num_columns:
                row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
            lines[row] = lines[row][:column].ljust(column) + code + lines[row][column + 1 :]
            column += 1
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines if line.strip()]
