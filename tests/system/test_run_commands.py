"""`dragoman status`, `watch` and `stop` on run folders whose status the tests write."""

import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from program import Run, dragoman_command, require_end

from dragoman.cli import main
from dragoman.run.folder import RunFolder, lock_run
from dragoman.run.status import RunStatus, StatusFile, is_stop_requested, request_stop

STATUS = replace(RunStatus.starting(num_steps=100, num_workers=2), state="running", host="alpha", pid=4242, step=50)
TRAIN = {
    "time": 1e9, "kind": "train", "step": 50, "loss": 1.5, "seconds_per_step": 2.0,
    "target_tokens_per_second": 17_000.0,
}  # fmt: skip
LONG_SILENT = 1e9


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "my run")
    folder.path.mkdir()
    folder.config.write_text("[training]\nmax_steps = 100\n")
    folder.metrics.write_text(json.dumps(TRAIN) + "\n")
    folder.log.write_text("".join(f"line {number}\n" for number in range(1, 16)))
    return folder


@pytest.fixture
def dragoman(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process and checks its exit code."""

    def call(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = ["dragoman", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            main()
        done = subprocess.CompletedProcess(command, int(end.value.code or 0), *capsys.readouterr())
        require_end(done, code)
        return done

    return call


def write_status(run: RunFolder, **changes: object) -> None:
    StatusFile(run, STATUS).update(**changes)


def lose(run: RunFolder) -> None:
    write_status(run)
    os.utime(run.status, (LONG_SILENT, LONG_SILENT))


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def started(*arguments: object, **options: object) -> Iterator[subprocess.Popen[str]]:
    """Starts the command; it does not outlive the test."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(dragoman_command(*arguments), **pipes | options) as process:
        try:
            yield process
        finally:
            process.kill()


def running(run: RunFolder, **changes: object) -> StatusFile:
    """A launcher that keeps the status up to date inside a `with` block, so that the run does not look lost."""
    return StatusFile(run, replace(STATUS, **changes))


@contextmanager
def obedient_launcher(run: RunFolder, **end: object) -> Iterator[None]:
    """Keeps the run alive until it is asked to stop; then it ends with this status."""
    has_started, is_over = threading.Event(), threading.Event()

    def launch() -> None:
        with running(run) as status:
            has_started.set()
            while not is_over.wait(0.05):
                if is_stop_requested(run):
                    status.update(step=51)
                    status.update(**end)
                    return

    thread = threading.Thread(target=launch)
    thread.start()
    has_started.wait()  # or the command would see a run without a launcher
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_status_for_people(dragoman: Run, run: RunFolder):
    write_status(run)
    assert dragoman("status", run.path).stdout.splitlines() == [
        "State:      running (process 4242 on alpha)",
        "Step:       50 of 100 (50.0%), 1 min 40 s left",
        "Training:   loss 1.5000 at step 50",
        "Speed:      2.000 s per step, 17,000 target tokens/s",
        "Workers:    2",
        "Checkpoint: none yet",
    ]


def test_losses_of_training_and_of_the_dev_set_are_told_apart(dragoman: Run, run: RunFolder):
    append(run.metrics, json.dumps({"kind": "evaluation", "step": 40, "loss": 1.75, "bleu": 12.5}) + "\n")
    lines = dragoman("status", run.path).stdout.splitlines()
    assert "Training:   loss 1.5000 at step 50" in lines
    assert "Dev set:    loss 1.7500, BLEU 12.50 at step 40" in lines


def test_status_for_programs(dragoman: Run, run: RunFolder):
    write_status(run, state="waiting", message="for host h2")
    figures = json.loads(dragoman("status", run.path, "--json").stdout)
    assert list(figures) == [
        "state", "step", "max_steps", "loss", "train_step", "dev_loss", "bleu", "evaluation_step",
        "seconds_per_step", "target_tokens_per_second", "seconds_left", "cost",
        "workers", "hosts", "restarts", "last_restart_cause", "message", "checkpoint", "run", "host", "pid",
    ]  # fmt: skip
    assert (figures["state"], figures["message"], figures["bleu"]) == ("waiting", "for host h2", None)
    assert figures["seconds_left"] == 100.0


def test_status_can_expect_a_state(dragoman: Run, run: RunFolder):
    write_status(run, state="finished")
    dragoman("status", run.path, "--expect", "finished")
    assert "finished" in dragoman("status", run.path, "--expect", "running", code=1).stdout
    assert (
        "--expect 'done' is not a state of a run. Use one of: unstarted, starting"
        in dragoman("status", run.path, "--expect", "done", code=2).stderr
    )


@pytest.mark.parametrize("command", ["status", "watch", "stop"])
def test_a_folder_without_config_is_not_a_run(dragoman: Run, tmp_path: Path, command: str):
    assert "is not a run folder: it has no config.toml" in dragoman(command, tmp_path, code=1).stderr


def test_a_wrong_status_is_refused(dragoman: Run, run: RunFolder):
    run.status.write_text('{"state": "fine"}')
    assert 'status.json is not the status of a run: its "state"' in dragoman("status", run.path, code=1).stderr


def test_the_commands_do_not_import_torch_or_numpy(run: RunFolder):
    write_status(run, state="finished")
    script = """if True:
        import sys, dragoman.cli
        for command in ("status", "watch", "stop"):
            sys.argv = ["dragoman", command, sys.argv[-1]]
            try:
                dragoman.cli.main()
            except SystemExit as end:
                assert not end.code, end.code
        assert "torch" not in sys.modules and "numpy" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", script, str(run.path)], check=True, capture_output=True)


@pytest.mark.parametrize("command", ["status", "watch", "verdict", "stop"])
def test_every_command_has_an_example(dragoman: Run, command: str):
    assert f"Examples:\n  dragoman {command} runs/demo" in dragoman(command, "--help").stdout


def test_the_status_of_a_long_run_takes_little_work(run: RunFolder):
    """Compares seconds of processors with those for a short run: the machine may be slow or busy."""
    write_status(run, state="finished", num_steps=200_000)
    seconds: dict[int, list[float]] = {1: [], 200_000: []}
    for num_lines in (1, 200_000) * 3:
        run.metrics.write_text((json.dumps(TRAIN) + "\n") * num_lines)
        before = os.times()
        printed = subprocess.check_output(dragoman_command("status", run.path), text=True)
        after = os.times()
        assert "50 of 200,000" in printed
        used = after.children_user + after.children_system - before.children_user - before.children_system
        seconds[num_lines].append(used)
    assert min(seconds[200_000]) < 1.5 * min(seconds[1])


def test_watching_shows_last_and_new_lines_until_the_end(run: RunFolder):
    with running(run) as status, started("watch", run.path, "--lines", 2) as watching:
        assert [watching.stdout.readline() for _ in range(2)] == ["line 14\n", "line 15\n"]
        append(run.log, "ein hal")
        append(run.log, "ber Satz: Grüße\nnot yet com")
        assert watching.stdout.readline() == "ein halber Satz: Grüße\n"
        status.update(state="restarting", last_restart_cause="h2 was lost")
        assert watching.stderr.readline() == f"{run.path} is restarting: h2 was lost.\n"
        append(run.log, "plete\n")
        status.update(state="finished", step=100)
        assert watching.stdout.read() == f"not yet complete\n{run.path} finished at step 100.\n"
        assert watching.wait() == 0


def test_watching_waits_for_a_run_that_has_not_started(run: RunFolder):
    run.log.unlink()
    run.metrics.unlink()
    with started("watch", run.path) as watching:
        assert watching.stderr.readline() == f"{run.path} is unstarted.\n"
        with running(run) as status:
            append(run.log, "".join(f"line {number}\n" for number in range(20)))
            assert [watching.stdout.readline() for _ in range(20)] == [f"line {number}\n" for number in range(20)]
            status.update(state="stopped", step=60, reason="signal")
            end = watching.stdout.read()
        assert end.startswith("Stopped at step 60; everything is saved. Continue with: ")
        assert end.endswith(f"dragoman train --resume --run-dir '{run.path}'\n")
        assert watching.wait() == 0


def test_watching_a_run_that_fails_or_is_lost_ends_with_1(dragoman: Run, run: RunFolder):
    write_status(run, state="failed", message="Worker 1 ran out of memory.")
    done = dragoman("watch", run.path, code=1)
    assert done.stdout == "".join(f"line {number}\n" for number in range(6, 16))
    assert done.stderr == f"dragoman: {run.path} failed at step 50: Worker 1 ran out of memory.\n"
    lose(run)
    assert "is lost: process 4242 on alpha has been silent for" in dragoman("watch", run.path, code=1).stderr


def test_watching_for_programs_prints_complete_records(run: RunFolder):
    append(run.metrics, '{"kind": "trai\n[1, 2]\n')
    with running(run) as status, started("watch", run.path, "--json") as watching:
        first = watching.stdout.readline()
        assert json.loads(first) == TRAIN
        assert ": " not in first
        append(run.metrics, '{"kind": "evaluation", "na')
        append(run.metrics, 'me": "ü", "bleu": 23.4}\n')
        assert json.loads(watching.stdout.readline()) == {"kind": "evaluation", "name": "ü", "bleu": 23.4}
        status.update(state="finished", step=100)
        assert watching.stdout.read() == ""
        assert watching.stderr.read() == f"{run.path} finished at step 100.\n"
        assert watching.wait() == 0


def test_ctrl_c_ends_the_command_and_not_the_run(run: RunFolder):
    with running(run), started("watch", run.path, "--lines", 1) as watching:
        assert watching.stdout.readline() == "line 15\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait() == 0
        assert watching.stderr.read().startswith(f"{run.path} continues. To stop it: ")
    assert not run.stop_request.exists()


def read_terminal(terminal: int, until: str, timeout_seconds: float = 60) -> str:
    """Reads the output on a terminal until this text appears or the time is over."""
    shown = b""
    deadline = time.monotonic() + timeout_seconds
    # Reading from a terminal whose last program has ended is an error.
    with suppress(OSError):
        while until.encode() not in shown and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 65_536)
    return shown.decode(errors="replace")


@contextmanager
def watching_in_terminal(
    run: RunFolder, *options: object, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Starts `dragoman watch` on a terminal of 120 columns; yields the process and the terminal."""
    terminal, inner = pty.openpty()
    settings = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"} | environment
    try:
        with started("watch", run.path, *options, stdout=inner, stderr=inner, env=settings) as watching:
            os.close(inner)
            yield watching, terminal
    finally:
        os.close(terminal)


def test_a_terminal_has_a_live_view_until_the_end(run: RunFolder):
    append(run.metrics, json.dumps(TRAIN | {"step": 51, "attribution": {"forward": 1.5, "data": 0.5}}) + "\n")
    append(run.metrics, json.dumps({"time": 1e9, "kind": "evaluation", "step": 50, "bleu": 23.44}) + "\n")
    network = {"eth0": {"received_bytes_per_second": 11.25e6, "speed_megabits_per_second": 100}}
    sample = {"time": time.time(), "node": "alpha", "cpu": {"share": 0.25}, "network": network}
    append(run.path / "system.alpha.jsonl", json.dumps(sample) + "\n")
    with running(run, num_restarts=1) as status, watching_in_terminal(run) as (watching, terminal):
        shown = read_terminal(terminal, "line 15")
        for part in ("step 50 of 100", "loss 1.5", "BLEU 23.44", "17,000 tokens/s", "left", "restarts 1"):
            assert part in shown
        for part in ("forward 75 %", "alpha", "11.2 MB/s (90 Mbit/s)", "line 13"):
            assert part in shown
        assert "line 12" not in shown
        append(run.log, "[bold] :smile: \x1b[2Jis data\n")
        assert "[bold] :smile: is data" in read_terminal(terminal, "is data")
        status.update(state="finished", step=100)
        shown = read_terminal(terminal, "finished at step 100.")
        assert "step 100 of 100" in shown
        assert "finished at step 100." in shown
        assert watching.wait() == 0


def test_the_live_view_of_a_run_that_fails_ends_with_1(run: RunFolder):
    write_status(run, state="failed", message="Worker 1 ran out of memory.")
    with watching_in_terminal(run, "--lines", 5) as (watching, terminal):
        shown = read_terminal(terminal, "dragoman: ")
        assert "line 11" in shown
        assert "line 10" not in shown
        assert "failed: Worker 1 ran out of memory." in shown
        assert watching.wait() == 1


def test_ctrl_c_ends_the_live_view_and_not_the_run(run: RunFolder):
    with running(run), watching_in_terminal(run) as (watching, terminal):
        read_terminal(terminal, "line 15")
        watching.send_signal(signal.SIGINT)
        shown = read_terminal(terminal, "To stop it: ")
        assert "continues. To stop it: " in shown
        assert "\x1b[?25h" in shown  # the cursor is visible again
        assert watching.wait() == 0
    assert not run.stop_request.exists()


def test_a_dumb_terminal_has_the_log(run: RunFolder):
    with running(run) as status, watching_in_terminal(run, TERM="dumb") as (watching, terminal):
        shown = read_terminal(terminal, "line 15")
        assert "line 6" in shown
        assert "line 5" not in shown
        append(run.log, "[bold] :smile: is data\n")
        assert "[bold] :smile: is data" in read_terminal(terminal, "is data")
        status.update(state="finished", step=100)
        assert "finished at step 100." in read_terminal(terminal, "finished at step 100.")
        assert watching.wait() == 0


def test_the_log_in_a_terminal_has_a_progress_bar(run: RunFolder):
    append(run.metrics, json.dumps({"time": 1e9, "kind": "evaluation", "step": 50, "bleu": 23.44}) + "\n")
    with running(run) as status, watching_in_terminal(run, "--log") as (watching, terminal):
        shown = read_terminal(terminal, "1 min 40 s left")
        for text in (
            "line 6",
            "line 15",
            "step 50/100",
            "loss 1.500",
            "BLEU 23.4",
            "17,000 tokens/s",
            "1 min 40 s left",
        ):
            assert text in shown
        assert "line 5" not in shown
        append(run.log, "[bold] :smile: is data\n")
        assert "[bold] :smile: is data" in read_terminal(terminal, "is data")
        status.update(state="finished", step=100)
        shown = read_terminal(terminal, "finished at step 100.")
        assert "step 100/100" in shown
        assert "finished at step 100." in shown
        assert watching.wait() == 0


def test_stopping_waits_until_everything_is_saved(dragoman: Run, run: RunFolder):
    with obedient_launcher(run, state="stopped", reason="signal"):
        done = dragoman("stop", run.path)
    asked, stopped = done.stdout.splitlines()
    assert asked == f"{run.path} was asked to stop after the current step."
    assert stopped.startswith("Stopped at step 51; everything is saved. Continue with: ")
    assert not run.stop_request.exists()


def test_stopping_for_programs(dragoman: Run, run: RunFolder):
    with obedient_launcher(run, state="finished"):
        done = dragoman("stop", run.path, "--json")
    figures = json.loads(done.stdout)
    assert (figures["state"], figures["step"]) == ("finished", 51)
    assert "finished at step 51" in done.stderr


def test_a_run_that_fails_while_it_stops(dragoman: Run, run: RunFolder):
    with obedient_launcher(run, state="failed", message="The disk is full."):
        assert "failed at step 51: The disk is full." in dragoman("stop", run.path, code=1).stderr
    assert not run.stop_request.exists()


def test_a_stop_request_without_waiting(dragoman: Run, run: RunFolder):
    write_status(run)
    assert "was asked to stop after the current step" in dragoman("stop", run.path, "--no-wait").stdout
    assert json.loads(run.stop_request.read_text()).keys() == {"time", "host", "pid"}


def test_a_stop_request_stays_after_the_timeout(dragoman: Run, run: RunFolder):
    write_status(run)
    done = dragoman("stop", run.path, "--timeout", 0.2, code=1)
    assert "was asked to stop but has not ended after 0.2 s; it will still stop." in done.stderr
    assert run.stop_request.exists()


@pytest.mark.parametrize(("state", "word"), [("finished", "finished at step 50"), ("stopped", "Stopped at step 50")])
def test_a_run_that_has_ended_is_not_stopped(dragoman: Run, run: RunFolder, state: str, word: str):
    write_status(run, state=state)
    done = dragoman("stop", run.path)
    assert done.stdout.startswith(f"{run.path} is not running.\n")
    assert word in done.stdout
    assert not run.stop_request.exists()


def test_a_run_that_failed_or_never_started_cannot_be_stopped(dragoman: Run, run: RunFolder):
    write_status(run, state="failed", message="Out of memory.")
    assert "failed at step 50: Out of memory." in dragoman("stop", run.path, code=1).stderr
    run.status.unlink()
    run.metrics.unlink()
    assert "is not running: it has not started" in dragoman("stop", run.path, code=1).stderr


def test_a_lost_run_gets_no_request(dragoman: Run, run: RunFolder):
    lose(run)
    request_stop(run)
    done = dragoman("stop", run.path, code=1)
    assert "is lost: process 4242 on alpha has been silent for" in done.stderr
    assert not run.stop_request.exists()


LAUNCHER = """if True:
    import sys, time
    from pathlib import Path
    from dragoman.run.folder import RunFolder, lock_run
    from dragoman.run.status import RunStatus, StatusFile

    run = RunFolder(Path(sys.argv[1]))
    with lock_run(run), StatusFile(run, RunStatus.starting(100, 1)) as status:
        status.update(state="running", step=50)
        print("running", flush=True)
        time.sleep(60)
"""


def test_a_launcher_that_is_killed_here_is_lost_at_once(dragoman: Run, run: RunFolder):
    run.log.write_text("a line\n", encoding="utf-8")
    with ExitStack() as stack:
        command = [sys.executable, "-c", LAUNCHER, str(run.path)]
        launcher = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert launcher.stdout.readline() == b"running\n"
        assert dragoman("status", run.path).stdout.startswith("State:      running (process ")
        watching = stack.enter_context(started("watch", run.path, "--lines", 1))
        assert watching.stdout.readline() == "a line\n"  # the view has seen the run too
        launcher.kill()
        launcher.wait()
        begin = time.monotonic()
        lost = f"process {launcher.pid} on {socket.gethostname()} ended without a message; it may have been killed"
        shown = dragoman("status", run.path, "--expect", "lost").stdout
        assert shown.startswith(f"State:      lost: {lost}\n")
        request_stop(run)
        said = dragoman("stop", run.path, code=1).stderr
        assert said.startswith(f"dragoman: {run.path} is lost: {lost}. Continue with: ")
        assert not run.stop_request.exists()
        assert watching.wait(10) == 1
        assert f"is lost: {lost}" in watching.stderr.read()
        assert time.monotonic() - begin < 10


def test_a_run_that_is_removed_while_it_stops(dragoman: Run, run: RunFolder):
    write_status(run)
    threading.Timer(0.5, lambda: shutil.rmtree(run.path)).start()
    done = dragoman("stop", run.path, code=1)
    assert f"{run.path} was stopped before it had trained anything, so it was removed." in done.stderr


def test_a_run_without_status_cannot_be_stopped_from_here(dragoman: Run, run: RunFolder):
    with lock_run(run):
        assert dragoman("status", run.path).stdout.startswith("State:      running\n")
        assert "cannot be stopped from here" in dragoman("stop", run.path, code=1).stderr
    assert not run.stop_request.exists()
