"""A run from its start to its end, over as many attempts as needed. All decisions are made here, without torch.

Workers that are killed, hang or lose each other are restarted from the newest checkpoint. A lost host is left out: the
other hosts share its virtual workers, and it rejoins when it returns. An error that would recur ends the run.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Self

from dragoman.cluster.environment import (
    IS_RESTART_RECORDED_VARIABLE,
    LAUNCH_SECONDS_VARIABLE,
    LAUNCH_VARIABLE,
    RESUMED_VARIABLE,
    threads_per_worker,
)
from dragoman.launch.attempt import Attempt, Order, Outcome
from dragoman.launch.connection import EarlyProgram, StopRequestedError
from dragoman.launch.host_connections import HostConnections, LostHosts, ReadyHost
from dragoman.launch.hosts import LaunchPlan
from dragoman.launch.mirror.run_mirror import MirroredHost, RunMirror
from dragoman.launch.terminal import print_message
from dragoman.run.budget import MeasuredSeconds, SpentRecord, read_spent
from dragoman.run.commands import resume_command
from dragoman.run.errors import UserError
from dragoman.run.files import append_line, to_json_line
from dragoman.run.folder import RunFolder
from dragoman.run.processes import CONSOLE_VARIABLE
from dragoman.run.status import HostStatus, StatusFile, clear_stop_request, is_stop_requested, planned_training
from dragoman.run.units import format_duration

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LONGEST_PAUSE_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""Time between two looks for a stop request, between two updates of the step in status.json, and, while no worker runs,
between two writes of spent.json."""
MIRROR_SECONDS = 3.0
"""How long to wait for the last lines of an attempt from another host; they come later otherwise."""
SIGNAL = "signal"
"""Reason of an end that a signal asked for."""
HOST_BACK = "host_back"
"""Reason of an end that lets a host rejoin."""


class StopSignals:
    """While active, counts stop signals instead of ending this process; a lost terminal stays ignored under nohup."""

    def __init__(self) -> None:
        self.num_received = 0

    def __enter__(self) -> Self:
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        wanted = [number for number in STOP_SIGNALS if number != signal.SIGHUP or not is_nohup]
        self._before = {number: signal.signal(number, self._count) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        self.num_received += 1
        is_first = self.num_received == 1
        text = "Stopping after this step; a second signal stops at once." if is_first else "Stopping at once."
        print_message(text)


def supervise(
    plan: LaunchPlan, status: StatusFile, say: Callable[[str], None], early_program: EarlyProgram | None = None
) -> str:
    """Runs the workers to the end of the run and returns the reason, a lower-case name of `StopReason`."""
    clear_stop_request(plan.run)
    with StopSignals() as signals, RunMirror(plan.run, plan.placement.ssh_config, say) as mirror:
        stop = StopRequests(plan.run, signals)
        with HostConnections(plan, _show, say, stop.is_any, early_program=early_program) as connections:
            lost = LostHosts(plan, connections)
            try:
                return _Supervisor(plan, status, say, stop, connections, lost, mirror).run()
            finally:
                lost.close()
                _bring_the_rest(mirror, signals, say)


def _bring_the_rest(mirror: RunMirror, signals: StopSignals, say: Callable[[str], None]) -> None:
    """Brings what hosts without a shared folder still have; a further Ctrl-C leaves it there."""
    num_before = signals.num_received
    for message in mirror.finish(should_stop=lambda: signals.num_received > num_before):
        say(message)


class StopRequests:
    """Whether the run must stop, because a signal came or somebody who sees the run folder asked for it."""

    def __init__(self, run: RunFolder, signals: StopSignals) -> None:
        self._run = run
        self._signals = signals
        self._is_requested = False
        self._last_look = 0.0

    def is_any(self) -> bool:
        """Looks for a request once a second."""
        if not self._is_requested and time.monotonic() - self._last_look > LOOK_SECONDS:
            self._last_look = time.monotonic()
            self._is_requested = is_stop_requested(self._run)
        return self._is_requested or self._signals.num_received > 0

    @property
    def is_at_once(self) -> bool:
        """Whether a second signal came."""
        return self._signals.num_received > 1


class _Supervisor:
    def __init__(
        self,
        plan: LaunchPlan,
        status: StatusFile,
        say: Callable[[str], None],
        stop: StopRequests,
        connections: HostConnections,
        lost: LostHosts,
        mirror: RunMirror,
    ) -> None:
        self._plan = plan
        self._status = status
        self._say = say
        self._stop = stop
        self._connections = connections
        self._lost = lost
        self._mirror = mirror
        self._farthest_step = 0
        self._name = secrets.token_hex(8)
        self._begin = time.monotonic()
        self._num_restarts = self._num_without_progress = 0

    def run(self) -> str:
        """Makes one attempt after another; returns the reason the last one ended."""
        try:
            hosts = self._call_at_start()
        except StopRequestedError:
            return self._on_stop(Outcome("Stopped while hosts were checked."))
        cause: str | None = None
        while True:
            if self._is_budget_too_small():
                return self._end_by_budget()
            outcome = self._attempt(hosts, cause)
            if self._must_stop:
                return self._on_stop(outcome)
            if outcome.cause is None and outcome.reason != HOST_BACK:
                return outcome.reason
            cause = self._prepare_restart(outcome)
            if (called := self._call_again()) is None:
                return self._end_without_workers()
            hosts = called

    def _is_budget_too_small(self) -> bool:
        """Whether starting the workers, one step and the end of the run would exceed the budget, by earlier starts."""
        budget = self._plan.budget
        if self._earlier_record() is None:
            return False  # even the smallest budget brings one step, which shows what a step takes
        spent = self._spent()
        return spent.seconds + spent.measured.to_start_and_end(budget) >= budget.seconds

    def _earlier_record(self) -> SpentRecord | None:
        """Returns what the run had taken when it was written last; a new run in an old folder has taken nothing."""
        record = read_spent(self._plan.run)
        is_of_this_run = record is not None and (self._plan.is_resumed or record.launch == self._name)
        return record if is_of_this_run else None

    def _spent(self) -> SpentRecord:
        """Returns what the run has taken by now."""
        launch_seconds = time.monotonic() - self._begin
        record = self._earlier_record()
        before, measured = (record.seconds_before(self._name), record.measured) if record else (0.0, MeasuredSeconds())
        return SpentRecord(before + launch_seconds, self._name, launch_seconds, measured)

    def _end_without_workers(self) -> str:
        """Ends a run that was asked to stop, or whose budget was used up, while no worker ran."""
        if not self._must_stop:
            return self._end_by_budget()
        clear_stop_request(self._plan.run)
        return SIGNAL

    def _end_by_budget(self) -> str:
        """Reports that the budget does not allow another attempt; returns the reason."""
        budget, spent = self._plan.budget, self._spent()
        spent.write(self._plan.run)
        self._say(
            f"{budget.setting} is used up: {format_duration(spent.seconds)} of {format_duration(budget.seconds)} are "
            "spent, and the rest is too short to start the workers. Everything saved is kept. Continue with: "
            f"{resume_command(self._plan.run.path, planned_training(self._plan.run), spent.seconds)}"
        )
        return budget.reason

    def _attempt(self, hosts: Sequence[ReadyHost], cause: str | None) -> Outcome:
        self._announce(hosts)
        num_workers = sum(host.num_workers for host in hosts)
        self._status.update(
            state="running",
            num_workers=num_workers,
            hosts=self._host_states(hosts),
            num_restarts=self._num_restarts,
            last_restart_cause=cause,
            message=None,
        )
        if cause is not None:
            self._record_restart(hosts, num_workers, cause)
        environment = {
            IS_RESTART_RECORDED_VARIABLE: "1" if cause else "",
            RESUMED_VARIABLE: "1" if self._plan.is_resumed else "",
            LAUNCH_VARIABLE: self._name,
            LAUNCH_SECONDS_VARIABLE: str(time.monotonic() - self._begin),
        }
        self._mirror.begin_attempt([MirroredHost(each.connection.host, each.shares_run_folder) for each in hosts])
        attempt = self._current = Attempt(self._plan, hosts, environment)
        outcome = attempt.follow(self._next_order)
        self._mirror.end_attempt(lost=outcome.gone, timeout=MIRROR_SECONDS)
        if outcome.step:
            self._status.update(step=outcome.step)
        return outcome

    def _record_restart(self, hosts: Sequence[ReadyHost], num_workers: int, cause: str) -> None:
        """Writes the record of a restart. Not left to the workers: they may end again before they could write it."""
        step = max((host.newest_step for host in hosts if host.newest_step is not None), default=0)
        record = {"time": time.time(), "kind": "restart", "step": step, "workers": num_workers, "cause": cause}
        with suppress(OSError):
            append_line(self._plan.run.metrics, to_json_line(record))

    def _next_order(self) -> Order:
        """Returns the order for the attempt; also updates the step in the status, since it is called often."""
        if self._current.step > self._status.status.step and time.time() - self._status.status.time > LOOK_SECONDS:
            self._status.update(step=self._current.step)
        if self._stop.is_at_once:
            return Order.KILL
        if self._must_stop:
            return Order.STOP
        return Order.PAUSE if self._lost.is_any_back else Order.CONTINUE

    @property
    def _must_stop(self) -> bool:
        return self._stop.is_any()

    def _on_stop(self, outcome: Outcome) -> str:
        """Ends the run as requested; workers that were still starting had nothing new to save."""
        clear_stop_request(self._plan.run)
        if outcome.cause is None:
            return outcome.reason
        if outcome.is_final:
            raise UserError(outcome.cause)
        if not (self._plan.is_resumed or self._farthest_step or outcome.step):
            self._connections.undo()
            raise UserError("Stopped before the run had anything to save.")
        return SIGNAL

    def _prepare_restart(self, outcome: Outcome) -> str:
        """Decides whether another attempt makes sense, reports its cause, and waits after attempts without progress."""
        cause = outcome.cause or "A host is back."
        if outcome.is_final:
            raise UserError(cause)
        for host in outcome.gone:
            self._connections.drop(host)
        for host in outcome.silent:
            self._lost.add(host)
        has_progressed = outcome.step > self._farthest_step or outcome.cause is None
        self._num_without_progress = 0 if has_progressed else self._num_without_progress + 1
        self._farthest_step = max(self._farthest_step, outcome.step)
        if self._num_without_progress > self._plan.max_restarts:
            raise UserError(
                f"{cause} {_count_restarts(self._num_without_progress - 1)} made no progress. "
                "Nothing saved is lost. Continue on the same workers or hosts with: "
                f"{resume_command(self._plan.run.path)}"
            )
        self._num_restarts += 1
        self._status.update(state="restarting", num_restarts=self._num_restarts, last_restart_cause=cause)
        self._say(f"{cause} Starting again from the newest checkpoint.")
        self._pause(min(LONGEST_PAUSE_SECONDS, 2.0 ** max(0, self._num_without_progress - 2) - 1))
        return cause

    def _call_at_start(self) -> list[ReadyHost]:
        """Requires all hosts: with a mistyped name, the run would use only some of the machines."""
        try:
            hosts, problems = self._connections.call(self._plan.placement.hosts)
            if problems:
                raise UserError(" ".join(problems.values()))
        except BaseException:
            self._connections.undo()
            raise
        return hosts

    def _call_again(self) -> list[ReadyHost] | None:
        """Returns the hosts that are up as soon as there are enough; None if the run must end before that."""
        placement = self._plan.placement
        while not (self._must_stop or self._is_budget_too_small()):
            for host in self._lost.take_back():
                self._mirror.host_returned(host)
            try:
                hosts, problems = self._connections.call([host for host in placement.hosts if host not in self._lost])
            except StopRequestedError:
                return None
            for host, problem in problems.items():
                self._say(problem)
                self._pause(self._connections.seconds_until_over(host))
                self._lost.add(host)
            if len(hosts) >= placement.min_hosts:
                return hosts
            message = f"Waiting for hosts: {len(hosts)} of at least {placement.min_hosts} are up."
            self._status.update(state="waiting", message=message, hosts=self._host_states(hosts))
            self._say(message)
            self._wait_until(lambda: self._lost.is_any_back)
        return None

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._wait_until(lambda: time.monotonic() >= end)

    def _wait_until(self, is_over: Callable[[], bool]) -> None:
        """Waits also no longer than the run may; keeps spent.json up to date, because no worker does it now."""
        last_write = 0.0
        while not (is_over() or self._must_stop):
            if time.monotonic() - last_write > LOOK_SECONDS:
                self._spent().write(self._plan.run)
                last_write = time.monotonic()
                if self._is_budget_too_small():
                    return
            time.sleep(0.1)

    def _announce(self, hosts: Sequence[ReadyHost]) -> None:
        """Prints which ranks run where; on a single machine the workers print it themselves."""
        if self._is_this_machine_alone:
            return
        first_rank = 0
        if not hosts[0].shares_run_folder:
            own = [host.name for host in hosts if not host.shares_run_folder]
            keep = "keeps" if len(own) == 1 else "keep"
            self._say(
                f"{', '.join(own)} {keep} all checkpoints in {self._plan.run.path}; the log, the figures and the "
                "newest and best checkpoint are copied here."
            )
        for host in hosts:
            last_rank = first_rank + host.num_workers - 1
            ranks = f"rank {first_rank}" if last_rank == first_rank else f"ranks {first_rank} to {last_rank}"
            num_threads = threads_per_worker(host.num_cores, host.num_workers)
            self._say(
                f"{host.name}: {ranks}, {num_threads} of {host.num_cores} cores each, "
                f"network {host.interface} ({host.address})."
            )
            first_rank = last_rank + 1

    def _host_states(self, hosts: Sequence[ReadyHost]) -> tuple[HostStatus, ...]:
        if self._is_this_machine_alone:
            return ()
        working = {host.connection.host: host.num_workers for host in hosts}
        return tuple(
            HostStatus(host.name, working.get(host, 0), "working" if host in working else "lost")
            for host in self._plan.placement.hosts
        )

    @property
    def _is_this_machine_alone(self) -> bool:
        hosts = self._plan.placement.hosts
        return len(hosts) == 1 and hosts[0].is_this_machine


def _count_restarts(number: int) -> str:
    return f"{number} restarts in a row" if number != 1 else "1 restart"


def _show(host: str, line: str) -> None:
    """Prints a line of a worker on another machine."""
    is_json = os.environ.get(CONSOLE_VARIABLE) == "stderr"
    print(f"[{host}] {line}", file=sys.stderr if is_json else sys.stdout, flush=True)
