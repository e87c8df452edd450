"""The launcher's end of a link to `host_files` on another host, over an ssh process of its own.

Files are large and may wait; heartbeats must not. What comes back is checked as if a stranger had sent it: names, sizes
and the length of every answer.
"""

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dragoman.launch.connection import SSH_FAILED, ssh_command
from dragoman.launch.hosts import Host
from dragoman.launch.mirror.host_files import LINKS, MAX_FILES, MAX_READ_BYTES, MODULE, kind_of_file
from dragoman.launch.ssh_failure import explain_ssh_failure
from dragoman.run.errors import UserError

SILENCE_SECONDS = 15.0
"""A host that sends nothing for so long does not answer any more."""
ANSWER_SECONDS = 120.0
"""Longest time for one answer: a slow link needs half a minute for one part of a file."""
OPEN_SECONDS = 30.0
CLOSE_SECONDS = 2.0
MAX_HEADER_BYTES = 2**21
MAX_GREETING_LINES = 100
"""Lines that login scripts may print before the first answer."""
MAX_COMPLAINT_BYTES = 4_000
"""How much is kept of what ssh and the program print on standard error: the warning of a changed host key is long."""
MAX_SHOWN_BYTES = 300
MAX_SIZE = 2**50

Command = Callable[[Host], list[str]]


class LinkError(UserError):
    """The host cannot be read now; another try may work."""


class RefusedFileError(UserError):
    """The host cannot read one file; others may work."""


class FileGoneError(Exception):
    """The file does not exist on the host any more."""


@dataclass(frozen=True)
class FileFacts:
    """Size of a file and when it was changed, by the clock of its host."""

    size: int
    changed: int
    """Nanoseconds since 1970."""


@dataclass(frozen=True)
class Listing:
    """The files of a run on one host at one moment."""

    files: Mapping[str, FileFacts] = field(default_factory=dict)
    links: Mapping[str, int] = field(default_factory=dict)
    """Steps of the checkpoints `latest` and `best`."""

    def size(self, name: str) -> int:
        """Returns the size of a file; 0 if there is none."""
        return self.files[name].size if name in self.files else 0


@dataclass(frozen=True)
class OpenedRun:
    """What a host says about itself when its run folder is opened."""

    shares_folder: bool
    port_rate: int | None
    """Bytes per second of its slowest network card, if known."""


@dataclass(frozen=True)
class FilePart:
    """A part of a file, with the facts of the whole file when it was read."""

    content: bytes
    facts: FileFacts


def file_command(ssh_config: Path | None) -> Command:
    """Returns how to start the program on a host; ssh ends by itself where the host falls silent."""
    alive = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    remote = f"exec {shlex.join([sys.executable, '-P', '-m', MODULE])}"
    return lambda host: [*ssh_command(ssh_config), *alive, "--", host.ssh_name, remote]


class FileLink:
    """A running program that reads files on a host; one request at a time, all from one thread except `abort`."""

    def __init__(self, host: Host, command: Command, ssh_config: Path | None = None) -> None:
        self._received = bytearray()
        self._complaints = bytearray()
        # A process group of its own, as in `Connection`: Ctrl-C must reach the launcher only.
        self._process = subprocess.Popen(
            command(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        )
        self._host = host
        self._ssh_config = ssh_config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the program by closing its input; kills it if that does not help."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abort(self) -> None:
        """Ends the link, from any thread; a request that waits for its answer fails."""
        self._process.kill()

    def open_run(self, run: Path, token: str) -> "OpenedRun":
        """Names the run folder, in which `token` is a file here: a host that sees it shares the folder."""
        header = self._ask({"do": "open", "run": str(run), "token": token}, OPEN_SECONDS, MAX_GREETING_LINES)
        rate = header.get("port_rate")
        return OpenedRun(header.get("shares_folder") is True, rate if type(rate) is int and rate > 0 else None)

    def list_files(self) -> Listing:
        """Returns what the host has now; names that no run writes are left out."""
        header = self._ask({"do": "list"})
        files, links = header.get("files"), header.get("links")
        if not isinstance(files, dict) or not isinstance(links, dict) or len(files) > MAX_FILES:
            raise self._nonsense(header)
        return Listing(
            {name: self._facts(*_pair(facts)) for name, facts in files.items() if kind_of_file(name)},
            {name: step for name, step in links.items() if name in LINKS and type(step) is int and 0 <= step < 10**12},
        )

    def read(self, name: str, offset: int, max_bytes: int = MAX_READ_BYTES) -> FilePart:
        """Reads a part of a file; raises FileGoneError if there is no such file any more."""
        header = self._ask({"do": "read", "name": name, "offset": offset, "max_bytes": max_bytes})
        if header.get("is_gone") is True:
            raise FileGoneError(name)
        num_bytes = header.get("num_bytes")
        if type(num_bytes) is not int or not 0 <= num_bytes <= max_bytes:
            raise self._nonsense(header)
        while len(self._received) < num_bytes:
            self._receive()
        content = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return FilePart(content, self._facts(header.get("size"), header.get("changed")))

    def _ask(
        self, request: dict[str, Any], seconds: float = ANSWER_SECONDS, num_other_lines: int = 0
    ) -> dict[str, Any]:
        """Sends a request and returns the header of its answer."""
        self._deadline = time.monotonic() + seconds
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._closed() from None
        for _ in range(num_other_lines + 1):
            line = self._receive_line()
            with contextlib.suppress(ValueError, RecursionError):
                header = json.loads(line)
                if isinstance(header, dict):
                    break
        else:
            raise self._nonsense(line)
        if "error" in header:
            raise RefusedFileError(f"{self._host.name}: {_shorten(header['error'])}.")
        return header

    def _receive_line(self) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > MAX_HEADER_BYTES:
                raise self._nonsense(self._received)
            self._receive()
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _receive(self) -> None:
        """Waits for more bytes of the answer; keeps the end of what is printed on standard error."""
        output, errors = self._process.stdout, self._process.stderr
        assert output is not None
        assert errors is not None
        silent_at = time.monotonic() + SILENCE_SECONDS
        streams = [output, errors]
        while (left := min(silent_at, self._deadline) - time.monotonic()) > 0:
            ready = select.select(streams, [], [], left)[0]
            if errors in ready:
                if not self._note_complaint():
                    streams.remove(errors)
            elif output in ready:
                if not (received := os.read(output.fileno(), 2**16)):
                    raise self._closed()
                self._received += received
                return
        raise LinkError(f"{self._host.name} does not answer.")

    def _note_complaint(self) -> bool:
        """Keeps the end of what comes on standard error; returns whether anything came."""
        assert self._process.stderr is not None
        complaint = os.read(self._process.stderr.fileno(), 2**12)
        self._complaints = (self._complaints + complaint)[-MAX_COMPLAINT_BYTES:]
        return bool(complaint)

    def _facts(self, size: Any, changed: Any) -> FileFacts:
        if type(size) is not int or type(changed) is not int or not (0 <= size < MAX_SIZE and 0 <= changed < 2**63):
            raise self._nonsense([size, changed])
        return FileFacts(size, changed)

    def _nonsense(self, received: Any) -> LinkError:
        return LinkError(f"{self._host.name} sent something that is no answer: {_shorten(received)}.")

    def _closed(self) -> LinkError:
        """Says why the program has ended."""
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return LinkError(f"{self._host.name} closed the link.")
        assert self._process.stderr is not None
        while select.select([self._process.stderr], [], [], 0)[0] and self._note_complaint():
            pass
        output = self._complaints.decode("utf-8", "replace")
        if code == SSH_FAILED:
            why = explain_ssh_failure(self._host.ssh_name, output, self._ssh_config)
            return LinkError(f"{self._host.name} cannot be reached: {why}")
        if code == 127:
            return LinkError(f"{self._host.name} has no {sys.executable}: install dragoman at the same path there.")
        last = _shorten((output.strip().splitlines() or ["it gave no reason"])[-1])
        return LinkError(f"{self._host.name}: its program for files ended with code {code} ({last}).")


def _pair(values: Any) -> tuple[Any, Any]:
    return (values[0], values[1]) if isinstance(values, list) and len(values) == 2 else (None, None)


def _shorten(text: Any) -> str:
    """Shows the beginning of what a host has sent, without characters that a terminal would obey."""
    shown = text.decode("utf-8", "replace") if isinstance(text, bytes | bytearray) else str(text)
    return "".join(each if each.isprintable() else "?" for each in shown[:MAX_SHOWN_BYTES])
