"""Starts the same command again in the background, in a session that does not end with the terminal."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.processes import own_command
from dragoman.run.status import read_status

STARTED_STATES = ("running", "finished", "stopped")
POLL_SECONDS = 0.2


def detach_run(run: RunFolder, say: Callable[[str], None]) -> None:
    """Starts this command without --detach and returns when the run has started; raises its error if it does not."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    if not any(argument.split("=")[0] == "--run-dir" for argument in arguments):
        arguments += ["--run-dir", str(run.path)]
    run.path.mkdir(parents=True, exist_ok=True)
    with run.launch_log.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dragoman", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _wait_for_start(run, process, begin)
    say(
        f"Training continues in the background (process {process.pid}). "
        f"Watch it with: {own_command()} watch {run.path}; stop it with: {own_command()} stop {run.path}"
    )


def _wait_for_start(run: RunFolder, process: "subprocess.Popen[bytes]", log_begin: int) -> None:
    while True:
        code = process.poll()
        status = read_status(run)
        if status is not None and status.pid == process.pid and status.state in STARTED_STATES:
            return
        if code is not None:
            raise _start_error(run, code, log_begin)
        time.sleep(POLL_SECONDS)


def _start_error(run: RunFolder, code: int, log_begin: int) -> UserError:
    """Returns the error that the command printed last, with its exit code; removes a run folder that was not begun."""
    with run.launch_log.open("rb") as log:
        log.seek(log_begin)
        lines = log.read().decode("utf-8", "replace").strip().splitlines()
    if not run.exists:
        run.launch_log.unlink()
        with suppress(OSError):
            run.path.rmdir()
    error = UserError(lines[-1].removeprefix("dragoman: ") if lines else f"The command ended with code {code}.")
    error.exit_code = code or 1
    return error
