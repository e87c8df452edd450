"""One worker process, started by the launcher: `python -m dragoman.training.worker RUN`.

It trains, or measures for `dragoman check`. Training continues from the newest complete checkpoint and starts at step
0 where there is none, so a restarted worker needs no other instructions than the first one.
"""

import ctypes
import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from dragoman.cluster.environment import (
    CHECK_SECONDS_VARIABLE,
    IS_RESTART_RECORDED_VARIABLE,
    MEASUREMENTS_FILE,
    PARENT_VARIABLE,
    RESUMED_VARIABLE,
    find_rank_info,
    threads_of_this_worker,
)
from dragoman.cluster.failure import report_failure, write_traceback
from dragoman.cluster.heartbeat import report_end, start_heartbeat
from dragoman.cluster.quick_torch import torch
from dragoman.cluster.rendezvous import Rendezvous, join_rendezvous
from dragoman.cluster.world import World, join_world, leave_world
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.diagnosis.strategies import choose_strategy, predict_with
from dragoman.diagnosis.verdict import verdict_of_run
from dragoman.evaluation.scores import require_tokenizer
from dragoman.model.device import choose_device
from dragoman.monitoring.pace import Pace, RunLength
from dragoman.monitoring.sampling.sampler import start_sampler
from dragoman.monitoring.sinks import RunConsole, Sinks
from dragoman.monitoring.system_figures import SystemFigures
from dragoman.monitoring.watcher import (
    KnownSpeed,
    PredictionCheck,
    RunWatcher,
    Watcher,
    read_known_speed,
)
from dragoman.run.commands import command_for, resume_command
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import FULL_DISK, UserError, describe_fault, describe_os_error
from dragoman.run.files import write_json
from dragoman.run.folder import RunFolder
from dragoman.run.processes import end_with_parent
from dragoman.run.synchronisation import Synchronisation, resolve_synchronisation
from dragoman.training.precision import keep_precision, resolve_precision
from dragoman.training.rehearsal import rehearse, rehearse_briefly
from dragoman.training.resuming import ResumePlan, plan_resume, read_synchronisation, share_synchronisation
from dragoman.training.run_setup import copy_tokenizers
from dragoman.training.spent_time import SpentTime, find_launch
from dragoman.training.stopping import StopConditions, StopNotice, StopReason
from dragoman.training.trainer import Trainer

_CHECK_SECONDS = 15.0
"""Longest time of measuring before the first step; little compared with the hours of a run on several machines."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
_KERNEL_LIMIT_VARIABLE = "ONEDNN_MAX_CPU_ISA"
_LAST_KERNELS_BEFORE_AMX = "AVX512_CORE_FP16"
_PROBE_SECONDS = 60


def main() -> NoReturn:
    """Runs one rank that our launcher started; a failure is recorded, and the launcher reports the first cause."""
    end_with_parent(int(os.environ[PARENT_VARIABLE]))
    rank_info = find_rank_info()
    assert rank_info is not None, "started without the variables of an agent"
    run = RunFolder(Path(sys.argv[1]))
    try:
        rendezvous = join_rendezvous(rank_info, run.path)
        if check_seconds := os.environ.get(CHECK_SECONDS_VARIABLE):
            _measure_on_rank(run, rendezvous, float(check_seconds))
        else:
            train_on_rank(run, rendezvous)
    except Exception as error:
        _record_failure(run, rank_info.rank, error)
        end_process(1)
    end_process(0)


def train_on_rank(run: RunFolder, rendezvous: Rendezvous, restart_cause: str | None = None) -> StopReason:
    """Collective: trains as one rank, from joining the others to leaving them.

    `restart_cause` is why another launcher started the processes again; ours records that itself.
    """
    notice = StopNotice()
    notice.install()
    world = _join(rendezvous)
    reason = _train(run, load_settings(run.config), world, notice, restart_cause)
    leave_world(world)
    return reason


def _measure_on_rank(run: RunFolder, rendezvous: Rendezvous, seconds: float) -> None:
    """Collective: measures for `dragoman check`; every host saves the results so far, in case another host is lost."""
    world = _join(rendezvous)
    settings = load_settings(run.config)
    path = run.path / MEASUREMENTS_FILE
    rehearse(
        resolve_precision(settings, world),
        PreparedCorpus.open(settings.data.prepared),
        world,
        seconds,
        note=lambda measured: write_json(path, measured.to_json()) if world.local_rank == 0 else None,
    )
    leave_world(world)
    report_end(StopReason.STEPS.name.lower(), step=0)


def _join(rendezvous: Rendezvous) -> World:
    """Collective: prepares this process for work on its device and joins the other ranks."""
    start_heartbeat(rendezvous.rank)
    keep_freed_memory()
    avoid_trapping_kernels()
    torch.set_num_threads(threads_of_this_worker(rendezvous.num_sharing_cores))
    return join_world(rendezvous, choose_device(rendezvous.local_rank))


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory; does nothing with other C libraries.

    Each step frees and allocates the same large blocks. Returned to the system, they come back as new pages that must
    be zeroed: a quarter of a step on a CPU.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    except (OSError, AttributeError):
        return


def avoid_trapping_kernels() -> None:
    """Avoids half-precision kernels that the CPU announces but traps, as some virtual machines do with AMX.

    Must be called before the first product: oneDNN chooses its kernels once. A child process tries them, so that a trap
    ends only the child.
    """
    if _KERNEL_LIMIT_VARIABLE in os.environ or not hasattr(os, "fork"):
        return
    child = os.fork()
    if child == 0:
        _try_half_precision_and_exit()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == -signal.SIGILL:
        os.environ[_KERNEL_LIMIT_VARIABLE] = _LAST_KERNELS_BEFORE_AMX


def _try_half_precision_and_exit() -> NoReturn:
    """Ends this process in every case: an exception that left it would go on as a second worker."""
    try:
        signal.alarm(_PROBE_SECONDS)  # ends a child that hangs
        # A trap must not leave a core file or a message behind.
        signal.signal(signal.SIGILL, signal.SIG_DFL)
        for dtype in (torch.bfloat16, torch.float16):
            square = torch.ones(64, 64, dtype=dtype)
            square @ square
    finally:
        os._exit(0)


def end_process(code: int) -> NoReturn:
    """Ends this process without the interpreter's own cleanup.

    All files are closed by now, but threads of gloo may still be ending: a worker that had finished was once seen to
    die there of "terminate called without an active exception", and the launcher took the run for failed.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # it may be a file on a full disk
            stream.flush()
    os._exit(code)


def _train(
    run: RunFolder, settings: Settings, world: World, notice: StopNotice, restart_cause: str | None
) -> StopReason:
    """Collective: opens everything a run needs, trains, and returns why training ended."""
    with ExitStack() as stack:
        console = stack.enter_context(RunConsole(run.log, settings.training.max_steps)) if world.is_first else None
        resume = plan_resume(run, world, console.say if console else print)
        if resume.is_new_run and os.environ.get(RESUMED_VARIABLE):
            raise UserError(f"There is no checkpoint to resume in {run.checkpoints} on any host.")
        price = settings.training.price_per_hour
        opened = SpentTime.open(run, world, find_launch(), price, resume.is_saver, resume.is_new_run)
        spent, requests = stack.enter_context(opened), run if world.is_first else None
        stop = StopConditions(settings.training, spent, notice, requests, bool(settings.checkpoints.average))
        require_tokenizer(settings.evaluation.tokenizer)  # this host may lack its packages
        corpus = PreparedCorpus.open(settings.data.prepared)
        if resume.is_saver:
            copy_tokenizers(corpus, run)
        if world.local_rank == 0 and settings.monitoring.sample_seconds:
            sampler = stack.enter_context(start_sampler(run, world.machine, settings.monitoring.sample_seconds))
            if sampler.trouble:
                print(sampler.trouble, file=sys.stderr, flush=True)
        settings = resolve_precision(settings, world, resume)
        if resume.is_saver and world.num_machines == 1:  # the launcher sends its config to other hosts at every start
            keep_precision(run, settings)
        watcher = _open_watcher(run, settings, world, console, resume, stack) if console else Watcher()
        if resume.is_new_run:
            plan = _measure_and_choose(settings, corpus, world, watcher)
        else:
            plan = read_synchronisation(resume, world)
        is_recorded = bool(os.environ.get(IS_RESTART_RECORDED_VARIABLE))
        trainer = Trainer(run, settings, corpus, world, watcher, resume, stop, plan, restart_cause, is_recorded)
        reason = trainer.train()
        if console:
            _diagnose(run, watcher, trainer.step)
        return reason


def _diagnose(run: RunFolder, watcher: Watcher, step: int) -> None:
    """Says what limited the run; no fault here makes a trained run a failed one."""
    try:
        watcher.diagnosed(step, verdict_of_run(run))
    except Exception as error:
        watcher.say(
            f"What limited the run could not be found out ({describe_fault(error)}); "
            f"try: {command_for('verdict', run.path)}"
        )


def _open_watcher(
    run: RunFolder, settings: Settings, world: World, console: RunConsole, resume: ResumePlan, stack: ExitStack
) -> Watcher:
    """Opens the files and the display of the first rank."""
    known = KnownSpeed() if resume.is_new_run else read_known_speed(run, world.size)
    sinks = stack.enter_context(Sinks(run.metrics, run.tensorboard, resume.step))
    prediction_check = PredictionCheck(world.size, known.predicted)
    pace = Pace(RunLength.from_settings(settings), known.recorded or known.predicted)
    return RunWatcher(console, sinks, pace, prediction_check, SystemFigures(run), settings.evaluation.metric)


def _measure_and_choose(settings: Settings, corpus: PreparedCorpus, world: World, watcher: Watcher) -> Synchronisation:
    """Collective: measures a few steps of a model that is then discarded, with several machines also their links.

    Returns how the run synchronises.
    """
    is_chosen = settings.synchronisation.strategy == "auto" and world.num_machines > 1
    if settings.cluster.check == "never" and not is_chosen:
        return resolve_synchronisation(settings, world.num_machines)
    if world.num_machines == 1 and settings.cluster.check != "always":
        watcher.predicted(0, rehearse_briefly(settings, corpus, world))
        return resolve_synchronisation(settings, world.num_machines)
    hint = "--sync auto needs this" if is_chosen else "--no-check skips this"
    watcher.say(f"Measuring steps and links for up to {_CHECK_SECONDS:.0f} s ({hint}) …")
    measured = rehearse(settings, corpus, world, _CHECK_SECONDS)
    plan = choose_strategy(measured, settings) if is_chosen else resolve_synchronisation(settings, world.num_machines)
    plan = share_synchronisation(plan if world.is_first else None, world)  # ranks may round figures differently
    watcher.predicted(0, predict_with(plan, measured, settings))
    return plan


def _record_failure(run: RunFolder, rank: int, error: Exception) -> None:
    """Reports the cause to the launcher; writes a traceback to the run folder if the cause is not a known one."""
    message = known_cause(run, rank, error)
    report_failure(message or describe_exception(run, rank, error), is_plain=message is not None)


def known_cause(run: RunFolder, rank: int, error: Exception) -> str | None:
    """Returns what happened and what to do, for errors that are not a fault of the program; None for others."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return (
            f"{run.path} cannot be written: {describe_os_error(error)}. Earlier checkpoints are intact: free some "
            f"space and continue with: {resume_command(run.path)}"
        )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return (
            f"Worker {rank} ran out of memory: lower training.global_batch_tokens, or use fewer workers on this host. "
            "Earlier checkpoints are intact."
        )
    return None


def describe_exception(run: RunFolder, rank: int, error: Exception) -> str:
    """Returns the first line of the error, and writes the traceback to the run folder."""
    first_line = (str(error).splitlines() or [""])[0]
    details = write_traceback(run.path, rank, error)
    where = f" Details are in {details}." if details else ""
    return f"Worker {rank} failed: {type(error).__name__}: {first_line}{where}"


if __name__ == "__main__":
    main()
