"""A connection to one host: JSON lines over the standard streams of a program there, which ssh starts.

The command line is fixed (the interpreter and a module name). Everything a person chose, such as paths and settings,
is sent as JSON on standard input, so that no shell interprets it. The output of workers comes back on standard error.
"""

import contextlib
import json
import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from dragoman.cluster.failure import Failure
from dragoman.cluster.heartbeat import WorkerEnd
from dragoman.launch.hosts import Host
from dragoman.launch.ssh_failure import explain_ssh_failure
from dragoman.run.errors import UserError

HOST_MODULE = "dragoman.launch.host_program"
CONNECT_SECONDS = 10
KEEPALIVE_SECONDS = 1.0
MOST_QUIET_SECONDS = 2.0
STOP_LOOK_SECONDS = 0.2
LAST_OUTPUT_SECONDS = 1.0
"""How long to wait for the last output of a program that has ended; another process may keep its stream open."""
LAUNCHER_GONE = 4
"""Exit code of a program whose launcher is gone, as far as it knows."""
SSH_FAILED = 255
"""Exit code of ssh for its own failures; other codes are those of the program it ran."""

_WORDS_OF_SSH = re.compile(
    r"ssh: |Connection |client_loop: |Timeout, |packet_write|kex_exchange|Read from remote", re.I
)

Message = dict[str, Any]


@dataclass(frozen=True)
class AttemptSpec:
    """Everything a host needs to start its workers."""

    attempt_id: str
    module: str
    arguments: tuple[str, ...]
    node_rank: int
    num_nodes: int
    first_rank: int
    num_workers: int
    store_address: str
    store_port: int
    """Where the first host lets the others to the store through which all find each other."""
    secret: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> Message:
        """Returns plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Message) -> "AttemptSpec":
        """Builds the spec from what `to_json` returned."""
        return cls(**values | {"arguments": tuple(values["arguments"])})


@dataclass(frozen=True)
class WorkersEnd:
    """How the workers of one host ended."""

    failures: tuple[Failure, ...] = ()
    end: WorkerEnd | None = None
    """The end of the host's first worker; None if any worker failed."""
    last_step: int = 0
    """The last step that any of the workers reported."""
    error: str | None = None
    """Why the workers could not be started."""

    def to_json(self) -> Message:
        """Returns plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Message) -> "WorkersEnd":
        """Builds the end from what `to_json` returned."""
        failures = tuple(Failure(**failure) for failure in values["failures"])
        end = WorkerEnd(**values["end"]) if values["end"] else None
        return cls(**values | {"failures": failures, "end": end})


def ports_from_json(bounds: Sequence[int] | None) -> range | None:
    """Reads a range of ports from its first and last one."""
    return None if bounds is None else range(bounds[0], bounds[1] + 1)


def ports_to_json(ports: range | None) -> list[int] | None:
    """Returns the first and the last port of a range."""
    return None if ports is None else [ports[0], ports[-1]]


class StopRequestedError(Exception):
    """Somebody asked the run to stop while a host was asked something."""


class HostError(UserError):
    """A problem with one host; the other hosts may continue without it."""

    def __init__(self, host: Host, text: str) -> None:
        super().__init__(text)
        self.host = host


def ssh_command(ssh_config: Path | None, connect_seconds: int = CONNECT_SECONDS) -> list[str]:
    """Returns ssh with the user's set-up (keys, known hosts, jumps); it must not ask questions, since several run."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_seconds}"]
    return ["ssh", "-T", *(["-F", str(ssh_config)] if ssh_config else []), *options]


class Connection:
    """One host and the program on it; closing the connection ends the program and all its workers."""

    module = HOST_MODULE
    """The program, as Python starts it."""

    def __init__(
        self,
        host: Host,
        ssh_config: Path | None,
        show: Callable[[str, str], None],
        host_timeout: float,
        connect_seconds: int = CONNECT_SECONDS,
        program_here: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        """`program_here` is the program of this machine, if it was started already."""
        self.host = host
        self._ssh_config = ssh_config
        self.last_heard = time.monotonic()
        self._has_answered = False
        # A host that was not heard for this long gets no messages any more. So when it is given up after host_timeout,
        # it has not heard from us for `silence_seconds` and has ended its workers: no need to wait for that.
        self.quiet_seconds = min(MOST_QUIET_SECONDS, host_timeout / 3)
        silence_seconds = host_timeout - self.quiet_seconds
        self._show = show
        self._messages: queue.Queue[Message] = queue.Queue()
        self._last_lines: deque[str] = deque(maxlen=3)
        self._lock = threading.Lock()
        self._output_thread: threading.Thread | None = None
        if host.is_this_machine:
            sys.stdout.flush()
            self._process = program_here or self.start_here()
        else:
            remote = shlex.join([sys.executable, "-P", "-m", self.module, str(silence_seconds)])
            command = [*ssh_command(ssh_config, connect_seconds), "--", host.ssh_name, f"exec {remote}"]
            self._process = self._start(command)
            self._output_thread = self._read_in_background(self._process.stderr, self._on_output)
        self._read_in_background(self._process.stdout, self._on_message)

    @classmethod
    def start_here(cls) -> "subprocess.Popen[bytes]":
        """Starts the program without ssh; its workers write to this terminal directly and can draw a bar in it."""
        output = os.dup(1)
        try:
            # No limit on silence: a launcher on this machine may be stopped for a while (Ctrl-Z).
            command = [sys.executable, "-P", "-m", cls.module, "inf", str(output)]
            return cls._start(command, pass_fds=(output,), stderr=None)
        finally:
            os.close(output)

    @staticmethod
    def _start(
        command: Sequence[str], stderr: int | None = subprocess.PIPE, **options: Any
    ) -> "subprocess.Popen[bytes]":
        # A process group of its own: Ctrl-C must reach the launcher only, which then ends the run in order.
        try:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, process_group=0, **options
            )
        except FileNotFoundError:
            raise UserError(f"{command[0]} is not installed here; it is needed to reach other hosts.") from None

    def send(self, message: Message) -> None:
        """Sends a message; a host that is gone is noticed by its silence, not here."""
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, timeout: float = 0.0) -> Message | None:
        """Returns the next message, {"closed": reason} after the last one, or None if none comes in time."""
        try:
            return self._messages.get(timeout=timeout) if timeout else self._messages.get_nowait()
        except queue.Empty:
            return None

    def ask(
        self, request: Message, answer: str, timeout: float = 60.0, is_stopping: Callable[[], bool] = lambda: False
    ) -> Any:
        """Sends a request and returns its answer; raises a HostError if none comes, a StopRequestedError on a stop."""
        self.send(request)
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            message = self.receive(min(left, STOP_LOOK_SECONDS)) or {}
            if answer in message:
                return message[answer]
            if "error" in message:
                raise HostError(self.host, f"{self.host.name}: {message['error']}")
            if "closed" in message:
                raise HostError(self.host, f"{self.host.name} cannot be used: {message['closed']}")
            if is_stopping():
                raise StopRequestedError
        raise HostError(self.host, f"{self.host.name} did not answer in {timeout:.0f} s.")

    @property
    def seconds_silent(self) -> float:
        """Seconds since the last message; always 0 for this machine, where a program cannot be out of reach."""
        return 0.0 if self.host.is_this_machine else time.monotonic() - self.last_heard

    def close(self, timeout: float = 5.0) -> None:
        """Closes the connection; the program on the host notices that and ends itself with its workers."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @staticmethod
    def _read_in_background(stream: IO[bytes] | None, take: Callable[[bytes | None], None]) -> threading.Thread:
        """Calls `take` with each line of a stream, then with None."""

        def read() -> None:
            assert stream is not None
            with contextlib.suppress(OSError, ValueError):
                for line in stream:
                    take(line)
            take(None)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def _on_output(self, line: bytes | None) -> None:
        if line is None:
            return
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        self._last_lines.append(text)
        self._show(self.host.name, text)

    def _on_message(self, line: bytes | None) -> None:
        if line is None:
            code = self._process.wait()
            if self._output_thread:
                self._output_thread.join(LAST_OUTPUT_SECONDS)
            self._messages.put({"closed": self._why_closed(code)})
            return
        self.last_heard = time.monotonic()
        try:
            message = json.loads(line)
        except ValueError:  # printed by a login script, not by our program
            self._on_output(line)
            return
        if isinstance(message, dict):
            self._has_answered = True
            self._messages.put(message)

    def _why_closed(self, code: int) -> str:
        output = " ".join(self._last_lines) or "it gave no reason"
        if code == SSH_FAILED and self._has_answered:
            own = [line for line in self._last_lines if _WORDS_OF_SSH.match(line)]  # among the lines of workers
            return f"the ssh session was cut ({own[-1]})." if own else "the ssh session was cut."
        if code == SSH_FAILED and not self.host.is_this_machine:
            return explain_ssh_failure(self.host.ssh_name, "\n".join(self._last_lines), self._ssh_config)
        if code == LAUNCHER_GONE:
            return "its program had heard nothing from this machine for too long."
        if code == 127:
            return f"there is no {sys.executable} there; install dragoman at the same path on every host."
        return f"its program ended with code {code} ({output})."


class EarlyProgram:
    """The program of this machine, started before anybody connects to it: it imports torch in the meantime."""

    def __init__(self) -> None:
        self._unused = [Connection.start_here()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the program if no connection has taken it over."""
        if program := self.take():
            program.kill()
            program.wait()

    def take(self) -> "subprocess.Popen[bytes] | None":
        """Gives the program to the first who asks, who must end it."""
        try:
            return self._unused.pop()
        except IndexError:
            return None


class Keepalive:
    """Sends every host a message once a second: a host that hears nothing from its launcher ends its workers."""

    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._is_over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, connection: Connection) -> None:
        """Keeps this host alive."""
        self._connections.append(connection)

    def remove(self, connection: Connection) -> None:
        """Stops keeping this host alive."""
        self._connections.remove(connection)

    def stop(self) -> None:
        """Stops keeping any host alive."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(KEEPALIVE_SECONDS):
            for connection in list(self._connections):
                if connection.seconds_silent <= connection.quiet_seconds:
                    connection.send({"do": "keepalive"})
