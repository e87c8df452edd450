"""When nothing moves any more: which rank holds the others up, and what it was doing."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman.cluster.heartbeat import STARTING, Beat
from dragoman.run.files import write_text

START_SECONDS = 60.0
"""Allowed on top while a worker starts: a busy machine takes its time to load torch and to try its kernels."""
STOPPED_STATES = "TtD"
ENDED_STATES = "ZX"
"""How they ended is their agent's business; others may still be saving."""
_STATE_WORDS = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a device", "Z": "is dead"}


def find_hang(beats: Sequence[Beat], timeout_seconds: float) -> Beat | None:
    """The rank that holds the run up, once it has been silent for too long; None while all is well.

    A rank that waits for others is no culprit, however long it waits: one of the others may be judging or saving.
    Only when all are silent is one of the waiting looked at: a stopped process may have been stopped while it waited.
    """
    beats = [beat for beat in beats if beat.process_state not in ENDED_STATES]
    silent = [
        beat for beat in beats if beat.seconds_silent > timeout_seconds + START_SECONDS * (beat.doing == STARTING)
    ]
    suspects = [beat for beat in silent if not beat.is_waiting] or (silent if len(silent) == len(beats) else [])
    return max(suspects, key=_guilt, default=None)


def _guilt(beat: Beat) -> tuple[bool, bool, float]:
    return beat.process_state in STOPPED_STATES, not beat.is_waiting, beat.seconds_silent


def describe_hang(beat: Beat, host: str) -> str:
    """Who hangs, since when and in what."""
    if beat.is_waiting and beat.process_state not in STOPPED_STATES:
        return (
            f"All workers have been waiting for each other for {beat.seconds_silent:.0f} s "
            f"(rank {beat.rank} on {host}: {beat.doing}, step {beat.step}): the network between them may be broken."
        )
    state = _STATE_WORDS.get(beat.process_state)
    process = f"; process {beat.pid} {state}" if state else ""
    return (
        f"Rank {beat.rank} on {host} hangs at step {beat.step}: {beat.doing} for {beat.seconds_silent:.0f} s{process}."
    )


def save_hang_report(
    folder: Path, sentence: str, beats: Sequence[Beat], hosts: Mapping[int, str], stacks: Mapping[int, str], guilty: int
) -> Path:
    """Writes what every rank was doing, the guilty one first, with its stack."""
    lines = [sentence, ""]
    for beat in sorted(beats, key=lambda beat: (beat.rank != guilty, beat.rank)):
        lines += [
            f"== rank {beat.rank} on {hosts[beat.rank]}, process {beat.pid} "
            f"(state {beat.process_state}), step {beat.step}: {beat.doing}, silent for {beat.seconds_silent:.1f} s",
            stacks.get(beat.rank, "No stack could be had."),
            "",
        ]
    path = folder / f"hang-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    write_text(path, "\n".join(lines))
    return path
