"""Hosts that left a run: looked for in the background, and known to be back when they can be used again."""

import contextlib
import secrets
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.launch.connection import Connection, HostError, Message, Pulse, ssh_command
from dragoman.launch.hosts import (
    Expected,
    Facts,
    Host,
    HostFacts,
    gather_facts,
    is_data_missing,
    missing_data_problem,
    problems_of,
    warnings_of,
)
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder


def send_folder(connection: Connection, folder: Path, ssh_config: Path | None) -> None:
    """Makes `folder` appear on the host at the same path: with rsync, which continues a cut copy, else with scp."""
    name, folder = connection.host.name, folder.absolute()
    aside = folder.with_name(f".{folder.name}.partial")
    connection.ask({"do": "make_folder", "path": str(aside)}, "made")
    if shutil.which("rsync"):
        shell = shlex.join(ssh_command(ssh_config))
        # --protect-args: no shell on the other side reads the path.
        command = [
            "rsync",
            "--archive",
            "--partial",
            "--protect-args",
            "-e",
            shell,
            "--",
            f"{folder}/",
            f"{name}:{aside}/",
        ]
    else:
        config = ["-F", str(ssh_config)] if ssh_config else []
        files = [str(path) for path in sorted(folder.iterdir())]
        command = ["scp", "-q", "-r", "-p", *config, "-o", "BatchMode=yes", "--", *files, f"{name}:{aside}/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"])[-1]
        raise UserError(f"The data could not be copied to {name}: {reason}")
    connection.ask({"do": "adopt", "path": str(aside), "as": str(folder)}, "adopted")


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Wishes:
    """What a run wants of its hosts."""

    run: RunFolder
    prepared: Path
    kept_bytes: int
    host_timeout: float
    is_resumed: bool
    """Whether there must be a checkpoint somewhere to continue from."""
    ssh_config: Path | None = None
    is_data_sent: bool = False
    port: int | None = None
    """Where the first host listens for the others; None for any free one."""


@dataclass(frozen=True)
class ReadyHost:
    """A host that can start workers now."""

    connection: Connection
    num_workers: int
    num_cores: int
    address: str
    """Where its peers reach it."""
    interface: str
    """The network interface that has this address."""
    shares_run_folder: bool

    @property
    def name(self) -> str:
        """As it was given."""
        return self.connection.host.name

    @property
    def label(self) -> str:
        """A name to tell it by, also where it is this machine and was not named."""
        return socket.gethostname() if self.connection.host.is_this_machine else self.name


class Muster:
    """The connections of a run to its hosts, kept from attempt to attempt."""

    def __init__(self, wishes: Wishes, pulse: Pulse, show: Callable[[str, str], None], say: Callable[[str], None]):
        self._wishes = wishes
        self._pulse = pulse
        self._show = show
        self._say = say
        self._connections: dict[Host, Connection] = {}

    def call(self, hosts: Sequence[Host]) -> tuple[list[ReadyHost], dict[Host, str]]:
        """Those of the hosts that can work together, in the order given, and why the others cannot."""
        problems: dict[Host, str] = {}
        while True:
            try:
                return self._call([host for host in hosts if host not in problems], problems), problems
            except HostError as error:  # it left in the middle of the checks
                problems[error.host] = str(error)
                self.drop(error.host)

    def _call(self, hosts: Sequence[Host], problems: dict[Host, str]) -> list[ReadyHost]:
        facts = self._in_parallel(hosts, self._check, problems)
        present = [host for host in hosts if host in facts]
        addresses = self._find_addresses(present, problems) if len(present) > 1 else dict.fromkeys(present, LOOPBACK)
        return [self._settle(host, facts[host], address) for host, address in addresses.items()]

    def _settle(self, host: Host, facts: Facts, address: str) -> ReadyHost:
        """Ends the checks of a host, which now gets ready to start workers."""
        connection = self._connections[host]
        interface = connection.ask({"do": "settle", "address": address}, "settled")["interface"]
        num_workers = host.num_workers or max(1, facts.num_gpus)
        return ReadyHost(connection, num_workers, facts.num_cores, address, interface, facts.shares_run_folder)

    def drop(self, host: Host) -> None:
        """Ends a connection: a host that does not answer, or whose workers cannot be ended otherwise."""
        if connection := self._connections.pop(host, None):
            self._pulse.forget(connection)
            connection.close(timeout=1.0)

    def close(self) -> None:
        """Ends all connections, and with them everything that runs on the hosts."""
        for connection in self._connections.values():
            self._pulse.forget(connection)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Connection.close, self._connections.values()))
        self._connections.clear()

    def _in_parallel(
        self, hosts: Sequence[Host], ask: Callable[[Host], Facts], problems: dict[Host, str]
    ) -> dict[Host, Facts]:
        """What each host answers; one that fails is a problem of its own."""

        def attempt(host: Host) -> Facts | UserError:
            try:
                return ask(host)
            except UserError as error:
                return error

        with ThreadPoolExecutor(max_workers=32) as pool:
            answers = dict(zip(hosts, pool.map(attempt, hosts), strict=True))
        for host, answer in answers.items():
            if isinstance(answer, UserError):
                problems[host] = str(answer)
                self.drop(host)
        return {host: answer for host, answer in answers.items() if not isinstance(answer, UserError)}

    def _check(self, host: Host) -> Facts:
        """Connects where needed, and sees that the host would train the same as this machine."""
        wishes = self._wishes
        if host not in self._connections:
            connection = Connection(host, wishes.ssh_config, self._show, wishes.host_timeout)
            self._connections[host] = connection
            self._pulse.watch(connection)
        connection = self._connections[host]
        with _token(wishes.run) as token:
            here = gather_facts(wishes.run, wishes.prepared, token)
            if host.is_this_machine:
                return here
            there = self._ask_facts(connection, token)
        expected = Expected(here, wishes.prepared, wishes.run.path, wishes.kept_bytes, wishes.is_resumed)
        problems = list(problems_of(there, expected))
        if not problems and is_data_missing(there):
            if wishes.is_data_sent:
                self._say(f"Copying {wishes.prepared} to {host.name}.")
                send_folder(connection, wishes.prepared, wishes.ssh_config)
            else:
                problems.append(missing_data_problem(there, expected))
        if problems:
            raise UserError(" ".join(problems))
        for warning in warnings_of(there):
            self._say(warning)
        if not there.facts.shares_run_folder:
            self._send_run(connection)
        return there.facts

    def _ask_facts(self, connection: Connection, token: str) -> HostFacts:
        request = {"do": "facts", "run": str(self._wishes.run.path), "prepared": str(self._wishes.prepared)}
        begin = time.time()
        facts = Facts(**connection.ask(request | {"token": token}, "facts"))
        # The host looked at its clock somewhere between; starting its interpreter makes the first answer a late one,
        # so only what lies outside the whole exchange counts as skew.
        end = time.time()
        skew = max(0.0, facts.time - end) - max(0.0, begin - facts.time)
        return HostFacts(connection.host.name, facts, skew)

    def _send_run(self, connection: Connection) -> None:
        """Where a host does not see our run folder it gets the settings into one of its own."""
        run = self._wishes.run
        files = {run.config.name: run.config.read_text(encoding="utf-8")}
        connection.ask({"do": "write", "run": str(run.path), "files": files}, "written")

    def _find_addresses(self, hosts: Sequence[Host], problems: dict[Host, str]) -> dict[Host, str]:
        """The hosts that all reach each other, and the address each is reached at; earlier ones have precedence."""
        secret = secrets.token_hex(16)
        listening = {}
        for host in hosts:
            port = (self._wishes.port or 0) if host is hosts[0] else 0
            request = {"do": "listen", "secret": secret + host.name, "port": port}
            listening[host] = self._connections[host].ask(request, "listening") | {"secret": secret + host.name}
        reached = {host: self._try_peers(host, listening) for host in hosts}
        together: list[Host] = []
        for host in hosts:
            apart = [other for other in together if host.name not in reached[other] or other.name not in reached[host]]
            if apart:
                problems[host] = _describe_separation(host, apart, listening[host])
            else:
                together.append(host)
        return {
            host: next((reached[other][host.name] for other in together if other is not host), LOOPBACK)
            for host in together
        }

    def _try_peers(self, host: Host, listening: dict[Host, Message]) -> dict[str, str]:
        """At which address this host reaches each of the others it can reach."""
        peers = {other.name: peer for other, peer in listening.items() if other is not host}
        answer: dict[str, str] = self._connections[host].ask({"do": "reach", "peers": peers}, "reached", timeout=120)
        return answer


def require_room(hosts: Sequence[ReadyHost], num_virtual_workers: int) -> None:
    """Refuses more workers than there are shares of a batch."""
    num_workers = sum(host.num_workers for host in hosts)
    if num_workers > num_virtual_workers:
        raise UsageError(
            f"{num_workers} workers cannot share {num_virtual_workers} virtual workers: "
            "give fewer to the hosts or raise training.virtual_workers."
        )


def _describe_separation(host: Host, apart: Sequence[Host], listening: Message) -> str:
    return (
        f"{host.name} ({', '.join(listening['addresses'])}; port {listening['port']}) and "
        f"{', '.join(other.name for other in apart)} do not reach each other at any address: "
        "a firewall may be in between, or they are in different networks."
    )


@contextlib.contextmanager
def _token(run: RunFolder) -> Iterator[str]:
    """A file in the run folder for the time of a check: a host that sees it shares the folder.

    On a full disk there is none, and the folder itself has to do.
    """
    name = f".seen-{secrets.token_hex(8)}"
    try:
        (run.path / name).touch()
    except OSError:
        name = ""
    try:
        yield name
    finally:
        if name:
            (run.path / name).unlink(missing_ok=True)


LOOK_SECONDS = 5.0
FAILED_RETURN_SECONDS = 60.0
"""A host that came back and could not be used is left alone for so long, and longer each time: taking it back costs
the others a restart."""
SETTLED_SECONDS = 600.0
"""One that was lost again after so long had really come back."""


@dataclass
class _Absence:
    reason: str
    num_failed_returns: int = 0
    look_after: float = 0.0
    is_back: bool = False
    returned_at: float = 0.0


@dataclass
class LostHosts:
    """Who is missing, and who could come back."""

    wishes: Wishes
    _absent: dict[Host, _Absence] = field(default_factory=dict)
    _returned: dict[Host, _Absence] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def __contains__(self, host: Host) -> bool:
        return host in self._absent

    def add(self, host: Host, reason: str) -> None:
        """From now on a host is missing; one that had just come back is trusted less."""
        before = self._returned.pop(host, None)
        is_vain = before is not None and time.monotonic() - before.returned_at < SETTLED_SECONDS
        num_failed = before.num_failed_returns + 1 if before and is_vain else 0
        self._absent[host] = _Absence(reason, num_failed, time.monotonic() + num_failed * FAILED_RETURN_SECONDS)

    @property
    def is_somebody_back(self) -> bool:
        """Whether another attempt would have more hosts."""
        return any(absence.is_back for absence in list(self._absent.values()))

    def welcome_back(self) -> None:
        """Those that are back are no longer missing."""
        for host, absence in list(self._absent.items()):
            if absence.is_back:
                absence.returned_at = time.monotonic()
                self._returned[host] = self._absent.pop(host)

    def close(self) -> None:
        """Looks no more."""
        self._is_over.set()

    def _look(self) -> None:
        """Tries each missing host from time to time: reached over ssh, and fit for the run."""
        while not self._is_over.wait(LOOK_SECONDS):
            for host, absence in list(self._absent.items()):
                if not absence.is_back and time.monotonic() > absence.look_after and not self._is_over.is_set():
                    absence.is_back = self._can_be_used(host)

    def _can_be_used(self, host: Host) -> bool:
        # Connections of its own, quiet ones: errors of ssh are what is expected here.
        pulse = Pulse()
        muster = Muster(self.wishes, pulse, lambda _host, _line: None, lambda _text: None)
        try:
            found, _ = muster.call([host])
        finally:
            muster.close()
            pulse.stop()
        return bool(found)
