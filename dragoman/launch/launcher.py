"""Trains a run that is ready, on this machine or on a list of hosts. Does not import torch."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dragoman.launch.connection import EarlyProgram
from dragoman.launch.hosts import LaunchPlan, Placement, save_placement
from dragoman.launch.supervision import supervise
from dragoman.launch.terminal import erase_progress, print_message
from dragoman.launch.worker_count import place_on_cores, planned_shape
from dragoman.model.shape import count_parameters
from dragoman.run.checkpoints import AverageOf
from dragoman.run.commands import command_for, shell_path
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UserError
from dragoman.run.files import write_then_rename
from dragoman.run.folder import RunFolder, lock_run, make_run_folder
from dragoman.run.interruption import signals_as_keyboard_interrupt
from dragoman.run.status import RunStatus, StatusFile, read_status, require_untrained
from dragoman.run.synchronisation import resolve_synchronisation

STARTED_STATES = ("running", "finished", "stopped")
POLL_SECONDS = 0.2


class _FolderStart:
    """Makes a run folder where there is none, and can undo what this command then adds to it."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._new_folders = [path for path in (run.path, *run.path.parents) if not path.exists()]
        self._before = set(run.path.iterdir()) if run.path.is_dir() else set()
        make_run_folder(run)

    def undo(self) -> bool:
        """Removes everything new, except what preparing text has made; returns whether there is any of that."""
        new = set(self._run.path.iterdir() if self._run.path.is_dir() else ()) - self._before
        kept = new & set(self._run.preparation())
        self.remove(*new - kept)
        return bool(kept)

    def remove(self, *paths: Path) -> None:
        """Removes these files and folders if they are new, and the run folder if it is new and empty."""
        for path in set(paths) - self._before:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for folder in self._new_folders:
            with suppress(OSError):
                folder.rmdir()


def detach_run(run: RunFolder, say: Callable[[str], None]) -> None:
    """Starts this command without --detach and returns when the run has started; raises its error if it does not."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    if not any(argument.split("=")[0] == "--run-dir" for argument in arguments):
        arguments += ["--run-dir", str(run.path)]
    require_untrained(run)  # before this writes to the log of another launcher
    start = _FolderStart(run)
    with run.launch_log.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dragoman", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for_start(run, process, begin)
    except BaseException:
        if not run.exists:
            start.remove(run.launch_log)
        raise
    say(
        f"Training continues in the background (process {process.pid}). "
        f"Watch it with: {command_for('watch', run.path)}; stop it with: {command_for('stop', run.path)}"
    )


def _wait_for_start(run: RunFolder, process: "subprocess.Popen[bytes]", log_begin: int) -> None:
    try:
        while True:
            code = process.poll()
            status = read_status(run)
            if status is not None and status.pid == process.pid and status.state in STARTED_STATES:
                return
            if code is not None:
                raise _start_error(run, code, log_begin)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        process.terminate()  # a person who gives up a start wants no run in the background
        process.wait()
        raise


def _start_error(run: RunFolder, code: int, log_begin: int) -> UserError:
    """Returns the error that the command printed last, with its exit code."""
    with run.launch_log.open("rb") as log:
        log.seek(log_begin)
        lines = log.read().decode("utf-8", "replace").strip().splitlines()
    error = UserError(lines[-1].removeprefix("dragoman: ") if lines else f"The command ended with code {code}.")
    error.exit_code = code or 1
    return error


WORKER_MODULE = "dragoman.training.worker"
BYTES_PER_PARAMETER = 12
"""Bytes of a parameter in a checkpoint: the weight and two moments, 4 bytes each."""
BYTES_PER_VALUE = 4
"""Bytes of everything else that a checkpoint has for each parameter."""
_NO_BETTER = "the dev set did not get better for as many evaluations as evaluation.patience allows"


def launch_run(run: RunFolder, placement: Placement, make_ready: Callable[[], bool]) -> bool:
    """Trains, with a status that everybody who sees the folder can read; False if the run was stopped early.

    `make_ready` creates or reopens the run and returns whether it is reopened. It is called when the run is locked, so
    that a second command changes nothing. A start that fails before the workers begin leaves only prepared text behind.
    """
    start = _FolderStart(run)
    status: StatusFile | None = None
    with signals_as_keyboard_interrupt():
        require_untrained(run)
        with lock_run(run), ExitStack() as stack:
            has_this_machine = any(host.is_this_machine for host in placement.hosts)
            early = stack.enter_context(EarlyProgram()) if has_this_machine else None
            try:
                is_resumed = make_ready()
                settings = load_settings(run.config)
                status = StatusFile(run, RunStatus.starting(settings.training.max_steps, placement.num_workers))
                reason = _train(run, settings, placement, is_resumed, status, early)
            except (UserError, KeyboardInterrupt) as error:
                has_begun = status is not None and status.has_run
                if not (has_begun or run.metrics.exists() or run.checkpoint_steps()) and start.undo():
                    _tell_kept(run, error)
                raise
    write_end_report(run, settings)
    return reason not in ("signal", "request")


def _train(
    run: RunFolder,
    settings: Settings,
    placement: Placement,
    is_resumed: bool,
    status: StatusFile,
    early_program: EarlyProgram | None,
) -> str:
    """Trains a run that is ready and locked; returns why it ended."""
    with _remembered(run, placement, status), status:
        placement, choice = place_on_cores(placement, settings)
        plan = LaunchPlan.from_settings(
            run, settings, placement, WORKER_MODULE, kept_bytes(settings, len(placement.hosts)), is_resumed
        )
        try:
            if choice:
                status.update(num_workers=placement.num_workers)
                _say(run, choice)
            reason = supervise(plan, status, lambda text: _say(run, text), early_program)
        except UserError as error:
            _log(run, str(error))
            raise
        finally:
            erase_progress()
        note_end(status, reason)
    return reason


@contextmanager
def _remembered(run: RunFolder, placement: Placement, status: StatusFile) -> Iterator[None]:
    """Saves hosts and workers that a person chose; those of a resumed run come back if no worker could start."""
    before = run.placement.read_bytes() if run.placement.exists() else None
    if placement.is_chosen:
        with suppress(OSError):  # a run continues on a full disk
            save_placement(run, placement)
    try:
        yield
    except (UserError, KeyboardInterrupt):
        if before is not None and not status.has_run:
            with suppress(OSError), write_then_rename(run.placement) as file:
                file.write(before)
        raise


def _tell_kept(run: RunFolder, error: UserError | KeyboardInterrupt) -> None:
    """Says that prepared text is kept: in the error, which a detached command shows too, or in a message."""
    text = (
        f"What was prepared is kept in {run.path}: to use it, run the same command with "
        f"--run-dir {shell_path(run.path)}"
    )
    if isinstance(error, UserError):
        error.args = (f"{error} {text}",)
    else:
        print_message(text)


def ended_state(reason: str) -> str:
    """Returns the state of a run whose workers ended well, for the reason they reported."""
    return "finished" if reason in ("steps", "patience") else "stopped"


def note_end(status: StatusFile, reason: str) -> None:
    """Writes how a run ended; one that was ended early because it got no better has no steps left to make."""
    changes: dict[str, object] = {"message": _NO_BETTER} if reason == "patience" else {}
    if changes and status.status.step:  # where another program launches the ranks, it is not followed
        changes["num_steps"] = status.status.step
    status.update(state=ended_state(reason), reason=reason, **changes)


def kept_bytes(settings: Settings, num_machines: int = 1) -> int:
    """Returns the disk space of all checkpoints that exist at one time.

    With `auto`, as much as replicas that learn apart would need: which way is taken is known only after measuring.
    """
    keep = settings.checkpoints
    num_kept = keep.keep_last + keep.keep_best + 1
    if keep.average:
        num_kept += AverageOf.parse(keep.average).number
    own = settings.synchronisation
    if own.strategy == "auto" and num_machines > 1:
        own = own.model_copy(update={"strategy": "local"})
    plan = resolve_synchronisation(settings.model_copy(update={"synchronisation": own}), num_machines)
    num_bytes = BYTES_PER_PARAMETER + BYTES_PER_VALUE * (bool(keep.ema_decay) + plan.checkpoint_values)
    return int(num_kept * num_bytes * count_parameters(planned_shape(settings)))


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
