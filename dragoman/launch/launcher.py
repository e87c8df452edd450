"""Trains a run that is ready, on this machine or on a list of hosts. Does not import torch."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.launch.hosts import LaunchPlan, Placement
from dragoman.launch.supervision import supervise
from dragoman.launch.terminal import erase_progress, print_message
from dragoman.launch.worker_count import place_on_cores
from dragoman.model.shape import count_parameters, resolve_shape
from dragoman.run.commands import command_for
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, lock_run
from dragoman.run.status import RunStatus, StatusFile, read_status

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
        f"Watch it with: {command_for('watch', run.path)}; stop it with: {command_for('stop', run.path)}"
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
    """Returns the error that the command printed last, with its exit code; removes a folder without a run."""
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


WORKER_MODULE = "dragoman.training.worker"
BYTES_PER_PARAMETER = 12
"""Bytes of a parameter in a checkpoint: the weight and two moments, 4 bytes each."""


def launch_run(run: RunFolder, placement: Placement, is_resumed: bool = False) -> bool:
    """Trains, with a status that everybody who sees the folder can read; False if the run was stopped early."""
    settings = load_settings(run.config)
    placement, choice = place_on_cores(placement, settings)
    initial = RunStatus.starting(settings.training.max_steps, placement.num_workers)
    with lock_run(run), StatusFile(run, initial) as status:
        plan = LaunchPlan.from_settings(run, settings, placement, WORKER_MODULE, kept_bytes(settings), is_resumed)
        try:
            if choice:
                _say(run, choice)
            reason = supervise(plan, status, lambda text: _say(run, text))
        except UserError as error:
            _log(run, str(error))
            raise
        finally:
            erase_progress()
        status.update(state=ended_state(reason), reason=reason)
    write_end_report(run, settings)
    return reason not in ("signal", "request")


def ended_state(reason: str) -> str:
    """Returns the state of a run whose workers ended well, for the reason they reported."""
    return "finished" if reason == "steps" else "stopped"


def kept_bytes(settings: Settings) -> int:
    """Returns the disk space of all checkpoints that exist at one time."""
    corpus = PreparedCorpus.open(settings.data.prepared)
    shape = resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    num_kept = settings.checkpoints.keep_last + settings.checkpoints.keep_best + 1
    return num_kept * BYTES_PER_PARAMETER * count_parameters(shape)


def write_end_report(run: RunFolder, settings: Settings) -> None:
    """Writes the report of a run that has ended, if the settings ask for it, and prints where it is."""
    from dragoman.report.compose import report_run

    if not settings.monitoring.report:
        return
    try:
        _say(run, f"The report: {report_run(run)}")
    except Exception as error:  # an error in the report must not make a trained run a failed one
        _say(run, f"The report could not be written ({error}); try: {command_for('report', run.path)}")


def _say(run: RunFolder, text: str) -> None:
    """Prints a message of the launcher and appends it to log.txt."""
    print_message(text)
    _log(run, text)


def _log(run: RunFolder, text: str) -> None:
    with suppress(OSError), run.log.open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")
