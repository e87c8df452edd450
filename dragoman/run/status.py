"""How a run and everybody else talk, through two files: status.json says how it is, stop.request asks it to stop.

Any machine that sees the run folder can read the one and write the other; there is no server. The launcher rewrites
status.json every two seconds as long as it lives, so a run that died without a word is found out.
"""

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from dragoman.run.errors import UserError
from dragoman.run.files import write_json, write_text
from dragoman.run.folder import RunFolder

HEARTBEAT_SECONDS = 2.0
LOST_SECONDS = 20.0
"""A launcher that was silent for so long is taken for dead."""

ALIVE_STATES = ("starting", "running", "restarting", "waiting")
"""What a launcher that lives may say of its run; it waits for hosts."""
ENDED_STATES = ("finished", "stopped", "failed")
PUBLIC_STATES = ("unstarted", *ALIVE_STATES, *ENDED_STATES, "lost")
"""All states a person may be told: "lost" is a run that says it lives but is silent."""

_LARGEST_NUMBER = 2**53
"""No step, process or second has a larger one; those of strangers might not even fit into a float."""


@dataclass(frozen=True)
class HostStatus:
    """One machine of a run."""

    name: str
    workers: int
    state: Literal["working", "lost"] = "working"


@dataclass(frozen=True)
class RunStatus:
    """What status.json holds."""

    state: str
    time: float
    """When this was written, in seconds since 1970 by the launcher's clock."""
    host: str
    pid: int
    started: float
    """When the launcher began."""
    step: int
    num_steps: int
    """After so many the run is finished."""
    num_workers: int
    hosts: tuple[HostStatus, ...] = ()
    """Empty: the launcher's machine alone."""
    num_restarts: int = 0
    last_restart_cause: str | None = None
    message: str | None = None
    """Why it failed, or what it waits for."""
    reason: str | None = None
    """Why it ended: "steps", "time", "cost", "signal" or "request"."""

    @classmethod
    def starting(cls, num_steps: int, num_workers: int, hosts: Sequence[HostStatus] = ()) -> Self:
        """The first status of a run that this process launches."""
        now = time.time()
        host, pid = socket.gethostname(), os.getpid()
        return cls("starting", now, host, pid, now, 0, num_steps, num_workers, tuple(hosts))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"hosts": [asdict(host) for host in self.hosts]}

    @classmethod
    def from_json(cls, values: Any, where: str = "status.json") -> Self:
        """The status `to_json` gave, whatever else is there; anything else is a UserError."""
        if not isinstance(values, dict):
            raise UserError(f"{where} is not the status of a run: it holds no JSON object.")
        wrong = next((name for name, is_valid in _CHECKS.items() if not is_valid(values.get(name))), None)
        if wrong is not None:
            raise UserError(f'{where} is not the status of a run: its "{wrong}" is missing or wrong.')
        hosts = tuple(HostStatus(host["name"], host["workers"], host["state"]) for host in values["hosts"])
        checked: dict[str, Any] = {name: values.get(name) for name in _CHECKS}
        return cls(**checked | {"hosts": hosts})


def _is_text(value: Any) -> bool:
    # Half a surrogate pair, which JSON can write, could not be printed.
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


def number_or_none(value: Any) -> float | None:
    """A value that somebody wrote, if it is a number one can reckon with."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= _LARGEST_NUMBER else None


def _is_seconds(value: Any) -> bool:
    number = number_or_none(value)
    return number is not None and number >= 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_seconds(value)


def _is_host(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_text(value.get("name"))
        and _is_count(value.get("workers"))
        and value.get("state") in ("working", "lost")
    )


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "state": lambda value: value in ALIVE_STATES + ENDED_STATES,
    "time": _is_seconds,
    "host": _is_text,
    "pid": _is_count,
    "started": _is_seconds,
    "step": _is_count,
    "num_steps": _is_count,
    "num_workers": _is_count,
    "hosts": lambda value: isinstance(value, list) and all(map(_is_host, value)),
    "num_restarts": _is_count,
    "last_restart_cause": _is_text_or_none,
    "message": _is_text_or_none,
    "reason": _is_text_or_none,
}


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
        return RunStatus.from_json(json.loads(content), str(run.status)), modified
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
