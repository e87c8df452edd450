"""Trains a run that is ready, on this machine or on a list of hosts. Does not import torch."""

import sys
from contextlib import suppress

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.launch.hosts import LaunchPlan, Placement
from dragoman.launch.supervision import supervise
from dragoman.model.shape import count_parameters, resolve_shape
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, hold_run
from dragoman.run.processes import own_command
from dragoman.run.status import RunStatus, StatusFile

WORKER_MODULE = "dragoman.training.worker"
BYTES_PER_PARAMETER = 12
"""Bytes of a parameter in a checkpoint: the weight and two moments, 4 bytes each."""


def launch_run(run: RunFolder, placement: Placement, is_resumed: bool = False) -> bool:
    """Trains, with a status that everybody who sees the folder can read; False if the run was stopped early."""
    settings = load_settings(run.config)
    initial = RunStatus.starting(settings.training.max_steps, placement.num_workers)
    with hold_run(run), StatusFile(run, initial) as status:
        plan = LaunchPlan.from_settings(run, settings, placement, WORKER_MODULE, kept_bytes(settings), is_resumed)
        try:
            reason = supervise(plan, status, lambda text: _say(run, text))
        except UserError as error:
            _log(run, str(error))
            raise
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
        _say(run, f"The report could not be written ({error}); try: {own_command()} report {run.path}")


def _say(run: RunFolder, text: str) -> None:
    """Prints a message of the launcher and appends it to log.txt."""
    print(text, file=sys.stderr, flush=True)
    _log(run, text)


def _log(run: RunFolder, text: str) -> None:
    with suppress(OSError), run.log.open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")
