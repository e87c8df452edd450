"""One attempt at a run: workers on all hosts, from their start until all have ended or one gives cause to end it."""

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from dragoman.cluster.failure import Failure, describe_failure, first_cause
from dragoman.cluster.heartbeat import STARTING, Beat
from dragoman.launch.call_hosts import ReadyHost
from dragoman.launch.connection import AttemptSpec, Message
from dragoman.launch.hosts import Host
from dragoman.run.files import write_text
from dragoman.run.folder import RunFolder

START_SECONDS = 60.0
"""Allowed on top while a worker starts: a busy machine takes its time to load torch and to try its kernels."""
STOPPED_STATES = "TtD"
ENDED_STATES = "ZX"
"""How they ended is their agent's business; others may still be saving."""
_STATE_WORDS = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a device", "Z": "is dead"}


def find_hang(beats: Sequence[Beat], timeout_seconds: float) -> Beat | None:
    """The rank that holds the run up, once it has been silent for too long; None while all is well.

    A rank that waits for others is no culprit, however long it waits: one of the others may be judging or saving.
    Only when all are silent is one of the waiting looked at: a stopped process may have been stopped while it waited.
    """
    beats = [beat for beat in beats if beat.process_state not in ENDED_STATES]
    silent = [
        beat for beat in beats if beat.seconds_silent > timeout_seconds + START_SECONDS * (beat.doing == STARTING)
    ]
    suspects = [beat for beat in silent if not beat.is_waiting] or (silent if len(silent) == len(beats) else [])
    return max(suspects, key=_guilt, default=None)


def _guilt(beat: Beat) -> tuple[bool, bool, float]:
    return beat.process_state in STOPPED_STATES, not beat.is_waiting, beat.seconds_silent


def describe_hang(beat: Beat, host: str) -> str:
    """Who hangs, since when and in what."""
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
    folder: Path, sentence: str, beats: Sequence[Beat], hosts: Mapping[int, str], stacks: Mapping[int, str], guilty: int
) -> Path:
    """Writes what every rank was doing, the guilty one first, with its stack."""
    lines = [sentence, ""]
    for beat in sorted(beats, key=lambda beat: (beat.rank != guilty, beat.rank)):
        lines += [
            f"== rank {beat.rank} on {hosts[beat.rank]}, process {beat.pid} "
            f"(state {beat.process_state}), step {beat.step}: {beat.doing}, silent for {beat.seconds_silent:.1f} s",
            stacks.get(beat.rank, "No stack could be had."),
            "",
        ]
    path = folder / f"hang-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    write_text(path, "\n".join(lines))
    return path


TICK_SECONDS = 0.1
REPEAT_SECONDS = 1.0
"""Between two times a host is asked to stop: workers that are still starting miss the first."""
END_SECONDS = 10.0
"""How long a host may take to end workers that are to be killed."""
CAUSE_SECONDS = 2.0
"""How long to wait for what other hosts say of a failure."""
CONSOLE_VARIABLE = "DRAGOMAN_CONSOLE"
"""Set to "stderr", it keeps workers' lines off standard output, which then is for JSON alone."""


class Wish(Enum):
    """What is wanted of an attempt that goes well."""

    GO_ON = "go on"
    PAUSE = "pause"
    """Finish the step, save and end: the run goes on at once with more hosts."""
    STOP = "stop"
    """The same, for good."""
    END = "end"
    """At once."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    cause: str | None = None
    """A sentence; None where all workers ended well."""
    is_final: bool = False
    """Whether another attempt would end the same way."""
    lost: tuple[Host, ...] = ()
    """Hosts that no longer answer."""
    step: int = 0
    """The last step any worker began."""
    reason: str = ""
    """Why the workers ended, where they ended well: steps, time, cost, signal, request or host_back."""


@dataclass
class _Progress:
    """What has been heard from one host."""

    host: ReadyHost
    first_rank: int
    beats: list[Beat] = field(default_factory=list)
    has_ended: bool = False
    failures: list[Failure] = field(default_factory=list)
    error: str | None = None
    last_beat: Beat | None = None
    closed: str | None = None
    stacks: dict[int, str] = field(default_factory=dict)


class Attempt:
    """Starts the workers and follows them."""

    def __init__(
        self,
        run: RunFolder,
        module: str,
        hosts: Sequence[ReadyHost],
        timeouts: tuple[float, float],
        environment: dict[str, str],
    ) -> None:
        self._run = run
        self._module = module
        self._hang_timeout, self._host_timeout = timeouts
        self._environment = environment
        begins = [sum(host.num_workers for host in hosts[:index]) for index in range(len(hosts))]
        self._hosts = [_Progress(host, begin) for host, begin in zip(hosts, begins, strict=True)]
        self._last_asked = 0.0
        self.step = 0

    def follow(self, port: int, wish: Callable[[], Wish]) -> Outcome:
        """Starts the workers and waits until they have ended; `wish` is asked all the time."""
        self._start(port)
        while True:
            time.sleep(TICK_SECONDS)
            self._listen()
            self._ask_for(wish())
            if lost := [each for each in self._hosts if self._is_lost(each)]:
                return self._give_up(f"{_names(lost)} cannot be reached any more.", lost=lost)
            if failed := [each for each in self._hosts if each.failures or each.error]:
                return self._on_failure(failed)
            if all(each.has_ended for each in self._hosts):
                return self._good_end()
            if (guilty := find_hang(self._beats(), self._hang_timeout)) is not None:
                return self._on_hang(guilty)

    def _start(self, port: int) -> None:
        attempt_id = secrets.token_hex(8)
        first = self._hosts[0].host
        for index, each in enumerate(self._hosts):
            spec = AttemptSpec(
                attempt_id,
                self._module,
                (str(self._run.path),),
                node_rank=index,
                num_nodes=len(self._hosts),
                first_rank=each.first_rank,
                num_workers=each.host.num_workers,
                master_address=first.address,
                master_port=port,
                environment=worker_environment(each.host) | self._environment,
            )
            each.host.connection.send({"do": "start", "spec": spec.to_json()})

    def _listen(self) -> None:
        for each in self._hosts:
            while (message := each.host.connection.receive()) is not None:
                self._hear(each, message)

    def _hear(self, each: _Progress, message: Message) -> None:
        match message:
            case {"beats": beats}:
                each.beats = [Beat(**beat) for beat in beats]
                self.step = max([self.step, *(beat.step for beat in each.beats)])
            case {"stacks": stacks}:
                each.stacks = {int(rank): str(text) for rank, text in stacks.items()}
            case {"ended": {"failures": failures, "last_beat": beat, "error": error}}:
                each.has_ended, each.error = True, error
                each.last_beat = Beat(**beat) if beat else None
                self.step = max(self.step, each.last_beat.step if each.last_beat else 0)
                each.failures = [self._place(Failure(**failure), each.host) for failure in failures]
            case {"closed": reason}:
                each.closed = str(reason)

    def _place(self, failure: Failure, host: ReadyHost) -> Failure:
        """Notes the host, except for a plain sentence that is true of the whole run, where there is only one."""
        return failure if failure.is_plain and len(self._hosts) == 1 else replace(failure, host=host.label)

    def _is_lost(self, each: _Progress) -> bool:
        return each.closed is not None or each.host.connection.seconds_silent > self._host_timeout

    def _beats(self) -> list[Beat]:
        """Of all ranks; of none before every host has told of its own."""
        beats = [each.beats for each in self._hosts if not each.has_ended]
        return [beat for of_host in beats for beat in of_host] if all(beats) else []

    def _ask_for(self, wish: Wish) -> None:
        if wish is not Wish.GO_ON and time.monotonic() - self._last_asked > REPEAT_SECONDS:
            self._last_asked = time.monotonic()
            self._tell_all({"do": "kill" if wish is Wish.END else wish.value})

    def _tell_all(self, message: dict[str, Any]) -> None:
        for each in self._hosts:
            if not each.has_ended and not self._is_lost(each):
                each.host.connection.send(message)

    def _good_end(self) -> Outcome:
        last = self._hosts[0].last_beat
        assert last is not None
        return Outcome(step=last.step, reason=last.doing)

    def _on_failure(self, failed: Sequence[_Progress]) -> Outcome:
        """Waits a moment for what other hosts say: theirs may be the cause, and this one's the echo."""
        self._wait_for_end(CAUSE_SECONDS)
        failures = [failure for each in self._hosts for failure in each.failures]
        if not failures:
            return self._give_up(f"{failed[0].host.name}: the workers did not find each other ({failed[0].error}).")
        cause = first_cause(failures)
        return self._give_up(describe_failure(cause), is_final=not cause.is_worth_another_try)

    def _on_hang(self, guilty: Beat) -> Outcome:
        """Asks all for their stacks, writes them down, and ends the attempt."""
        beats = self._beats()
        hosts = {beat.rank: each.host.label for each in self._hosts for beat in each.beats}
        sentence = describe_hang(guilty, hosts[guilty.rank])
        self._tell_all({"do": "stacks"})
        end = time.monotonic() + END_SECONDS
        while time.monotonic() < end and not all(each.stacks or self._is_lost(each) for each in self._hosts):
            time.sleep(TICK_SECONDS)
            self._listen()
        stacks = {rank: text for each in self._hosts for rank, text in each.stacks.items()}
        try:
            report = save_hang_report(self._run.path, sentence, beats, hosts, stacks, guilty.rank)
            sentence += f" Its stack is in {report}."
        except OSError as error:
            sentence += f" Its stack could not be saved: {error.strerror}."
        return self._give_up(sentence)

    def _give_up(self, cause: str, is_final: bool = False, lost: Sequence[_Progress] = ()) -> Outcome:
        """Ends the workers that are left; hosts that cannot do even that are lost too."""
        self._tell_all({"do": "kill"})
        self._wait_for_end(END_SECONDS)
        # A host that was lost may still have workers: it ends them when it has not heard of us for host_timeout, and
        # until then no other attempt may begin, or two would write the same run.
        gone = [each for each in self._hosts if each in lost or not each.has_ended]
        for each in gone:
            if not each.host.connection.is_program_over:
                time.sleep(max(0.0, self._host_timeout + REPEAT_SECONDS - each.host.connection.seconds_silent))
        return Outcome(cause, is_final, tuple(each.host.connection.host for each in gone), self.step)

    def _wait_for_end(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(each.has_ended or self._is_lost(each) for each in self._hosts):
            time.sleep(TICK_SECONDS)
            self._listen()


def worker_environment(host: ReadyHost) -> dict[str, str]:
    """Variables the workers of a host get; those a person has set here go to every host as they are."""
    chosen = {
        "OMP_NUM_THREADS": str(threads_per_worker(host)),
        # Without them gloo or NCCL may take an interface that does not reach the peers.
        "GLOO_SOCKET_IFNAME": host.interface,
        "NCCL_SOCKET_IFNAME": host.interface,
        CONSOLE_VARIABLE: "",
    }
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def threads_per_worker(host: ReadyHost) -> int:
    """The cores divided among workers; more threads than cores would only get in each other's way."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() else max(1, host.num_cores // host.num_workers)


def _names(hosts: Sequence[_Progress]) -> str:
    return ", ".join(each.host.name for each in hosts)
