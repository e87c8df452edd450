"""What each process of a run does: `python -m dragoman.training.worker RUN`, started by torchrun's agent.

It continues from the newest whole checkpoint and starts afresh where there is none, so a restarted worker needs no
other instructions than the first one had.
"""

import errno
import os
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import torch

from dragoman.cluster.failure import report_failure
from dragoman.cluster.world import World, join_world, leave_world
from dragoman.corpus.prepared import PreparedCorpus
from dragoman.monitoring.console import RunConsole
from dragoman.monitoring.sinks import Sinks
from dragoman.monitoring.watcher import RunWatcher, Watcher
from dragoman.run.checkpoints import newest_whole_checkpoint
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, checkpoint_step
from dragoman.run.processes import end_with_parent
from dragoman.training.cpu import avoid_trapping_kernels, keep_freed_memory
from dragoman.training.trainer import Trainer


def main() -> None:
    """Runs one rank; a failure is recorded for the launcher, which tells the first cause once."""
    end_with_parent()
    run = RunFolder(Path(sys.argv[1]))
    keep_freed_memory()
    avoid_trapping_kernels()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    world = World(rank=int(os.environ.get("RANK", "0")))
    try:
        world = join_world()
        work(run, load_settings(run.config), world)
        leave_world(world)
    except Exception as error:
        record_failure(run, world, error)
        end_process(1)
    end_process(0)


def end_process(code: int) -> NoReturn:
    """Ends this process without taking the interpreter apart.

    Everything is closed and written by now, but threads of gloo may still be ending: seen once, a worker that had
    finished died of "terminate called without an active exception" there, and the launcher took the run for failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def work(run: RunFolder, settings: Settings, world: World) -> None:
    """Collective: one rank's part of the run."""
    with ExitStack() as stack:
        console = stack.enter_context(RunConsole(run.log, settings.training.max_steps)) if world.is_first else None
        checkpoint = agree_on_checkpoint(run, world, console)
        watcher = Watcher()
        if console:
            first_step = 0 if checkpoint is None else checkpoint_step(checkpoint)
            sinks = stack.enter_context(Sinks(run.metrics, run.tensorboard, first_step))
            watcher = RunWatcher(console, sinks, settings.training.max_steps)
        corpus = PreparedCorpus.open(settings.data.prepared)
        Trainer(run, settings, corpus, world, watcher, checkpoint).train()


def agree_on_checkpoint(run: RunFolder, world: World, console: RunConsole | None) -> Path | None:
    """Collective: the checkpoint all continue from. Rank 0 looks and tells: it may write one while others look."""
    newest = newest_whole_checkpoint(run, console.say) if console else None
    if console and newest is None and run.checkpoint_steps():
        raise UserError(f"No checkpoint in {run.checkpoints} is whole; nothing was changed.")
    (step,) = world.largest_numbers([-1 if newest is None else checkpoint_step(newest)])
    return None if step < 0 else run.checkpoint(int(step))


def record_failure(run: RunFolder, world: World, error: Exception) -> None:
    """Leaves the cause where the launcher looks for it, and a traceback in the run folder unless it is a plain one."""
    if isinstance(error, UserError):
        report_failure(str(error), is_plain=True)
        return
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        text = (
            f"There is no space left on the disk of {run.path}. What was saved before is untouched: --resume continues."
        )
        report_failure(text, is_plain=True)
        return
    details = run.path / f"failure.rank{world.rank}.txt"
    details.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    first_line = (str(error).splitlines() or [""])[0]
    text = f"Worker {world.rank} failed: {type(error).__name__}: {first_line} Details are in {details}."
    report_failure(text, is_plain=False)


if __name__ == "__main__":
    main()
