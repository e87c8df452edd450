"""What each process of a run does: `python -m dragoman.training.worker RUN`, started by torchrun's agent.

It continues from the newest whole checkpoint and starts afresh where there is none, so a restarted worker needs no
other instructions than the first one had.
"""

import errno
import os
import sys
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

import torch

from dragoman.cluster.environment import CAUSE_VARIABLE, RESUMED_VARIABLE, fair_num_threads, find_place
from dragoman.cluster.failure import report_failure
from dragoman.cluster.heartbeat import start_heartbeat
from dragoman.cluster.rendezvous import Meeting, meet
from dragoman.cluster.world import World, join_world, leave_world
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.diagnosis.advice import predict_and_advise
from dragoman.diagnosis.verdict import judge_run
from dragoman.monitoring.console import RunConsole
from dragoman.monitoring.sampling.sampler import start_sampler
from dragoman.monitoring.sinks import Sinks
from dragoman.monitoring.system_figures import SystemFigures
from dragoman.monitoring.watcher import Foresight, RunWatcher, Watcher, expected_before
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, checkpoint_step
from dragoman.run.processes import end_with_parent
from dragoman.training.budget import StopNotice, StopReason
from dragoman.training.cpu import avoid_trapping_kernels, keep_freed_memory
from dragoman.training.rehearsal import rehearse
from dragoman.training.sharing import Origin, find_origin
from dragoman.training.start import copy_tokenizers
from dragoman.training.trainer import Trainer

CHECK_SECONDS = 15.0
"""Of measuring before the first step: seldom as much, and nothing beside the hours of a run on several machines."""


def main() -> NoReturn:
    """Runs one rank that our own launcher started; a failure is recorded for it, and it tells the first cause once."""
    end_with_parent()
    place = find_place()
    assert place is not None, "started without the variables of an agent"
    run = RunFolder(Path(sys.argv[1]))
    try:
        run_rank(run, meet(place, run.path), os.environ.get(CAUSE_VARIABLE) or None)
    except Exception as error:
        record_failure(run, place.rank, error)
        end_process(1)
    end_process(0)


def run_rank(run: RunFolder, meeting: Meeting, restart_cause: str | None = None) -> StopReason:
    """Collective: one rank's part of the run, from joining the others to leaving them."""
    notice = StopNotice()
    notice.install()
    start_heartbeat(meeting.rank)
    keep_freed_memory()
    avoid_trapping_kernels()
    torch.set_num_threads(fair_num_threads(meeting.num_local))
    world = join_world(meeting)
    reason = work(run, load_settings(run.config), world, notice, restart_cause)
    leave_world(world)
    return reason


def end_process(code: int) -> NoReturn:
    """Ends this process without taking the interpreter apart.

    Everything is closed and written by now, but threads of gloo may still be ending: seen once, a worker that had
    finished died of "terminate called without an active exception" there, and the launcher took the run for failed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # it may be a file on a full disk
            stream.flush()
    os._exit(code)


def work(run: RunFolder, settings: Settings, world: World, notice: StopNotice, restart_cause: str | None) -> StopReason:
    """Collective: what there is between joining and leaving; why it ended."""
    with ExitStack() as stack:
        console = stack.enter_context(RunConsole(run.log, settings.training.max_steps)) if world.is_first else None
        origin = find_origin(run, world, console.say if console else print)
        if origin.is_beginning and os.environ.get(RESUMED_VARIABLE):
            raise UserError(f"There is no checkpoint to resume in {run.checkpoints} on any host.")
        corpus = PreparedCorpus.open(settings.data.prepared)
        if origin.is_saver:
            copy_tokenizers(corpus, run)
        if world.local_rank == 0 and settings.monitoring.sample_seconds:
            sampler = stack.enter_context(start_sampler(run, world.machine, settings.monitoring.sample_seconds))
            if sampler.trouble:
                print(sampler.trouble, file=sys.stderr, flush=True)
        watcher = _open_watcher(run, settings, world, console, origin, stack) if console else Watcher()
        if origin.is_beginning and _is_check_wanted(settings, world):
            watcher.say(f"Measuring steps and links for up to {CHECK_SECONDS:.0f} s (--no-check leaves this out) …")
            watcher.predicted(0, predict_and_advise(rehearse(settings, corpus, world, CHECK_SECONDS)))
        trainer = Trainer(run, settings, corpus, world, watcher, origin, notice, restart_cause)
        reason = trainer.train()
        if console:
            with suppress(UserError):  # its records cannot be read: a run that was trained is done all the same
                watcher.judged(trainer.step, judge_run(run))
        return reason


def _open_watcher(
    run: RunFolder, settings: Settings, world: World, console: RunConsole, origin: Origin, stack: ExitStack
) -> Watcher:
    """Everything that is written and shown, on the first rank."""
    first_step = 0 if origin.checkpoint is None else checkpoint_step(origin.checkpoint)
    expected_seconds = None if origin.is_beginning else expected_before(run, world.size)
    sinks = stack.enter_context(Sinks(run.metrics, run.tensorboard, first_step))
    system = SystemFigures(run)
    return RunWatcher(console, sinks, settings.training.max_steps, Foresight(world.size, expected_seconds), system)


def _is_check_wanted(settings: Settings, world: World) -> bool:
    is_default = settings.cluster.check == "machines"
    return world.num_machines > 1 if is_default else settings.cluster.check == "always"


def record_failure(run: RunFolder, rank: int, error: Exception) -> None:
    """Leaves the cause where the launcher looks for it, and a traceback in the run folder unless it is a plain one."""
    plain = plain_sentence(run, rank, error)
    report_failure(plain or describe_exception(run, rank, error), is_plain=plain is not None)


def plain_sentence(run: RunFolder, rank: int, error: Exception) -> str | None:
    """What people can do about an error; None where it is not known."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"There is no space left on the disk of {run.path}. What was saved before is untouched: --resume continues."
        )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return (
            f"Worker {rank} ran out of memory: lower training.global_batch_tokens, or use fewer workers here. "
            "What was saved before is untouched."
        )
    return None


def describe_exception(run: RunFolder, rank: int, error: Exception) -> str:
    """The first line of what went wrong; the traceback goes into the run folder."""
    first_line = (str(error).splitlines() or [""])[0]
    details = run.path / f"failure.rank{rank}.txt"
    try:
        details.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        where = f" Details are in {details}."
    except OSError:
        where = ""
    return f"Worker {rank} failed: {type(error).__name__}: {first_line}{where}"


if __name__ == "__main__":
    main()
