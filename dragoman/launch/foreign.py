"""Training as one of several processes that somebody else started: torchrun, mpirun or srun.

All run the same command. The first one makes the run ready and tells the others where it is.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from dragoman.cluster.environment import Place
from dragoman.cluster.failure import is_echo
from dragoman.cluster.rendezvous import Meeting, forget_meeting, meet, tell_all, wait_for_note, wait_until_read
from dragoman.launch.local import ended_state, tell_of_report
from dragoman.run.config import load_settings
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder, hold_run
from dragoman.run.status import RunStatus, StatusFile, clear_stop_request
from dragoman.training.worker import describe_exception, end_process, plain_sentence, run_rank

READY_SECONDS = 600.0
LAST_WORDS_SECONDS = 20.0


def train_as_rank(place: Place, folder: Path, make_ready: Callable[[int], RunFolder]) -> RunFolder:
    """Collective: trains with the others; returns on the first rank only, the other processes end here.

    `folder` is where they meet, unless the launcher told them; `make_ready` gets the number of workers.
    """
    meeting = meet(place, folder)
    forget_meeting(place, folder)
    run = _agree_on_run(meeting, make_ready)
    try:
        with ExitStack() as stack:
            status = _open_status(run, meeting.size, stack) if meeting.rank == 0 else None
            reason = run_rank(run, meeting).name.lower()
            if status:
                status.update(state=ended_state(reason), reason=reason)
        if meeting.rank == 0:
            tell_of_report(run, load_settings(run.config))
    except Exception as error:
        _tell_failure(run, meeting.rank, error)
        end_process(1)
    if meeting.rank > 0:
        end_process(0)
    return run


def _agree_on_run(meeting: Meeting, make_ready: Callable[[int], RunFolder]) -> RunFolder:
    """Collective: the run the first rank has made ready; where that failed only the first one says why."""
    if meeting.rank == 0:
        try:
            run = make_ready(meeting.size)
        except UserError as error:
            tell_all(meeting, "run", {"error": str(error), "code": str(error.exit_code)})
            # Others may still be about to meet; without the store they would blame the network.
            wait_until_read(meeting, "run", LAST_WORDS_SECONDS)
            raise
        config = run.config.read_text(encoding="utf-8")
        tell_all(meeting, "run", {"path": str(run.path.absolute()), "config": config})
        return run
    try:
        note = wait_for_note(meeting, "run", READY_SECONDS)
    except RuntimeError:  # the first one has gone before this one could ask: it has said why
        end_process(1)
    if "error" in note:
        end_process(int(note["code"]))
    run = RunFolder(Path(note["path"]))
    if meeting.local_rank == 0 and not _has_settings(run, note["config"]):
        # A host that does not share the folder keeps one of its own; it may have settings of before a resume.
        run.path.mkdir(parents=True, exist_ok=True)
        write_text(run.config, note["config"])
    return run


def _has_settings(run: RunFolder, text: str) -> bool:
    return run.exists and run.config.read_text(encoding="utf-8") == text


def _open_status(run: RunFolder, num_workers: int, stack: ExitStack) -> StatusFile:
    stack.enter_context(hold_run(run))
    clear_stop_request(run)
    initial = RunStatus.starting(load_settings(run.config).training.max_steps, num_workers)
    status = stack.enter_context(StatusFile(run, initial))
    status.update(state="running")
    return status


def _tell_failure(run: RunFolder, rank: int, error: Exception) -> None:
    """One rank tells the cause; those that only lost contact with it keep silent, except the first."""
    sentence = plain_sentence(run, rank, error) or describe_exception(run, rank, error)
    if rank == 0 or not is_echo(sentence):
        print(f"dragoman: {sentence}", file=sys.stderr, flush=True)
