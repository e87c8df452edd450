"""Trains as one of several processes that another launcher started: torchrun, mpirun or srun.

All processes run the same command. Rank 0 creates or reopens the run and sends the others its path and settings.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from dragoman.cluster.environment import RankInfo
from dragoman.cluster.failure import blames_lost_peer
from dragoman.cluster.rendezvous import (
    Rendezvous,
    join_rendezvous,
    publish_value,
    remove_rendezvous_file,
    wait_for_value,
    wait_until_read,
)
from dragoman.launch.launcher import note_end, write_end_report
from dragoman.run.config import load_settings
from dragoman.run.errors import UserError
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder, lock_run, make_run_folder
from dragoman.run.status import RunStatus, StatusFile, clear_stop_request
from dragoman.training.worker import describe_exception, end_process, known_cause, train_on_rank

READY_SECONDS = 600.0
READ_SECONDS = 20.0
SAYING_SECONDS = 5.0


def train_as_rank(rank_info: RankInfo, folder: Path, make_ready: Callable[[int], RunFolder]) -> RunFolder:
    """Collective: trains together with the other processes; returns on rank 0 only, the others end here.

    The processes find each other through a file in `folder`, unless the launcher gave them an address. `make_ready`
    creates or reopens the run for a number of workers.
    """
    rendezvous = join_rendezvous(rank_info, folder)
    remove_rendezvous_file(rank_info, folder)
    run = _agree_on_run(rendezvous, make_ready)
    try:
        with ExitStack() as stack:
            status = _open_status(run, rendezvous.size, stack) if rendezvous.rank == 0 else None
            reason = train_on_rank(run, rendezvous, _restart_cause(rank_info)).name.lower()
            if status:
                note_end(status, reason)
        if rendezvous.rank == 0:
            write_end_report(run, load_settings(run.config))
    except Exception as error:
        _print_failure(run, rendezvous.rank, error)
        end_process(1)
    if rendezvous.rank > 0:
        end_process(0)
    return run


def _restart_cause(rank_info: RankInfo) -> str | None:
    """Returns why the run continues: None if a person, not the launcher, started it again."""
    return f"{rank_info.launcher} started the processes again." if rank_info.is_restart else None


def _agree_on_run(rendezvous: Rendezvous, make_ready: Callable[[int], RunFolder]) -> RunFolder:
    """Collective: returns the run that rank 0 made ready; if that failed, only rank 0 says why."""
    if rendezvous.rank == 0:
        try:
            run = make_ready(rendezvous.size)
        except UserError as error:
            publish_value(rendezvous, "run", {"error": str(error), "code": str(error.exit_code)})
            # Others may still be connecting; without the store they would blame the network.
            wait_until_read(rendezvous, "run", READ_SECONDS)
            raise
        config = run.config.read_text(encoding="utf-8")
        publish_value(rendezvous, "run", {"path": str(run.path.absolute()), "config": config})
        return run
    try:
        value = wait_for_value(rendezvous, "run", READY_SECONDS)
    except RuntimeError:  # rank 0 ended before this process could ask, and has said why
        end_process(1)
    if "error" in value:
        # mpirun ends all processes when one has failed: rank 0 must have said why before.
        with suppress(RuntimeError):
            wait_for_value(rendezvous, "end of rank 0", SAYING_SECONDS)  # never comes; the store ends with rank 0
        end_process(int(value["code"]))
    run = RunFolder(Path(value["path"]))
    if rendezvous.local_rank == 0 and not _has_config(run, value["config"]):
        # A host that does not share the folder has its own, perhaps with settings from before a resume.
        make_run_folder(run)
        write_text(run.config, value["config"])
    return run


def _has_config(run: RunFolder, text: str) -> bool:
    return run.exists and run.config.read_text(encoding="utf-8") == text


def _open_status(run: RunFolder, num_workers: int, stack: ExitStack) -> StatusFile:
    stack.enter_context(lock_run(run))
    clear_stop_request(run)
    initial = RunStatus.starting(load_settings(run.config).training.max_steps, num_workers)
    status = stack.enter_context(StatusFile(run, initial))
    status.update(state="running")
    return status


def _print_failure(run: RunFolder, rank: int, error: Exception) -> None:
    """Prints the cause; ranks that only lost their connection to another one stay silent, except rank 0."""
    message = known_cause(run, rank, error) or describe_exception(run, rank, error)
    if rank == 0 or not blames_lost_peer(message):
        print(f"dragoman: {message}", file=sys.stderr, flush=True)
