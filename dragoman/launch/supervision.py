"""A run from its start to its end, over as many attempts as that takes. One mind decides, here, and needs no torch.

Workers that are killed, hang or lose each other are started again from the newest checkpoint; a host that is lost is
left out, the others share its virtual workers, and it is taken back when it returns. What would fail again is told.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Self

from dragoman.cluster.environment import CAUSE_VARIABLE, RESUMED_VARIABLE
from dragoman.launch.attempt import CONSOLE_VARIABLE, Attempt, Outcome, Wish, threads_per_worker
from dragoman.launch.call_hosts import LostHosts, Muster, ReadyHost, Wishes, require_room
from dragoman.launch.connection import HostError, Pulse
from dragoman.launch.hosts import Host
from dragoman.run.errors import UserError
from dragoman.run.status import HostStatus, StatusFile, clear_stop_request, is_stop_requested

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LONGEST_PAUSE_SECONDS = 60.0
LOOK_SECONDS = 1.0
SIGNAL = "signal"
"""Why workers say they ended when they were asked to."""
HOST_BACK = "host_back"
"""And when they were asked to make room for another host."""


@dataclass(frozen=True)
class Plan:
    """What to run, and with how much patience."""

    module: str
    hosts: tuple[Host, ...]
    min_hosts: int
    max_workers: int
    hang_timeout: float
    max_restarts: int
    """In a row, without a step that had not been reached before."""
    wishes: Wishes


def supervise(plan: Plan, status: StatusFile, say: Callable[[str], None]) -> str:
    """Runs the workers to the end of the run and says why they ended, in `StopReason`'s words; a UserError if badly."""
    clear_stop_request(plan.wishes.run)
    pulse = Pulse()
    with StopSignals() as signals:
        supervisor = _Supervisor(plan, status, say, pulse, signals)
        try:
            return supervisor.run()
        finally:
            supervisor.close()
            pulse.stop()


class StopSignals:
    """While active, counts stop signals instead of dying of them."""

    def __init__(self) -> None:
        self.num_received = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.num_received += 1
        note = "Stopping after this step; once more to stop at once." if self.num_received == 1 else "Stopping at once."
        print(f"\n{note}", file=sys.stderr, flush=True)


class _Supervisor:
    def __init__(
        self, plan: Plan, status: StatusFile, say: Callable[[str], None], pulse: Pulse, signals: StopSignals
    ) -> None:
        self._plan = plan
        self._status = status
        self._say = say
        self._signals = signals
        self._muster = Muster(plan.wishes, pulse, _show, say)
        self._lost = LostHosts(plan.wishes)
        self._is_stop_asked = False
        self._last_look = 0.0
        self._farthest_step = 0
        self._num_restarts = self._num_in_vain = 0

    def close(self) -> None:
        """Ends everything on all hosts."""
        self._lost.close()
        self._muster.close()

    def run(self) -> str:
        """Attempt after attempt; returns why the last one ended."""
        hosts = self._gather_first()
        cause: str | None = None
        while True:
            outcome = self._attempt(hosts, cause)
            if self._wants_end:
                return self._on_stop(outcome)
            if outcome.cause is None and outcome.reason != HOST_BACK:
                return outcome.reason
            cause = self._after(outcome)
            if (gathered := self._gather_again()) is None:
                clear_stop_request(self._plan.wishes.run)
                return SIGNAL
            hosts = gathered

    def _attempt(self, hosts: Sequence[ReadyHost], cause: str | None) -> Outcome:
        try:
            port = self._plan.wishes.port or hosts[0].connection.ask({"do": "port"}, "port")
        except HostError as error:
            return Outcome(str(error), lost=(error.host,))
        self._announce(hosts)
        self._status.update(
            state="running",
            num_workers=sum(host.num_workers for host in hosts),
            hosts=self._host_states(hosts),
            num_restarts=self._num_restarts,
            last_restart_cause=cause,
            message=None,
        )
        timeouts = self._plan.hang_timeout, self._plan.wishes.host_timeout
        environment = {CAUSE_VARIABLE: cause or "", RESUMED_VARIABLE: "1" if self._plan.wishes.is_resumed else ""}
        attempt = self._current = Attempt(self._plan.wishes.run, self._plan.module, hosts, timeouts, environment)
        outcome = attempt.follow(port, self._wish)
        if outcome.step:
            self._status.update(step=outcome.step)
        return outcome

    def _wish(self) -> Wish:
        """What the person, or a host that is back, wants now; called all the time, so it also tells how far we are."""
        if self._current.step > self._status.status.step and time.time() - self._status.status.time > LOOK_SECONDS:
            self._status.update(step=self._current.step)
        if self._signals.num_received > 1:
            return Wish.END
        if self._wants_end:
            return Wish.STOP
        return Wish.PAUSE if self._lost.is_somebody_back else Wish.GO_ON

    @property
    def _wants_end(self) -> bool:
        """Whether a signal came, or somebody who sees the run folder has asked."""
        if not self._is_stop_asked and time.monotonic() - self._last_look > LOOK_SECONDS:
            self._last_look = time.monotonic()
            self._is_stop_asked = is_stop_requested(self._plan.wishes.run)
        return self._is_stop_asked or self._signals.num_received > 0

    def _on_stop(self, outcome: Outcome) -> str:
        """The end that was asked for; workers that were only starting had nothing new to save."""
        clear_stop_request(self._plan.wishes.run)
        if outcome.cause is None:
            return outcome.reason
        if outcome.is_final:
            raise UserError(outcome.cause)
        if not (self._plan.wishes.run.checkpoint_steps() or self._farthest_step):
            raise UserError("Stopped before the run had anything to save.")
        return SIGNAL

    def _after(self, outcome: Outcome) -> str:
        """Decides whether another attempt makes sense, says why there is one, and pauses if the last were in vain."""
        cause = outcome.cause or "A host is back."
        if outcome.is_final:
            raise UserError(cause)
        for host in outcome.lost:
            self._muster.drop(host)
            self._lost.add(host, cause)
        self._num_in_vain = 0 if outcome.step > self._farthest_step or outcome.cause is None else self._num_in_vain + 1
        self._farthest_step = max(self._farthest_step, outcome.step)
        if self._num_in_vain > self._plan.max_restarts:
            raise UserError(
                f"{cause} Starting the run again did not get it any further (tried: {self._num_in_vain - 1}); "
                "nothing saved is lost: the same command with --resume continues."
            )
        self._num_restarts += 1
        self._status.update(state="restarting", num_restarts=self._num_restarts, last_restart_cause=cause)
        self._say(f"{cause} Starting again from the newest checkpoint.")
        self._pause(min(LONGEST_PAUSE_SECONDS, 2.0 ** max(0, self._num_in_vain - 2) - 1))
        return cause

    def _gather_first(self) -> list[ReadyHost]:
        """At the start all hosts must be there: a mistyped name must not train on half of the machines."""
        hosts, problems = self._muster.call(self._plan.hosts)
        if problems:
            raise UserError(" ".join(problems.values()))
        require_room(hosts, self._plan.max_workers)
        return hosts

    def _gather_again(self) -> list[ReadyHost] | None:
        """Those that are there, as soon as there are enough of them; None if the run is to end before that."""
        while not self._wants_end:
            self._lost.welcome_back()
            hosts, problems = self._muster.call([host for host in self._plan.hosts if host not in self._lost])
            for host, problem in problems.items():
                self._say(problem)
                self._lost.add(host, problem)
            if len(hosts) >= self._plan.min_hosts:
                return hosts
            message = f"Waiting for hosts: {len(hosts)} of at least {self._plan.min_hosts} are there."
            self._status.update(state="waiting", message=message, hosts=self._host_states(hosts))
            self._say(message)
            while not (self._wants_end or self._lost.is_somebody_back):
                time.sleep(0.1)
        return None

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._wants_end:
            time.sleep(0.1)

    def _announce(self, hosts: Sequence[ReadyHost]) -> None:
        """Who does what; on one machine the workers themselves say it."""
        if self._is_this_machine_alone:
            return
        first_rank = 0
        if not hosts[0].shares_run_folder:
            self._say(f"{hosts[0].name} keeps the files of the run in its own {self._plan.wishes.run.path}.")
        for host in hosts:
            last_rank = first_rank + host.num_workers - 1
            ranks = f"rank {first_rank}" if last_rank == first_rank else f"ranks {first_rank} to {last_rank}"
            self._say(
                f"{host.name}: {ranks}, {threads_per_worker(host)} of {host.num_cores} cores each, "
                f"network {host.interface} ({host.address})."
            )
            first_rank = last_rank + 1

    def _host_states(self, hosts: Sequence[ReadyHost]) -> tuple[HostStatus, ...]:
        if self._is_this_machine_alone:
            return ()
        working = {host.connection.host: host.num_workers for host in hosts}
        return tuple(
            HostStatus(host.name, working.get(host, 0), "working" if host in working else "lost")
            for host in self._plan.hosts
        )

    @property
    def _is_this_machine_alone(self) -> bool:
        return len(self._plan.hosts) == 1 and self._plan.hosts[0].is_this_machine


def _show(host: str, line: str) -> None:
    """What the workers of another machine print."""
    is_json = os.environ.get(CONSOLE_VARIABLE) == "stderr"
    print(f"[{host}] {line}", file=sys.stderr if is_json else sys.stdout, flush=True)
