"""What each process of `dragoman check` does: it rehearses with the others, and leaves what was measured."""

import os
import sys
from pathlib import Path

import torch

from dragoman.cluster.environment import CHECK_SECONDS_VARIABLE, MEASUREMENTS_FILE, fair_num_threads, find_place
from dragoman.cluster.heartbeat import beat, start_heartbeat
from dragoman.cluster.rendezvous import Meeting, meet
from dragoman.cluster.world import join_world, leave_world
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.run.config import load_settings
from dragoman.run.files import write_json
from dragoman.run.folder import RunFolder
from dragoman.run.processes import end_with_parent
from dragoman.training.budget import StopReason
from dragoman.training.cpu import avoid_trapping_kernels, keep_freed_memory
from dragoman.training.rehearsal import rehearse
from dragoman.training.worker import end_process, record_failure


def main() -> None:
    """Runs one rank that our own launcher started."""
    end_with_parent()
    place = find_place()
    assert place is not None, "started without the variables of an agent"
    run = RunFolder(Path(sys.argv[1]))
    try:
        _measure(run, meet(place, run.path), float(os.environ[CHECK_SECONDS_VARIABLE]))
    except Exception as error:
        record_failure(run, place.rank, error)
        end_process(1)
    beat(StopReason.STEPS.name.lower())  # its last words, which the launcher reads
    end_process(0)


def _measure(run: RunFolder, meeting: Meeting, seconds: float) -> None:
    """Collective: every machine keeps what was measured so far, so that one that is lost takes nothing with it."""
    start_heartbeat(meeting.rank)
    keep_freed_memory()
    avoid_trapping_kernels()
    torch.set_num_threads(fair_num_threads(meeting.num_local))
    world = join_world(meeting)
    settings = load_settings(run.config)
    corpus = PreparedCorpus.open(settings.data.prepared)
    path = run.path / MEASUREMENTS_FILE
    rehearse(
        settings,
        corpus,
        world,
        seconds,
        note=lambda measured: write_json(path, measured.to_json()) if world.local_rank == 0 else None,
    )
    leave_world(world)


if __name__ == "__main__":
    main()
