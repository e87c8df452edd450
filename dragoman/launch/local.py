"""Training a run that is ready, from our own launcher: on this machine or on a list of hosts. Needs no torch."""

import sys
from contextlib import suppress

from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.launch.call_hosts import Wishes
from dragoman.launch.hosts import Placement
from dragoman.launch.supervision import Plan, supervise
from dragoman.model.shape import count_parameters, resolve_shape
from dragoman.run.config import Settings, load_settings
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, hold_run
from dragoman.run.processes import own_command
from dragoman.run.status import RunStatus, StatusFile

WORKER_MODULE = "dragoman.training.worker"
BYTES_PER_PARAMETER = 12
"""In a checkpoint: the weight and two moments, 4 bytes each."""


def launch_run(run: RunFolder, placement: Placement, is_resumed: bool = False) -> bool:
    """Trains, with a status for everybody who sees the folder; False if the run was stopped before its end."""
    settings = load_settings(run.config)
    initial = RunStatus.starting(settings.training.max_steps, placement.num_workers)
    with hold_run(run), StatusFile(run, initial) as status:
        try:
            reason = supervise(_plan(run, settings, placement, is_resumed), status, lambda text: _say(run, text))
        except UserError as error:
            _log(run, str(error))
            raise
        status.update(state=ended_state(reason), reason=reason)
    tell_of_report(run, settings)
    return reason not in ("signal", "request")


def ended_state(reason: str) -> str:
    """The state of a run whose workers ended well, for one of `StopReason`'s words."""
    return "finished" if reason == "steps" else "stopped"


def _plan(run: RunFolder, settings: Settings, placement: Placement, is_resumed: bool) -> Plan:
    cluster = settings.cluster
    wishes = Wishes(
        run if placement.is_here_alone else RunFolder(run.path.absolute()),
        settings.data.prepared,
        kept_bytes(settings),
        cluster.host_timeout,
        is_resumed,
        placement.ssh_config,
        placement.is_data_sent,
        cluster.port or None,
    )
    return Plan(
        WORKER_MODULE,
        placement.hosts,
        placement.min_hosts,
        settings.training.virtual_workers,
        cluster.hang_timeout,
        cluster.max_restarts,
        wishes,
    )


def kept_bytes(settings: Settings) -> int:
    """Disk that the checkpoints kept at one time take."""
    corpus = PreparedCorpus.open(settings.data.prepared)
    shape = resolve_shape(settings.model, corpus.source_vocab_size, corpus.target_vocab_size, corpus.is_joint)
    num_kept = settings.checkpoints.keep_last + settings.checkpoints.keep_best + 1
    return num_kept * BYTES_PER_PARAMETER * count_parameters(shape)


def tell_of_report(run: RunFolder, settings: Settings) -> None:
    """Answers what people will ask about a run that has ended, and says where."""
    from dragoman.report.writing import report_run

    if not settings.monitoring.report:
        return
    try:
        _say(run, f"The report: {report_run(run)}")
    except Exception as error:  # a fault in its report must not make a trained run a failed one
        _say(run, f"The report could not be written ({error}); try: {own_command()} report {run.path}")


def _say(run: RunFolder, text: str) -> None:
    """What the launcher says is read in the terminal and kept in log.txt."""
    print(text, file=sys.stderr, flush=True)
    _log(run, text)


def _log(run: RunFolder, text: str) -> None:
    with suppress(OSError), run.log.open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")
