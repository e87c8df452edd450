"""The state of a run, exchanged through two files: status.json reports it, stop.request asks the run to stop.

Any machine that sees the run folder can read the one and write the other; there is no server. The launcher rewrites
status.json every two seconds while it is alive, so that a launcher that died silently is noticed.
"""

import errno
import json
import math
import os
import socket
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from dragoman.run.errors import UserError
from dragoman.run.files import write_json, write_text
from dragoman.run.folder import RunFolder, is_held, open_run
from dragoman.run.records import Count, Seconds, Text, number_or_none

HEARTBEAT_SECONDS = 2.0
LOST_SECONDS = 20.0
"""A launcher that has been silent for longer is taken for dead."""
POLL_SECONDS = 0.5

ALIVE_STATES = ("starting", "running", "restarting", "waiting")
"""States of a run whose launcher is alive; "waiting" is for hosts."""
ENDED_STATES = ("finished", "stopped", "failed")
PUBLIC_STATES = ("unstarted", *ALIVE_STATES, *ENDED_STATES, "lost")
"""All states shown to people; "lost" is a run whose launcher fell silent."""
State = Literal["starting", "running", "restarting", "waiting", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class HostStatus:
    """One machine of a run."""

    name: Text
    workers: Count
    state: Literal["working", "lost"] = "working"


@dataclass(frozen=True)
class RunStatus:
    """Content of status.json."""

    state: State
    time: Seconds
    """When this was written, in seconds since 1970 by the launcher's clock."""
    host: Text
    pid: Count
    started: Seconds
    """When the launcher started."""
    step: Count
    num_steps: Count
    """Steps after which the run is finished."""
    num_workers: Count
    hosts: tuple[HostStatus, ...] = ()
    """Empty where the launcher's machine trains alone."""
    num_restarts: Count = 0
    last_restart_cause: Text | None = None
    message: Text | None = None
    """Why the run failed, or what it waits for."""
    reason: Text | None = None
    """Why it ended: "steps", "time", "cost", "signal" or "request"."""

    @classmethod
    def starting(cls, num_steps: int, num_workers: int, hosts: Sequence[HostStatus] = ()) -> Self:
        """Builds the first status of a run that this process launches."""
        now = time.time()
        host, pid = socket.gethostname(), os.getpid()
        return cls("starting", now, host, pid, now, 0, num_steps, num_workers, tuple(hosts))

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self) | {"hosts": [asdict(host) for host in self.hosts]}

    @classmethod
    def from_json(cls, values: Any, where: str = "status.json") -> Self:
        """Builds a status from JSON values and ignores unknown keys; a UserError names the first wrong key."""
        if not isinstance(values, dict):
            raise UserError(f"{where} is not the status of a run: it holds no JSON object.")
        try:
            return TypeAdapter(cls).validate_python({"hosts": None, "num_restarts": None} | values)
        except ValidationError as error:
            key = error.errors(include_url=False, include_context=False)[0]["loc"][0]
            raise UserError(f'{where} is not the status of a run: its "{key}" is missing or wrong.') from None


class StatusFile:
    """Keeps status.json up to date and, inside a `with` block, its heart beating.

    An exception that leaves the block is why the run failed, unless the run was said to have ended before.
    """

    def __init__(self, run: RunFolder, initial: RunStatus) -> None:
        self._path = run.status
        self._status = initial
        # Not to be held by a signal handler: it would wait for the very thread it interrupts.
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="status", daemon=True)

    @property
    def status(self) -> RunStatus:
        """What was said last."""
        return self._status

    def update(self, **changes: Any) -> None:
        """Writes the status with these fields changed, at once; not for signal handlers."""
        with self._lock:
            self._status = replace(self._status, time=time.time(), **changes)
            self._write()

    def __enter__(self) -> Self:
        self.update()
        self._heart.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._is_over.set()
        self._heart.join()
        if error is not None and self._status.state in ALIVE_STATES:
            self.update(state="failed", message=str(error) or type(error).__name__)

    def _beat(self) -> None:
        while not self._is_over.wait(HEARTBEAT_SECONDS):
            self.update()

    def _write(self) -> None:
        """A run must not end because nobody can be told how it is: errors are swallowed."""
        # File names in a message may hold bytes that are no UTF-8; nobody could print them.
        text = json.dumps(self._status.to_json(), ensure_ascii=False, indent=2).encode(errors="replace").decode()
        try:
            write_text(self._path, text + "\n", is_durable=False)
        except OSError:
            # On a full disk the heart can still beat: a new time needs no space.
            with suppress(OSError):
                os.utime(self._path)


def describe_state(status: RunStatus, now: float) -> str:
    """The state to tell people, at a time by the clock that `status.time` was taken from."""
    is_lost = status.state in ALIVE_STATES and now - status.time > LOST_SECONDS
    return "lost" if is_lost else status.state


def read_status(run: RunFolder) -> RunStatus | None:
    """What the launcher wrote last; None where it never wrote."""
    found = read_status_with_time(run)
    return None if found is None else found[0]


def read_status_with_time(run: RunFolder) -> tuple[RunStatus, float] | None:
    """What the launcher wrote last, and when by the clock that dates files there; None where it never wrote."""
    try:
        try:
            content, modified = _content_and_time(run.status)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # On NFS the file was replaced between our opening and reading it.
            content, modified = _content_and_time(run.status)
        return RunStatus.from_json(from_json(content), str(run.status)), modified
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{run.status} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{run.status} is not the status of a run: it is not valid JSON.") from None


def _content_and_time(path: Path) -> tuple[bytes, float]:
    with path.open("rb") as file:
        return file.read(), os.fstat(file.fileno()).st_mtime


def request_stop(run: RunFolder) -> None:
    """Asks the launcher, wherever it runs, to stop after this step and save."""
    request = {"time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    try:
        write_json(run.stop_request, request, is_durable=False)
    except OSError as error:
        raise UserError(f"The run cannot be asked to stop: {run.stop_request}: {error.strerror}.") from None


def is_stop_requested(run: RunFolder) -> bool:
    """Whether somebody asked.

    Over NFS a file may stay unseen for half a minute after another machine made it; the launcher sees it sooner, since
    its heartbeats in the same folder make its machine look again.
    """
    return run.stop_request.exists()


def clear_stop_request(run: RunFolder) -> None:
    """Takes the request back, or notes that it was met; no error if there is none."""
    with suppress(OSError):
        run.stop_request.unlink(missing_ok=True)


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
