"""One attempt at a run: workers on all hosts, from their start until all have ended or the attempt must be ended."""

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from dragoman.cluster.addresses import format_ports
from dragoman.cluster.environment import ADDRESS_VARIABLE, PORTS_VARIABLE, threads_per_worker
from dragoman.cluster.failure import Failure, describe_failure, first_cause
from dragoman.cluster.heartbeat import STARTING, Beat
from dragoman.launch.connection import AttemptSpec, HostError, Message, StopRequestedError, WorkersEnd, ports_to_json
from dragoman.launch.host_connections import ReadyHost
from dragoman.launch.hosts import Host, LaunchPlan
from dragoman.run.files import write_text
from dragoman.run.processes import CONSOLE_VARIABLE, waiting_variables

TICK_SECONDS = 0.1
STOP_SECONDS, STOP_STEPS = 5.0, 3
"""How long workers may take to end when asked to: these seconds, and so many of the longest steps."""
REPEAT_SECONDS = 1.0
"""Time between two stop requests to a host: workers that are still starting miss the first."""
END_SECONDS = 10.0
"""How long a host may take to end workers that are killed."""
CAUSE_SECONDS = 2.0
"""How long to wait for failures on other hosts, which may be the cause of the first one reported."""
START_SECONDS = 60.0
"""Extra time without a heartbeat while a worker starts: a busy machine needs long to load torch and its kernels."""
STOPPED_STATES = "TtD"
ENDED_STATES = "ZX"
_STATE_WORDS = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a device", "Z": "is dead"}


def find_hang(beats: Sequence[Beat], timeout_seconds: float) -> Beat | None:
    """Returns the rank that holds up the run because it was silent for too long; None if there is none.

    A rank that waits for others is not to blame, however long it waits: another one may be evaluating or saving. Only
    if all ranks are silent is a waiting one named, since a process may have been stopped while it waited. Ranks that
    have ended are ignored; others may still be saving.
    """
    beats = [beat for beat in beats if beat.process_state not in ENDED_STATES]
    silent = [
        beat for beat in beats if beat.seconds_silent > timeout_seconds + START_SECONDS * (beat.doing == STARTING)
    ]
    suspects = [beat for beat in silent if not beat.is_waiting] or (silent if len(silent) == len(beats) else [])
    return max(suspects, key=_suspicion, default=None)


def _suspicion(beat: Beat) -> tuple[bool, bool, float]:
    return beat.process_state in STOPPED_STATES, not beat.is_waiting, beat.seconds_silent


def describe_hang(beat: Beat, host: str) -> str:
    """Says which rank hangs, since when and in which activity."""
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
    folder: Path, message: str, beats: Sequence[Beat], hosts: Mapping[int, str], stacks: Mapping[int, str], hanging: int
) -> Path:
    """Writes the activity and stacks of every rank, the hanging rank first."""
    lines = [message, ""]
    for beat in sorted(beats, key=lambda beat: (beat.rank != hanging, beat.rank)):
        lines += [
            f"== rank {beat.rank} on {hosts[beat.rank]}, process {beat.pid} "
            f"(state {beat.process_state}), step {beat.step}: {beat.doing}, silent for {beat.seconds_silent:.1f} s",
            stacks.get(beat.rank, "No stack could be read."),
            "",
        ]
    path = folder / f"hang-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    write_text(path, "\n".join(lines))
    return path


class Order(Enum):
    """An order to a running attempt."""

    CONTINUE = "continue"
    PAUSE = "pause"
    """Finish the step, save and end; the run continues at once with more hosts."""
    STOP = "stop"
    """Finish the step, save and end the run."""
    KILL = "kill"
    """End at once."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    cause: str | None = None
    """A message about what went wrong; None if all workers ended well."""
    is_final: bool = False
    """Whether another attempt would fail in the same way."""
    gone: tuple[Host, ...] = ()
    """Hosts without a usable connection any more."""
    silent: tuple[Host, ...] = ()
    """Those of them that do not answer; the connection to the others has ended, and may be made again at once."""
    step: int = 0
    """The last step that any worker began."""
    reason: str = ""
    """Why the workers ended, if they ended well: steps, time, cost, signal, request or host_back."""


@dataclass
class _HostState:
    """The messages of one host during the attempt."""

    host: ReadyHost
    first_rank: int
    beats: list[Beat] = field(default_factory=list)
    stacks: dict[int, str] = field(default_factory=dict)
    end: WorkersEnd | None = None
    closed: str | None = None
    """Why the connection ended, if it did."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.closed is not None


def _describe_loss(lost: Sequence[_HostState]) -> str:
    """Says which hosts are gone, and in which way."""
    closed = [f"The connection to {each.host.name} ended: {each.closed}" for each in lost if each.is_closed]
    silent = ", ".join(each.host.name for each in lost if not each.is_closed)
    return " ".join(closed + ([f"{silent} cannot be reached any more."] if silent else []))


class Attempt:
    """Starts the workers on all hosts and follows them to their end."""

    def __init__(self, plan: LaunchPlan, hosts: Sequence[ReadyHost], environment: dict[str, str]) -> None:
        self._plan = plan
        self._environment = environment
        first_ranks = [sum(host.num_workers for host in hosts[:index]) for index in range(len(hosts))]
        self._hosts = [_HostState(host, first_rank) for host, first_rank in zip(hosts, first_ranks, strict=True)]
        self._last_order = 0.0
        self._stop_begin: float | None = None
        self._step_begin: float | None = None
        self._longest_step = 0.0
        self.step = 0

    def follow(self, next_order: Callable[[], Order]) -> Outcome:
        """Starts the workers and returns when they have ended; calls `next_order` several times a second."""
        try:
            self._start(is_stopping=lambda: next_order() in (Order.STOP, Order.KILL))
        except HostError as error:  # no worker was started
            return Outcome(str(error), gone=(error.host,))
        except StopRequestedError:
            return Outcome("Stopped before the workers started.", gone=(self._hosts[0].host.connection.host,))
        while True:
            time.sleep(TICK_SECONDS)
            self._receive()
            self._give_order(next_order())
            if lost := [each for each in self._hosts if self._is_lost(each)]:
                return self._give_up(_describe_loss(lost))
            ends = [each.end for each in self._hosts if each.end]
            if any(end.failures or end.error for end in ends):
                return self._on_failure()
            if len(ends) == len(self._hosts):
                assert ends[0].end is not None
                return Outcome(step=ends[0].end.step, reason=ends[0].end.reason)
            if self._stop_begin is not None and self._is_stuck():
                return self._give_up("The workers did not end by themselves.")
            if (hanging := find_hang(self._beats(), self._plan.hang_timeout)) is not None:
                return self._on_hang(hanging)

    def _is_stuck(self) -> bool:
        """Whether workers that were asked to stop will not do so soon: they start, or wait for each other in vain."""
        assert self._stop_begin is not None
        patience = STOP_SECONDS + STOP_STEPS * self._longest_step
        if time.monotonic() - self._stop_begin < patience:
            return False
        beats = [beat for beat in self._beats() if beat.process_state not in ENDED_STATES]
        is_starting = any(beat.doing == STARTING for beat in beats)
        return is_starting or all(beat.is_waiting and beat.seconds_silent > patience for beat in beats)

    def _start(self, is_stopping: Callable[[], bool]) -> None:
        """Opens the store on the first host, then starts the workers on all; a HostError if there is no store."""
        attempt_id, secret = secrets.token_hex(8), secrets.token_hex(16)
        first = self._hosts[0].host
        request = {"do": "open_store", "address": first.address, "ports": ports_to_json(self._plan.ports)}
        opened = first.connection.ask(request | {"secret": secret}, "store", is_stopping=is_stopping)
        for index, each in enumerate(self._hosts):
            spec = AttemptSpec(
                attempt_id,
                self._plan.module,
                (str(self._plan.run.path),),
                node_rank=index,
                num_nodes=len(self._hosts),
                first_rank=each.first_rank,
                num_workers=each.host.num_workers,
                store_address=self._hosts[0].host.address,
                store_port=opened["port"],
                secret=secret,
                environment=worker_environment(each.host, self._plan.ports) | self._environment,
            )
            each.host.connection.send({"do": "start", "spec": spec.to_json()})

    def _receive(self) -> None:
        for each in self._hosts:
            while (message := each.host.connection.receive()) is not None:
                self._take(each, message)

    def _take(self, each: _HostState, message: Message) -> None:
        match message:
            case {"beats": beats}:
                each.beats = [Beat(**beat) for beat in beats]
                self._note_step(max((beat.step for beat in each.beats), default=0))
            case {"stacks": stacks}:
                each.stacks = {int(rank): str(text) for rank, text in stacks.items()}
            case {"ended": values}:
                each.end = WorkersEnd.from_json(values)
                self.step = max(self.step, each.end.last_step)
            case {"closed": reason}:
                each.closed = str(reason)

    def _note_step(self, step: int) -> None:
        if step > self.step:
            now = time.monotonic()
            if self._step_begin is not None:
                self._longest_step = max(self._longest_step, now - self._step_begin)
            self.step, self._step_begin = step, now

    def _is_lost(self, each: _HostState) -> bool:
        return each.is_closed or each.host.connection.seconds_silent > self._plan.host_timeout

    def _beats(self) -> list[Beat]:
        """Returns the heartbeats of all ranks; none before every host has reported."""
        beats = [each.beats for each in self._hosts if each.end is None]
        return [beat for of_host in beats for beat in of_host] if all(beats) else []

    def _give_order(self, order: Order) -> None:
        if order is Order.STOP and self._stop_begin is None:
            self._stop_begin = time.monotonic()
        if order is not Order.CONTINUE and time.monotonic() - self._last_order > REPEAT_SECONDS:
            self._last_order = time.monotonic()
            self._send_to_all({"do": order.value})

    def _send_to_all(self, message: Message) -> None:
        for each in self._hosts:
            if each.end is None and not self._is_lost(each):
                each.host.connection.send(message)

    def _on_failure(self) -> Outcome:
        """Waits a moment for failures on other hosts, finds the first cause and ends the attempt."""
        self._wait_for_end(CAUSE_SECONDS)
        ended = [(each.host, each.end) for each in self._hosts if each.end]
        failures = [self._with_host(failure, host) for host, end in ended for failure in end.failures]
        if not failures:
            host, error = next((host, end.error) for host, end in ended if end.error)
            return self._give_up(f"{host.name}: the workers did not find each other ({error}).")
        cause = first_cause(failures)
        return self._give_up(describe_failure(cause), is_final=not cause.is_worth_another_try)

    def _with_host(self, failure: Failure, host: ReadyHost) -> Failure:
        """Adds the host's name; a plain message on the only host needs none."""
        return failure if failure.is_plain and len(self._hosts) == 1 else replace(failure, host=host.label)

    def _on_hang(self, hanging: Beat) -> Outcome:
        """Saves the stacks of all ranks and ends the attempt."""
        beats = self._beats()
        hosts = {beat.rank: each.host.label for each in self._hosts for beat in each.beats}
        message = describe_hang(hanging, hosts[hanging.rank])
        self._send_to_all({"do": "stacks"})
        self._wait_until(lambda each: bool(each.stacks) or self._is_lost(each), END_SECONDS)
        stacks = {rank: text for each in self._hosts for rank, text in each.stacks.items()}
        try:
            report = save_hang_report(self._plan.run.path, message, beats, hosts, stacks, hanging.rank)
            message += f" Its stack is in {report}."
        except OSError as error:
            message += f" Its stack could not be saved: {error.strerror}."
        return self._give_up(message)

    def _give_up(self, cause: str, is_final: bool = False) -> Outcome:
        """Ends the remaining workers; hosts that cannot end theirs count as lost too."""
        self._send_to_all({"do": "kill"})
        self._wait_for_end(END_SECONDS)
        gone = tuple(each.host.connection.host for each in self._hosts if each.end is None)
        silent = tuple(each.host.connection.host for each in self._hosts if each.end is None and not each.is_closed)
        return Outcome(cause, is_final, gone, silent, self.step)

    def _wait_for_end(self, seconds: float) -> None:
        self._wait_until(lambda each: each.end is not None or self._is_lost(each), seconds)

    def _wait_until(self, is_done: Callable[[_HostState], bool], seconds: float) -> None:
        """Receives messages until the condition holds for all hosts, for `seconds` at most."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(map(is_done, self._hosts)):
            time.sleep(TICK_SECONDS)
            self._receive()


def worker_environment(host: ReadyHost, ports: range | None) -> dict[str, str]:
    """Returns the variables for the workers of a host; a person's own values on this machine are used on every host."""
    chosen = {
        ADDRESS_VARIABLE: "" if os.environ.get("GLOO_SOCKET_IFNAME") else host.address,
        PORTS_VARIABLE: format_ports(ports) if ports else "",
        "OMP_NUM_THREADS": str(threads_per_worker(host.num_cores, host.num_workers)),
        # Without them gloo or NCCL may choose an interface that does not reach the other hosts.
        "GLOO_SOCKET_IFNAME": host.interface,
        "NCCL_SOCKET_IFNAME": host.interface,
        CONSOLE_VARIABLE: "",
    }
    return {name: os.environ.get(name, value) for name, value in chosen.items()} | waiting_variables()
