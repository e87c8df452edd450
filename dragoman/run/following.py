"""A run from outside: how it is, and the lines of its files as they come. Needs nothing but the run folder."""

import math
import os
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Self

from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, is_held, open_run
from dragoman.run.status import (
    ALIVE_STATES,
    ENDED_STATES,
    LOST_SECONDS,
    RunStatus,
    describe_state,
    number_or_none,
    read_status_with_time,
)

POLL_SECONDS = 0.5
CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class Observation:
    """How a run looks from here, now."""

    state: str
    """One of PUBLIC_STATES."""
    status: RunStatus | None = None
    """None for a run that never wrote one."""
    seconds_silent: float = 0.0
    """Since the last heartbeat of a run that says it lives."""

    @property
    def is_alive(self) -> bool:
        """Whether somebody works on it."""
        return self.state in ALIVE_STATES

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be expected."""
        return self.state in ENDED_STATES or self.state == "lost"


def observe_run(run: RunFolder) -> Observation:
    """How the run is, by its files; a status.json of somebody else is a UserError."""
    found = read_status_with_time(run)
    if found is None:
        return Observation(_state_without_status(run))
    status, modified = found
    if status.state not in ALIVE_STATES:
        return Observation(status.state, status)
    seconds_silent = _seconds_since(modified, run.path)
    return Observation(describe_state(status, status.time + seconds_silent), status, seconds_silent)


def observe_until_end(run: RunFolder, timeout_seconds: float = math.inf) -> Iterator[Observation]:
    """How the run is, twice a second, until it has ended or the time is over; the last one tells which."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        observation = observe_run(open_run(run.path))  # opened anew, because the folder may have been removed
        yield observation
        seconds_left = deadline - time.monotonic()
        if observation.has_ended or seconds_left <= 0:
            return
        time.sleep(min(POLL_SECONDS, seconds_left))


def _seconds_since(modified: float, folder: Path) -> float:
    """How long ago a file of the folder was written."""
    seconds = time.time() - modified
    if not 0 <= seconds <= LOST_SECONDS:
        # Too long ago, or not yet: perhaps only by our clock, which need not be the one that dates the files.
        seconds = _file_system_time(folder) - modified
    return max(0.0, seconds)


def _file_system_time(folder: Path) -> float:
    """What time it is where files of this folder are dated; our own time if we may not write there."""
    try:
        with NamedTemporaryFile(prefix=".clock.", dir=folder) as file:
            file.write(b"\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _state_without_status(run: RunFolder) -> str:
    """The state of a run that keeps no status.json: by what it left, and whether a process here holds it."""
    if is_held(run):
        return "running"
    if not (run.exists and run.metrics.exists()):
        return "unstarted"
    last_step = max(run.checkpoint_steps(), default=-1)
    return "finished" if last_step >= planned_training(run).get("max_steps", math.inf) else "stopped"


def planned_training(run: RunFolder) -> dict[str, float]:
    """The numbers of [training] in config.toml, where every default is spelled out; empty if it cannot be read.

    Not by `load_settings`: to check all settings takes longer than all else that looking at a run does.
    """
    try:
        table: Any = tomllib.loads(run.config.read_text(encoding="utf-8")).get("training")
    except (OSError, ValueError, RecursionError):
        return {}
    values = table if isinstance(table, dict) else {}
    return {key: number for key, value in values.items() if (number := number_or_none(value)) is not None}


class LineFollower:
    """The lines of a file that others append to, each when it is complete.

    The file may not be there yet, may be cut short (it is read again from its beginning) or replaced by another one.
    """

    def __init__(self, path: Path, num_last_lines: int | None = None) -> None:
        """Begins with the last so many lines that the file has now, or with all."""
        self._path = path
        self._file: FileIO | None = None
        self._identity: os.stat_result | None = None
        self._begin_again()
        if num_last_lines is not None and (file := self._open()) is not None:
            self._follow(file, os.fstat(file.fileno()))
            self._position = _start_of_last_lines(file, num_last_lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def read_lines(self) -> Iterator[str]:
        """The lines completed since the last call, without their ends."""
        # Opened for each look: over NFS that is when a machine asks whether another one has appended something.
        newest = self._open()
        if newest is not None:
            found = os.fstat(newest.fileno())
            if self._identity is not None and not os.path.samestat(self._identity, found):
                yield from self._read_to_end()  # what was still written before another file took its place
                self._begin_again()
            elif found.st_size < self._position:
                self._begin_again()
            self._follow(newest, found)
        yield from self._read_to_end()

    def let_go(self) -> None:
        """Closes the file until the next look: one held open keeps its disk from being mounted again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO | None:
        try:
            return self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self._path} cannot be read: {error.strerror}.") from None

    def _follow(self, file: FileIO, identity: os.stat_result) -> None:
        """Changes to this file, which is kept open until the next: while it is, no other one can have its inode."""
        if self._file is not None:
            self._file.close()
        self._file, self._identity = file, identity

    def _begin_again(self) -> None:
        self._position, self._rest = 0, b""

    def _read_to_end(self) -> Iterator[str]:
        while chunk := self._read_chunk():
            self._position += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", errors="replace")

    def _read_chunk(self) -> bytes:
        if self._file is None:
            return b""
        try:
            return os.pread(self._file.fileno(), CHUNK_BYTES, self._position)
        except OSError:
            return b""  # over NFS, removed by another machine; the next look finds what took its place


def _start_of_last_lines(file: FileIO, num_lines: int) -> int:
    """Where the last so many complete lines begin, found from the end: logs may be large."""
    num_ends = 0
    start = os.fstat(file.fileno()).st_size
    while start > 0:
        end, start = start, max(0, start - CHUNK_BYTES)
        chunk = os.pread(file.fileno(), end - start, start)
        position = len(chunk)
        while (position := chunk.rfind(b"\n", 0, position)) >= 0:
            num_ends += 1
            if num_ends > num_lines:
                return start + position + 1
    return 0
