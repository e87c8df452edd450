"""Connecting to the hosts of a run, checking that they can work together, and looking for hosts that were lost."""

import contextlib
import math
import secrets
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dragoman.launch.connection import Connection, HostError, Keepalive, Message, ssh_command
from dragoman.launch.hosts import Host, HostFacts, LaunchPlan, clock_warning, gather_facts, host_problems
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder

LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 5.0
"""Time between two searches for lost hosts."""
FAILED_RETURN_SECONDS = 60.0
"""Seconds to leave out a host that returned and was lost again, multiplied by the number of such returns: each return
costs the other hosts a restart."""
SETTLED_SECONDS = 600.0
"""A host that stayed this long after its return does not count as lost again."""


@dataclass(frozen=True)
class ReadyHost:
    """A host that is connected, checked and can start workers now."""

    connection: Connection
    num_workers: int
    num_cores: int
    address: str
    """The address at which the other hosts reach it."""
    interface: str
    """The network interface that has this address."""
    shares_run_folder: bool

    @property
    def name(self) -> str:
        """The name a person gave it."""
        return self.connection.host.name

    @property
    def label(self) -> str:
        """A name for messages, also for this machine, which a person may not have named."""
        return socket.gethostname() if self.connection.host.is_this_machine else self.name


class HostConnections:
    """The connections of a run to its hosts, kept from attempt to attempt."""

    def __init__(self, plan: LaunchPlan, show: Callable[[str, str], None], say: Callable[[str], None]) -> None:
        self._plan = plan
        self._show = show
        self._say = say
        self._keepalive = Keepalive()
        self._connections: dict[Host, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes all connections, which ends everything that runs on the hosts."""
        self._keepalive.stop()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda connection: connection.close(), self._connections.values()))
        self._connections.clear()

    def call(self, hosts: Sequence[Host]) -> tuple[list[ReadyHost], dict[Host, str]]:
        """Returns the hosts that can work together, in the order given, and why the others cannot."""
        problems: dict[Host, str] = {}
        while True:
            try:
                return self._call([host for host in hosts if host not in problems], problems), problems
            except HostError as error:  # the host was lost during the checks
                problems[error.host] = str(error)
                self.drop(error.host)

    def drop(self, host: Host) -> None:
        """Closes one connection: to a host that does not answer, or whose workers cannot be ended otherwise."""
        if connection := self._connections.pop(host, None):
            self._keepalive.remove(connection)
            connection.close(timeout=1.0)

    def _call(self, hosts: Sequence[Host], problems: dict[Host, str]) -> list[ReadyHost]:
        facts = self._check_all(hosts, problems)
        present = [host for host in hosts if host in facts]
        addresses = self._find_addresses(present, problems) if len(present) > 1 else dict.fromkeys(present, LOOPBACK)
        return [self._get_ready(host, facts[host], address) for host, address in addresses.items()]

    def _get_ready(self, host: Host, facts: HostFacts, address: str) -> ReadyHost:
        connection = self._connections[host]
        interface = connection.ask({"do": "get_ready", "address": address}, "ready")["interface"]
        num_workers = host.num_workers or max(1, facts.num_gpus)
        return ReadyHost(connection, num_workers, facts.num_cores, address, interface, facts.shares_run_folder)

    def _check_all(self, hosts: Sequence[Host], problems: dict[Host, str]) -> dict[Host, HostFacts]:
        """Checks all hosts at the same time; adds the problems of those that fail."""

        def check(host: Host) -> HostFacts | UserError:
            try:
                return self._check(host)
            except UserError as error:
                return error

        with ThreadPoolExecutor(max_workers=32) as pool:
            answers = dict(zip(hosts, pool.map(check, hosts), strict=True))
        for host, answer in answers.items():
            if isinstance(answer, UserError):
                problems[host] = str(answer)
                self.drop(host)
        return {host: answer for host, answer in answers.items() if not isinstance(answer, UserError)}

    def _check(self, host: Host) -> HostFacts:
        """Connects to a host if needed, and checks that it would train the same as this machine."""
        plan = self._plan
        connection = self._connect(host)
        with _token(plan.run) as token:
            here = gather_facts(plan.run, plan.prepared, token)
            if host.is_this_machine:
                return here
            there, clock_skew = self._ask_facts(connection, token, here)
        if problems := list(host_problems(host.name, there, here, plan, clock_skew)):
            raise UserError(" ".join(problems))
        if warning := clock_warning(host.name, clock_skew):
            self._say(warning)
        if there.data is None:
            self._say(f"Copying {plan.prepared} to {host.name}.")
            send_folder(connection, plan.prepared, plan.placement.ssh_config)
        if not there.shares_run_folder:
            self._send_config(connection)
        return there

    def _connect(self, host: Host) -> Connection:
        if host not in self._connections:
            connection = Connection(host, self._plan.placement.ssh_config, self._show, self._plan.host_timeout)
            self._connections[host] = connection
            self._keepalive.add(connection)
        return self._connections[host]

    def _ask_facts(self, connection: Connection, token: str, here: HostFacts) -> tuple[HostFacts, float]:
        """Returns the facts of a host and the seconds its clock is ahead of ours."""
        request = {"do": "facts", "run": str(self._plan.run.path), "prepared": str(self._plan.prepared)}
        begin = time.time()
        answer = connection.ask(request | {"token": token}, "facts")
        # The host read its clock at some moment in between. Starting its interpreter may delay the answer, so only a
        # time outside the whole exchange counts as skew.
        end = time.time()
        facts = HostFacts.from_json(connection.host.name, answer, here)
        return facts, max(0.0, facts.time - end) - max(0.0, begin - facts.time)

    def _send_config(self, connection: Connection) -> None:
        """Writes the settings into the host's own run folder, since it does not see ours."""
        run = self._plan.run
        files = {run.config.name: run.config.read_text(encoding="utf-8")}
        connection.ask({"do": "write", "run": str(run.path), "files": files}, "written")

    def _find_addresses(self, hosts: Sequence[Host], problems: dict[Host, str]) -> dict[Host, str]:
        """Returns the address of each host that reaches all others; earlier hosts have precedence."""
        secret = secrets.token_hex(16)
        listening = {}
        for host in hosts:
            port = (self._plan.port or 0) if host is hosts[0] else 0
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
        """Returns the address at which this host reaches each of the others it can reach."""
        peers = {other.name: peer for other, peer in listening.items() if other is not host}
        answer: dict[str, str] = self._connections[host].ask({"do": "reach", "peers": peers}, "reached", timeout=120)
        return answer


def send_folder(connection: Connection, folder: Path, ssh_config: Path | None) -> None:
    """Copies a folder to the same path on the host: with rsync, which continues an interrupted copy, or with scp."""
    name, folder = connection.host.name, folder.absolute()
    partial = folder.with_name(f".{folder.name}.partial")
    connection.ask({"do": "make_folder", "path": str(partial)}, "made")
    target = f"{name}:{partial}/"
    if shutil.which("rsync"):
        # --protect-args: no shell on the other side interprets the path.
        options = ["--archive", "--partial", "--protect-args", "-e", shlex.join(ssh_command(ssh_config))]
        command = ["rsync", *options, "--", f"{folder}/", target]
    else:
        config = ["-F", str(ssh_config)] if ssh_config else []
        files = [str(path) for path in sorted(folder.iterdir())]
        command = ["scp", "-q", "-r", "-p", *config, "-o", "BatchMode=yes", "--", *files, target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"])[-1]
        raise UserError(f"The data could not be copied to {name}: {reason}")
    connection.ask({"do": "rename_folder", "path": str(partial), "as": str(folder)}, "renamed")


def require_enough_virtual_workers(hosts: Sequence[ReadyHost], num_virtual_workers: int) -> None:
    """Refuses more workers than virtual workers: some would have no share of the batch."""
    num_workers = sum(host.num_workers for host in hosts)
    if num_workers > num_virtual_workers:
        raise UsageError(
            f"{num_workers} workers cannot share {num_virtual_workers} virtual workers: "
            "give the hosts fewer workers or raise training.virtual_workers."
        )


def _describe_separation(host: Host, apart: Sequence[Host], listening: Message) -> str:
    return (
        f"{host.name} ({', '.join(listening['addresses'])}; port {listening['port']}) and "
        f"{', '.join(other.name for other in apart)} do not reach each other at any address: "
        "check for a firewall between them, and that they are in one network."
    )


@contextlib.contextmanager
def _token(run: RunFolder) -> Iterator[str]:
    """Makes a file in the run folder for the time of a check: a host that sees it shares the folder.

    On a full disk the name is empty, and a host that sees the folder itself is taken to share it.
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


class LostHosts:
    """Looks for lost hosts in the background, and knows which of them can be used again."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._look_after: dict[Host, float] = {}
        """When to look for each lost host, as time.monotonic()."""
        self._found: set[Host] = set()
        """Lost hosts that can be used again."""
        self._returned_at: dict[Host, float] = {}
        self._num_failed_returns: dict[Host, int] = {}
        self._is_over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def __contains__(self, host: Host) -> bool:
        return host in self._look_after

    def add(self, host: Host) -> None:
        """Adds a lost host; one that had just returned is left out for longer each time."""
        now = time.monotonic()
        is_failed_return = now - self._returned_at.pop(host, -math.inf) < SETTLED_SECONDS
        num_failed = self._num_failed_returns.get(host, 0) + 1 if is_failed_return else 0
        self._num_failed_returns[host] = num_failed
        self._look_after[host] = now + num_failed * FAILED_RETURN_SECONDS

    @property
    def is_any_back(self) -> bool:
        """Whether another attempt would have more hosts."""
        return bool(self._found)

    def take_back(self) -> None:
        """Removes the hosts that can be used again."""
        while self._found:
            host = self._found.pop()
            self._returned_at[host] = time.monotonic()
            del self._look_after[host]

    def close(self) -> None:
        """Stops looking."""
        self._is_over.set()

    def _look(self) -> None:
        """Tries each lost host from time to time."""
        while not self._is_over.wait(LOOK_SECONDS):
            for host in list(self._look_after):
                look_after = self._look_after.get(host, math.inf)  # it may be in use again by now
                is_due = host not in self._found and time.monotonic() > look_after
                if is_due and not self._is_over.is_set() and self._can_be_used(host):
                    self._found.add(host)

    def _can_be_used(self, host: Host) -> bool:
        """Tries a host over a connection of its own, without output: errors of ssh are expected."""
        with HostConnections(self._plan, lambda _host, _line: None, lambda _text: None) as connections:
            found, _ = connections.call([host])
        return bool(found)
