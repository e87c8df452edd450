"""Connecting to the hosts of a run, checking that they can work together, and looking for hosts that were lost."""

import contextlib
import math
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dragoman.cluster.addresses import LOOPBACK, format_ports
from dragoman.cluster.link_test import LinkResult
from dragoman.launch.connection import (
    CONNECT_SECONDS,
    Connection,
    EarlyProgram,
    HostError,
    Keepalive,
    Message,
    StopRequestedError,
    ports_to_json,
    ssh_command,
)
from dragoman.launch.hosts import Host, HostFacts, LaunchPlan, clock_warning, gather_facts, host_problems
from dragoman.launch.link_report import explain_separation, find_loss
from dragoman.run.checkpoints import START_FOLDER, newest_complete_checkpoint
from dragoman.run.errors import UsageError, UserError, describe_os_error
from dragoman.run.folder import RunFolder, checkpoint_step

LOOK_SECONDS = 1.0
"""Time between two searches for a lost host."""
LOOK_CONNECT_SECONDS = 2
FAILED_RETURN_SECONDS = (0.0, 0.0, 20.0, 60.0)
"""Seconds to leave out a host, by how often it returned and was lost again: each return costs the others a restart."""
SETTLED_SECONDS = 600.0
"""A host that stayed this long after its return does not count as lost again."""
PORTS_PER_WORKER = 2
"""A worker listens for all other workers, and for a while also for those of its machine."""
SPARE_PORTS, SPARE_PORTS_PER_WORKER = 4, 3
"""What a range must have: gloo cannot use all of it."""
ANSWER_SECONDS = 60.0
REACH_SECONDS = 60.0
"""Longer than the test of a link that is broken in every way."""
UNDO_SECONDS = 2.0
_NO_RSYNC = re.compile(r"rsync: (command )?not found|(command not found|unknown command): *rsync", re.IGNORECASE)
"""What shells say where a host has no rsync."""
_WORDS_OF_COPYING = re.compile(r"\b(rsync|scp|ssh)\b.*: ")
_CONSEQUENCE = re.compile(r"^rsync.*(unexpectedly closed|\(code \d+\) at )")
COPY_POLL_SECONDS = 0.2


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
    newest_step: int | None = None
    """The step of the newest checkpoint in its run folder."""

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

    def __init__(
        self,
        plan: LaunchPlan,
        show: Callable[[str, str], None],
        say: Callable[[str], None],
        is_stopping: Callable[[], bool] = lambda: False,
        connect_seconds: int = CONNECT_SECONDS,
        early_program: EarlyProgram | None = None,
    ) -> None:
        """`is_stopping` is asked during every wait; when it is true, the wait ends with a StopRequestedError."""
        self._plan = plan
        self._show = show
        self._say = say
        self._is_stopping = is_stopping
        self._connect_seconds = connect_seconds
        self._early_program = early_program
        self._keepalive = Keepalive()
        self._connections: dict[Host, Connection] = {}
        self._has_start_weights: set[Host] = set()
        self._over_at: dict[Host, float] = {}
        """When the program of a dropped connection has ended at the latest, as time.monotonic()."""

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
            self._over_at[host] = connection.last_heard + self._plan.host_timeout
            connection.close(timeout=1.0)

    def seconds_until_over(self, host: Host) -> float:
        """Returns how long the program of a dropped connection may still work; 0 where it is known to have ended."""
        return max(0.0, self._over_at.get(host, 0.0) - time.monotonic())

    def release(self, host: Host) -> Connection | None:
        """Gives a connection to somebody else, who keeps it alive from now on."""
        if connection := self._connections.pop(host, None):
            self._keepalive.remove(connection)
        return connection

    def adopt(self, connection: Connection) -> None:
        """Takes over a connection, ready to be used in the next call."""
        self.drop(connection.host)
        self._connections[connection.host] = connection
        self._keepalive.add(connection)

    def undo(self) -> None:
        """Removes what was made on the hosts for a run that did not begin.

        A host that is still busy or does not answer does this when it misses its launcher.
        """

        def undo(host: Host) -> None:
            try:
                self._connections[host].ask({"do": "undo"}, "undone", UNDO_SECONDS)
            except UserError:
                self.drop(host)

        with ThreadPoolExecutor(max_workers=32) as pool:
            list(pool.map(undo, list(self._connections)))

    def _ask(self, host: Host, request: Message, answer: str, timeout: float = 60.0) -> Any:
        return self._connections[host].ask(request, answer, timeout, self._is_stopping)

    def _call(self, hosts: Sequence[Host], problems: dict[Host, str]) -> list[ReadyHost]:
        """Checks what takes no time before anything is copied to a host."""
        facts = self._check_all(hosts, problems)
        present = [host for host in hosts if host in facts]
        numbers = {host: host.num_workers or max(1, facts[host].num_gpus) for host in present}
        require_enough_virtual_workers(sum(numbers.values()), self._plan.max_workers)
        require_enough_ports(numbers, self._plan.ports)
        addresses = self._find_addresses(numbers, problems) if len(present) > 1 else dict.fromkeys(present, LOOPBACK)
        self._supply([host for host in addresses if not host.is_this_machine], facts)
        return [self._get_ready(host, facts[host], numbers[host], address) for host, address in addresses.items()]

    def _get_ready(self, host: Host, facts: HostFacts, num_workers: int, address: str) -> ReadyHost:
        ready = self._ask(host, {"do": "get_ready", "address": address}, "ready")
        return ReadyHost(
            self._connections[host],
            num_workers,
            facts.num_cores,
            address,
            ready["interface"],
            facts.shares_run_folder,
            facts.newest_step,
        )

    def _check_all(self, hosts: Sequence[Host], problems: dict[Host, str]) -> dict[Host, HostFacts]:
        """Checks all hosts at the same time; adds the problems of those that fail."""

        def check(host: Host) -> HostFacts | UserError:
            try:
                return self._check(host)
            except UserError as error:
                return error
            except OSError as error:  # of this machine, perhaps only for a while
                return UserError(f"{host.name} could not be checked: {describe_os_error(error)}.")

        with ThreadPoolExecutor(max_workers=32) as pool:
            answers = dict(zip(hosts, pool.map(check, hosts), strict=True))
        for host, answer in answers.items():
            if isinstance(answer, UserError):
                problems[host] = str(answer)
                self.drop(host)
        return {host: answer for host, answer in answers.items() if not isinstance(answer, UserError)}

    def _check(self, host: Host) -> HostFacts:
        """Connects to a host if needed, checks that it would train the same as this machine, and claims its folder."""
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
        claim = {"do": "claim", "run": str(plan.run.path), "is_shared": there.shares_run_folder}
        holder = {"holder": f"launched from {here.hostname}", "seconds": plan.host_timeout}
        self._ask(host, claim | holder, "claimed", timeout=plan.host_timeout + ANSWER_SECONDS)
        return there

    def _supply(self, hosts: Sequence[Host], facts: Mapping[Host, HostFacts]) -> None:
        """Sends each host what it lacks: the data, and the settings of the run if it does not see our folder."""
        for host in hosts:
            if facts[host].data is None and not self._send(self._plan.prepared, host, str(self._plan.prepared)):
                raise HostError(
                    host,
                    f"{host.name} has a folder {self._plan.prepared} that is no complete prepared corpus: remove it "
                    "there and use --send-data.",
                )
            if not facts[host].shares_run_folder:
                self._send_config(host)
        if hosts and not any(each.shares_run_folder for each in facts.values()):
            newest_steps = [each.newest_step for each in facts.values() if each.newest_step is not None]
            self._send_checkpoint(hosts[0], max(newest_steps, default=0))
            if not newest_steps:
                self._send_start_weights(hosts[0])

    def _send_start_weights(self, host: Host) -> None:
        """Sends the weights that the run starts from, if those are of another run and nothing is trained yet."""
        folder = self._plan.run.path / START_FOLDER
        if folder.is_dir() and not self._plan.is_resumed and host not in self._has_start_weights:
            self._send(folder, host, "the weights to start from")
            self._has_start_weights.add(host)

    def _send_checkpoint(self, host: Host, newest_step: int) -> None:
        """Sends our newest checkpoint if the hosts have none that is newer, because they are others than before."""
        run = self._plan.run
        if max(run.checkpoint_steps(), default=0) > newest_step:
            checkpoint = newest_complete_checkpoint(run, self._say)
            if checkpoint is not None and (step := checkpoint_step(checkpoint)) > newest_step:
                self._send(checkpoint, host, f"the checkpoint of step {step}")

    def _send(self, folder: Path, host: Host, name: str) -> bool:
        """Sends a folder; returns False where the host has one of that name already."""
        self._say(f"Copying {name} to {host.name}.")
        return send_folder(self._connections[host], folder, self._plan.placement.ssh_config, self._is_stopping)

    def _connect(self, host: Host) -> Connection:
        if host not in self._connections:
            plan = self._plan
            ssh_config = plan.placement.ssh_config
            here = self._early_program.take() if self._early_program and host.is_this_machine else None
            connection = Connection(host, ssh_config, self._show, plan.host_timeout, self._connect_seconds, here)
            self._connections[host] = connection
            self._keepalive.add(connection)
        return self._connections[host]

    def _ask_facts(self, connection: Connection, token: str, here: HostFacts) -> tuple[HostFacts, float]:
        """Returns the facts of a host and the seconds its clock is ahead of ours."""
        request = {"do": "facts", "run": str(self._plan.run.path), "prepared": str(self._plan.prepared)}
        begin = time.time()
        answer = connection.ask(request | {"token": token}, "facts", is_stopping=self._is_stopping)
        # The host read its clock at some moment in between. Starting its interpreter may delay the answer, so only a
        # time outside the whole exchange counts as skew.
        end = time.time()
        facts = HostFacts.from_json(connection.host.name, answer, here)
        return facts, max(0.0, facts.time - end) - max(0.0, begin - facts.time)

    def _send_config(self, host: Host) -> None:
        """Writes the settings into the host's own run folder, since it does not see ours."""
        run = self._plan.run
        files = {run.config.name: run.config.read_text(encoding="utf-8")}
        self._ask(host, {"do": "write", "run": str(run.path), "files": files}, "written")

    def _find_addresses(self, numbers: Mapping[Host, int], problems: dict[Host, str]) -> dict[Host, str]:
        """Returns the address of each host that works with all others; earlier hosts have precedence."""
        results = self._test_links(numbers)
        for warning in find_loss(results):
            self._say(warning)
        together: list[Host] = []
        for host in numbers:
            apart = [
                other.name
                for other in together
                if not (results[other.name][host.name].has_passed and results[host.name][other.name].has_passed)
            ]
            if apart:
                problems[host] = explain_separation(host.name, apart, results, self._plan.ports)
            else:
                together.append(host)
        others = {host: next((other for other in together if other is not host), None) for host in together}
        return {
            host: results[other.name][host.name].addresses[0] if other else LOOPBACK for host, other in others.items()
        }

    def _test_links(self, numbers: Mapping[Host, int]) -> dict[str, dict[str, LinkResult]]:
        """Lets every host send data to every other one, at the ports that the run will use."""
        secret, ports = secrets.token_hex(16), ports_to_json(self._plan.ports)
        listening = {}
        for host, num_workers in numbers.items():
            own = {"secret": secret + host.name}  # docker's bridge has the same address on every machine
            request = {"do": "listen", "ports": ports, "num_ports": num_ports(num_workers)} | own
            listening[host] = self._ask(host, request, "listening") | own

        def try_peers(host: Host) -> dict[str, LinkResult]:
            peers = {other.name: peer for other, peer in listening.items() if other is not host}
            answer = self._ask(host, {"do": "reach", "peers": peers}, "reached", REACH_SECONDS)
            return {name: LinkResult(**result) for name, result in answer.items()}

        with ThreadPoolExecutor(max_workers=32) as pool:
            return dict(zip((host.name for host in numbers), pool.map(try_peers, numbers), strict=True))


def send_folder(
    connection: Connection, folder: Path, ssh_config: Path | None, is_stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Copies a folder to the same path on the host; returns False, and copies nothing, where there is one already.

    With rsync, which continues an interrupted copy; with scp where this machine or the host has no rsync.
    """
    folder = folder.absolute()
    partial = folder.with_name(f".{folder.name}.partial")
    names = {"path": str(partial), "as": str(folder)}
    if not connection.ask({"do": "make_folder"} | names, "made", is_stopping=is_stopping):
        return False
    target = f"{connection.host.copy_name}:{partial}/"
    config = ["-F", str(ssh_config)] if ssh_config else []
    # --protect-args: no shell on the other side interprets the path.
    options = ["--archive", "--partial", "--protect-args", "-e", shlex.join(ssh_command(ssh_config))]
    rsync = ["rsync", *options, "--", f"{folder}/", target]
    files = [str(path) for path in sorted(folder.iterdir())]
    scp = ["scp", "-q", "-r", "-p", *config, "-o", "BatchMode=yes", "--", *files, target]
    code, errors = _run_until_stopped(rsync if shutil.which("rsync") else scp, is_stopping)
    if code and _NO_RSYNC.search(errors):
        code, errors = _run_until_stopped(scp, is_stopping)
    if code:
        reason = _first_reason(errors) or f"the copy ended with code {code}"
        raise HostError(connection.host, f"The data could not be copied to {connection.host.name}: {reason}")
    connection.ask({"do": "rename_folder"} | names, "renamed", is_stopping=is_stopping)
    return True


def _first_reason(errors: str) -> str | None:
    """Returns what a copying program said about its failure, not what it said because of it, nor a login message."""
    lines = [line for line in errors.strip().splitlines() if not _CONSEQUENCE.search(line)]
    own = [line for line in lines if _WORDS_OF_COPYING.search(line)]
    return next(iter(own or lines[-1:]), None)


def _run_until_stopped(command: Sequence[str], is_stopping: Callable[[], bool]) -> tuple[int, str]:
    """Returns exit code and errors of a command; ends it at a stop request."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        while True:
            try:
                _, errors = process.communicate(timeout=COPY_POLL_SECONDS)
                return process.returncode, errors
            except subprocess.TimeoutExpired:
                if is_stopping():
                    process.terminate()
                    raise StopRequestedError from None


def require_enough_virtual_workers(num_workers: int, num_virtual_workers: int) -> None:
    """Refuses more workers than virtual workers: some would have no share of the batch."""
    if num_workers > num_virtual_workers:
        raise UsageError(
            f"{num_workers} workers cannot share {num_virtual_workers} virtual workers: "
            "give the hosts fewer workers or raise training.virtual_workers."
        )


def num_ports(num_workers: int) -> int:
    """Returns how many ports a host with so many workers listens at; the first host has one more, for the store."""
    return 1 + PORTS_PER_WORKER * num_workers


def require_enough_ports(numbers: Mapping[Host, int], ports: range | None) -> None:
    """Refuses a range of ports that is too small for the workers of a host."""
    host, num_workers = max(numbers.items(), key=lambda item: item[1], default=(None, 0))
    needed = SPARE_PORTS + SPARE_PORTS_PER_WORKER * num_workers
    if ports is not None and host is not None and len(numbers) > 1 and len(ports) < needed:
        raise UsageError(
            f"cluster.port ({format_ports(ports)}) has {len(ports)} ports, but {num_workers} workers on {host.name} "
            f"need {needed}: {SPARE_PORTS}, and {SPARE_PORTS_PER_WORKER} for each worker."
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
    """Looks for lost hosts in the background; one that answers is connected and checked, ready for the next attempt."""

    def __init__(self, plan: LaunchPlan, connections: HostConnections) -> None:
        self._plan = plan
        self._connections = connections
        self._lock = threading.Lock()
        self._lost: set[Host] = set()
        self._found: set[Host] = set()
        """Lost hosts that can be used again."""
        self._returned_at: dict[Host, float] = {}
        self._num_failed_returns: dict[Host, int] = {}
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __contains__(self, host: Host) -> bool:
        return host in self._lost

    def add(self, host: Host) -> None:
        """Adds a lost host; one that had just returned is left out for longer each time."""
        now = time.monotonic()
        is_failed_return = now - self._returned_at.pop(host, -math.inf) < SETTLED_SECONDS
        num_failed = self._num_failed_returns.get(host, 0) + 1 if is_failed_return else 0
        self._num_failed_returns[host] = num_failed
        pause = FAILED_RETURN_SECONDS[min(num_failed, len(FAILED_RETURN_SECONDS) - 1)]
        self._lost.add(host)
        # A thread for each host: a look at one that is switched off takes seconds.
        thread = threading.Thread(target=self._look_for, args=(host, pause), daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    @property
    def is_any_back(self) -> bool:
        """Whether another attempt would have more hosts."""
        return bool(self._found)

    def take_back(self) -> list[Host]:
        """Removes and returns the hosts that can be used again."""
        with self._lock:
            found, self._found = self._found, set()
        for host in found:
            self._returned_at[host] = time.monotonic()
            self._lost.discard(host)
        return list(found)

    def close(self) -> None:
        """Stops looking, and waits until no look is under way."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _look_for(self, host: Host, pause: float) -> None:
        """Tries a host from time to time until it answers."""
        if self._is_over.wait(pause):
            return
        while not self._is_over.is_set():
            if (connection := self._try(host)) is not None:
                self._connections.adopt(connection)
                with self._lock:
                    self._found.add(host)
                return
            self._is_over.wait(LOOK_SECONDS)

    def _try(self, host: Host) -> Connection | None:
        """Connects without output: errors of ssh are expected. Lets the host import torch before others wait for it."""
        silent = HostConnections(
            self._plan, lambda *_: None, lambda _text: None, self._is_over.is_set, LOOK_CONNECT_SECONDS
        )
        with silent as connections:
            try:
                found, _ = connections.call([host])
            except (StopRequestedError, UserError):
                return None
            return connections.release(host) if found else None
