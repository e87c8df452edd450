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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from dragoman.run.errors import UserError, describe_os_error
from dragoman.run.files import read_toml_table, write_json, write_text
from dragoman.run.folder import LockHolder, RunFolder, is_locked, locked_error, open_run
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
    """Why it ended: "steps", "patience", "time", "cost", "signal" or "request"."""
    boot_id: Text | None = None
    """The launcher's machine since it was switched on: several machines may have one name."""

    @classmethod
    def starting(cls, num_steps: int, num_workers: int) -> Self:
        """Builds the first status of a run that this process launches."""
        now = time.time()
        host, pid = socket.gethostname(), os.getpid()
        return cls("starting", now, host, pid, now, 0, num_steps, num_workers, boot_id=_own_boot_id())

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
    """Writes status.json; inside a `with` block also a heartbeat every two seconds.

    An exception that leaves the block marks the run as failed, unless it had already ended.
    """

    def __init__(self, run: RunFolder, initial: RunStatus) -> None:
        self._path = run.status
        self._status = initial
        self.has_run = False
        """Whether the state has ever been "running", so that the run may have trained something."""
        # Signal handlers must not take it: they would wait for the thread they interrupted.
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="status", daemon=True)

    @property
    def status(self) -> RunStatus:
        """The status written last."""
        return self._status

    def update(self, **changes: Any) -> None:
        """Changes some fields and writes the status at once; not for signal handlers."""
        with self._lock:
            self._status = replace(self._status, time=time.time(), **changes)
            self.has_run |= self._status.state == "running"
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
        """Writes the file; errors are ignored, because a run must not end for them."""
        # File names in a message may hold bytes that are not UTF-8 and cannot be printed.
        text = json.dumps(self._status.to_json(), ensure_ascii=False, indent=2).encode(errors="replace").decode()
        try:
            write_text(self._path, text + "\n", is_durable=False)
        except OSError:
            # The heartbeat continues on a full disk: a new time stamp needs no space.
            with suppress(OSError):
                os.utime(self._path)


def describe_state(status: RunStatus, now: float) -> str:
    """Returns the state to show; `now` is by the clock that wrote `status.time`."""
    is_lost = status.state in ALIVE_STATES and now - status.time > LOST_SECONDS
    return "lost" if is_lost else status.state


def read_status(run: RunFolder) -> RunStatus | None:
    """Reads the status the launcher wrote last; None where there is none."""
    found = _read_status_with_time(run)
    return None if found is None else found[0]


def _read_status_with_time(run: RunFolder) -> tuple[RunStatus, float] | None:
    """Reads the last status and its time by the clock of the file system; None where there is none."""
    try:
        try:
            content, modified = _content_and_time(run.status)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # NFS: the file was replaced between opening and reading.
            content, modified = _content_and_time(run.status)
        return RunStatus.from_json(from_json(content), str(run.status)), modified
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{run.status} cannot be read: {describe_os_error(error)}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{run.status} is not the status of a run: it is not valid JSON.") from None


def _content_and_time(path: Path) -> tuple[bytes, float]:
    with path.open("rb") as file:
        return file.read(), os.fstat(file.fileno()).st_mtime


def request_stop(run: RunFolder) -> None:
    """Asks the launcher, on any machine, to stop after this step and save."""
    request = {"time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    try:
        write_json(run.stop_request, request, is_durable=False)
    except OSError as error:
        raise UserError(f"Cannot ask the run to stop: {run.stop_request}: {describe_os_error(error)}.") from None


def is_stop_requested(run: RunFolder) -> bool:
    """Whether somebody asked the run to stop.

    NFS may hide a new file of another machine for half a minute. The launcher sees it sooner, since its heartbeats in
    the same folder make its machine look again.
    """
    return run.stop_request.exists()


def clear_stop_request(run: RunFolder) -> None:
    """Removes the stop request, if there is one."""
    with suppress(OSError):
        run.stop_request.unlink(missing_ok=True)


@dataclass(frozen=True)
class Observation:
    """The state of a run as this process sees it."""

    state: str
    """One of PUBLIC_STATES."""
    status: RunStatus | None = None
    """None where the run has no status.json."""
    seconds_silent: float = 0.0
    """Seconds since the last heartbeat, of a run that reports to be alive."""
    is_process_gone: bool = False
    """Whether the launcher is known to have ended without a word, and is not only silent."""

    @property
    def is_alive(self) -> bool:
        """Whether a launcher is working on the run."""
        return self.state in ALIVE_STATES

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended or is lost."""
        return self.state in ENDED_STATES or self.state == "lost"


def observe_run(run: RunFolder) -> Observation:
    """Determines the state of a run from its files; a status.json of another format is a UserError."""
    found = _read_status_with_time(run)
    if found is None:
        return Observation(_state_without_status(run))
    status, modified = found
    if status.state not in ALIVE_STATES:
        return Observation(status.state, status)
    seconds_silent = _seconds_since(modified, run.path)
    if _is_launcher_gone(status) and not is_locked(run):
        # It has ended, so what it wrote last is there by now: perhaps that the run has ended.
        last = read_status(run)
        if last is not None and (last.pid, last.started, last.state) == (status.pid, status.started, status.state):
            return Observation("lost", status, seconds_silent, is_process_gone=True)
        return observe_run(run)
    return Observation(describe_state(status, status.time + seconds_silent), status, seconds_silent)


def _is_launcher_gone(status: RunStatus) -> bool:
    """Whether the launcher ran on this machine and its process has ended; False where that cannot be known.

    A container may have the name of this machine and other process numbers, so its lock must be free as well.
    """
    is_here = status.host == socket.gethostname() and status.boot_id in (None, _own_boot_id())
    if not is_here or status.pid == os.getpid():
        return False
    try:
        os.kill(status.pid, 0)
        state = Path(f"/proc/{status.pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it belongs to somebody else, or there is no /proc
        return False
    return state.split()[:1] == ["Z"]  # ended, but its parent has not noticed


def _own_boot_id() -> str | None:
    """Returns what tells this machine from all others, and from itself before it was last switched on."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def require_untrained(run: RunFolder) -> None:
    """Refuses a run that another process trains, on this machine or on another one.

    Some network file systems do not show the locks of other machines; there the heartbeat of the launcher counts. A
    fresh status may be the last one of a machine that was just lost, so only another heartbeat proves a launcher.
    """
    if is_locked(run):
        raise locked_error(run)
    first = _read_heartbeat(run)
    deadline = time.monotonic() + LOST_SECONDS
    while (last := _read_heartbeat(run)) is not None and time.monotonic() < deadline:
        status, modified = last
        if last != first:
            raise LockHolder(status.host, status.pid).refusal(run)
        # By the clock of the file system; its new file also makes NFS look at the folder again.
        if _file_system_time(run.path) - modified > LOST_SECONDS:
            return
        time.sleep(POLL_SECONDS)


def _read_heartbeat(run: RunFolder) -> tuple[RunStatus, float] | None:
    """Reads the status of another launcher that may be alive, and its time; None where there is none."""
    try:
        found = _read_status_with_time(run)
    except UserError:  # a damaged file keeps nobody from training
        return None
    if found is None or found[0].state not in ALIVE_STATES or _is_launcher_gone(found[0]):
        return None
    # In a container that starts again, an earlier launcher may have had the number of this process.
    is_own = (found[0].host, found[0].pid) == (socket.gethostname(), os.getpid())
    return None if is_own else found


def observe_until_end(run: RunFolder, timeout_seconds: float = math.inf) -> Iterator[Observation]:
    """Yields the state twice a second until the run has ended or the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        observation = observe_run(open_run(run.path))  # opened again, because the folder may have been removed
        yield observation
        seconds_left = deadline - time.monotonic()
        if observation.has_ended or seconds_left <= 0:
            return
        time.sleep(min(POLL_SECONDS, seconds_left))


def _seconds_since(modified: float, folder: Path) -> float:
    """Seconds since a file of the folder was written."""
    seconds = time.time() - modified
    if not 0 <= seconds <= LOST_SECONDS:
        # Too old, or in the future: perhaps only by our clock, which may differ from that of the file system.
        seconds = _file_system_time(folder) - modified
    return max(0.0, seconds)


def _file_system_time(folder: Path) -> float:
    """The time by the clock of the file system; our own time where we may not write."""
    try:
        with NamedTemporaryFile(prefix=".clock.", dir=folder) as file:
            file.write(b"\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _state_without_status(run: RunFolder) -> str:
    """The state of a run without status.json, from its other files and its lock."""
    if is_locked(run):
        return "running"
    if not (run.exists and run.metrics.exists()):
        return "unstarted"
    last_step = max(run.checkpoint_steps(), default=-1)
    return "finished" if last_step >= planned_training(run).get("max_steps", math.inf) else "stopped"


def planned_training(run: RunFolder) -> dict[str, float]:
    """Reads the numbers of [training] in config.toml, which lists every default; empty if it cannot be read.

    Does not use `load_settings`: checking all settings takes longer than the rest of `dragoman status`.
    """
    table = read_toml_table(run.config).get("training")
    values = table if isinstance(table, dict) else {}
    return {key: number for key, value in values.items() if (number := number_or_none(value)) is not None}
