"""A run over many attempts, with real host programs and scripted workers: what is tried again, what is reported."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from scripted_worker import Acts, read_starts, write_script

from dragoman.cluster.environment import IS_RESTART_RECORDED_VARIABLE, RESUMED_VARIABLE
from dragoman.launch import attempt as attempt_module
from dragoman.launch import host_connections, supervision
from dragoman.launch.connection import LAUNCHER_GONE, Connection
from dragoman.launch.hosts import Host, LaunchPlan
from dragoman.launch.supervision import StopSignals, supervise
from dragoman.run.budget import Budget, MeasuredSeconds, SpentRecord, read_spent
from dragoman.run.commands import resume_command
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder
from dragoman.run.status import RunStatus, StatusFile, read_status, request_stop

SECONDS = 60.0
FINISHING = ["end 9 steps"]
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Supervised:
    """A run folder and the messages of its supervisor."""

    run: RunFolder
    build_plan: Callable[..., LaunchPlan]
    said: list[str] = field(default_factory=list)

    def supervise(self, *hosts: Host, changes: dict[str, Any] | None = None, **attempts_of_rank: list[Acts]) -> str:
        """Runs scripted workers to the end, on this machine unless hosts are given; `changes` are those of the plan."""
        write_script(self.run.path, **attempts_of_rank)
        plan = self.build_plan(*hosts or (Host("localhost", len(attempts_of_rank)),), run=self.run, **changes or {})
        with StatusFile(self.run, RunStatus.starting(100, len(attempts_of_rank))) as status:
            return supervise(plan, status, self.said.append)

    def environments(self, rank: int) -> list[dict[str, str]]:
        return [start["environment"] for start in read_starts(self.run.path, rank)]

    def restarts(self) -> list[dict[str, Any]]:
        """Returns the records of restarts."""
        if not self.run.metrics.exists():
            return []
        records = [json.loads(line) for line in self.run.metrics.read_text(encoding="utf-8").splitlines()]
        return [record for record in records if record["kind"] == "restart"]

    def are_workers_gone(self) -> bool:
        pids = [start["pid"] for rank in range(4) for start in read_starts(self.run.path, rank)]
        return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)

    def when_running(self, act: Callable[[], Any], step: int = 0) -> None:
        """Calls `act` from another thread as soon as the run has reached a step."""

        def wait() -> None:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                status = read_status(self.run)
                if status is not None and status.state == "running" and status.step >= step:
                    act()
                    return
                time.sleep(0.02)

        threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def supervised(tmp_path, prepared, monkeypatch, build_plan, reused_hosts):
    """Supervises runs on host programs that are kept from test to test."""
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host_connections, "Connection", reused_hosts)
    monkeypatch.setattr(supervision, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(attempt_module, "TICK_SECONDS", 0.02)
    (tmp_path / "run").mkdir()
    return Supervised(RunFolder(tmp_path / "run"), lambda *hosts, **rest: build_plan(*hosts, prepared=prepared, **rest))


@pytest.fixture(autouse=True)
def _handlers_are_restored():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_killed_worker_is_restarted_with_the_others_and_the_cause_is_recorded(supervised):
    request_stop(supervised.run)  # a request from before the start does not count
    reason = supervised.supervise(
        rank0=[["step 3", "meet", "work"], FINISHING], rank1=[["step 3", "meet", "signal SIGKILL"], FINISHING]
    )
    assert reason == "steps"
    assert not supervised.run.stop_request.exists()
    cause = f"Worker 1 on {socket.gethostname()} was killed (SIGKILL), perhaps because the machine ran out of memory."
    assert supervised.said == [f"{cause} Starting again from the newest checkpoint."]
    for rank in (0, 1):
        recorded = [environment[IS_RESTART_RECORDED_VARIABLE] for environment in supervised.environments(rank)]
        assert recorded == ["", "1"]
    (record,) = supervised.restarts()
    assert (record["cause"], record["workers"], record["step"]) == (cause, 2, 0)
    assert record["time"] == pytest.approx(time.time(), abs=SECONDS)
    status = read_status(supervised.run)
    assert (status.num_restarts, status.last_restart_cause, status.step) == (1, cause, 9)
    assert supervised.are_workers_gone()


def test_cores_are_divided_and_a_persons_own_settings_kept(supervised, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setattr("dragoman.launch.hosts.num_physical_cores", lambda: 12)
    supervised.supervise(rank0=[FINISHING], rank1=[FINISHING], changes={"is_resumed": True})
    (environment,) = supervised.environments(1)
    assert environment["OMP_NUM_THREADS"] == "6"
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment["NCCL_SOCKET_IFNAME"] == "ib0"
    assert environment[RESUMED_VARIABLE] == "1"


def test_it_gives_up_after_restarts_without_progress_and_does_not_count_the_others(supervised):
    """Two attempts make new steps; the next two do not, and one of those was allowed."""
    with_progress = [[f"step {step}", "signal SIGKILL"] for step in (1, 2)]
    with pytest.raises(UserError) as raised:
        supervised.supervise(rank0=[*with_progress, ["exit 3"], ["step 2", "exit 3"]], changes={"max_restarts": 1})
    message = str(raised.value)
    assert message == (
        f"Worker 0 on {socket.gethostname()} ended with exit code 3 and gave no reason. 1 restart made no progress. "
        f"Nothing saved is lost. Continue on the same workers or hosts with: {resume_command(supervised.run.path)}"
    )
    assert len(supervised.environments(0)) == 4
    status = read_status(supervised.run)
    assert (status.state, status.message, status.num_restarts) == ("failed", message, 3)


def test_an_error_that_would_recur_ends_the_run_at_once(supervised):
    message = "There is no space left on the disk."
    with pytest.raises(UserError) as raised:
        supervised.supervise(rank0=[["meet", f"fail_plainly {message}"]], rank1=[["meet", "wait rank 0"]])
    assert str(raised.value) == message
    assert len(supervised.environments(0)) == 1
    assert supervised.said == []
    assert read_status(supervised.run).state == "failed"
    assert supervised.are_workers_gone()


@pytest.mark.parametrize(
    ("budget", "is_resumed", "reason"), [(90.0, True, "time"), (90.0, False, "steps"), (1e4, True, "steps")]
)
def test_workers_are_not_started_if_the_budget_is_too_small_for_a_start(supervised, budget, is_resumed, reason):
    """By what the last start took; a new run in an old folder has its whole budget."""
    SpentRecord(60.0, "earlier", 60.0, MeasuredSeconds(start=30.0, step=1.0, evaluation=1.0)).write(supervised.run)
    changes = {"budget": Budget(budget, "time"), "is_resumed": is_resumed}
    assert supervised.supervise(rank0=[FINISHING], changes=changes) == reason
    assert len(supervised.environments(0)) == (reason == "steps")
    assert [message.partition(":")[0] for message in supervised.said] == ["training.max_hours is used up"] * (
        reason == "time"
    )


class JumpingTime:
    """The real time until it is told to jump; then every sleep takes two seconds."""

    def __init__(self) -> None:
        self.is_jumping = False
        self.num_sleeps = 0
        self.time = time.time

    def monotonic(self) -> float:
        return time.monotonic() + 2.0 * self.num_sleeps

    def sleep(self, _seconds: float) -> None:
        self.num_sleeps += self.is_jumping
        time.sleep(0.001)


def test_waiting_for_hosts_ends_with_the_budget_and_is_counted_meanwhile(supervised, monkeypatch):
    """No worker runs then, so the launcher itself writes what is spent."""
    call, clock = host_connections.HostConnections.call, JumpingTime()

    def lose_after_the_first_attempt(connections: Any, hosts: Any) -> Any:
        if not supervised.environments(0):
            return call(connections, hosts)
        clock.is_jumping = True
        return [], dict.fromkeys(hosts, "It is lost.")

    write, written = SpentRecord.write, []

    def note(record: SpentRecord, run: RunFolder) -> None:
        written.append(record.seconds)
        write(record, run)

    monkeypatch.setattr(host_connections.HostConnections, "call", lose_after_the_first_attempt)
    monkeypatch.setattr(SpentRecord, "write", note)
    monkeypatch.setattr(supervision, "time", clock)
    changes = {"budget": Budget(200.0, "cost")}
    assert supervised.supervise(rank0=[["step 3", "signal SIGKILL"]], changes=changes) == "cost"
    assert len(written) > 3
    assert written == sorted(written)
    # A tenth of the budget is kept for an evaluation that was never measured, and a second for the end.
    assert 179.0 <= read_spent(supervised.run).seconds < 200.0
    assert "Waiting for hosts: 0 of at least 1 are up." in supervised.said
    assert supervised.said[-1].startswith("training.max_cost is used up: ")


def test_a_stop_request_reaches_the_workers_and_is_then_removed(supervised):
    supervised.when_running(lambda: request_stop(supervised.run), step=3)
    assert supervised.supervise(rank0=[["obey 3"]], rank1=[["obey 3"]]) == "signal"
    assert not supervised.run.stop_request.exists()
    assert supervised.said == []


def test_one_signal_ends_the_run_in_order(supervised, capsys):
    supervised.when_running(lambda: os.kill(os.getpid(), signal.SIGTERM), step=3)
    assert supervised.supervise(rank0=[["obey 3"]]) == "signal"
    assert "Stopping after this step; a second signal stops at once." in capsys.readouterr().err


def test_a_second_signal_ends_the_run_at_once(supervised, capsys):
    """The worker ignores the first; the checkpoint from before is left."""

    def signal_twice() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            time.sleep(0.1)  # two at once would be handled as one

    supervised.run.checkpoint(3).mkdir(parents=True)
    supervised.when_running(signal_twice, step=3)
    assert supervised.supervise(rank0=[["ignore SIGTERM", "step 3", "work"]]) == "signal"
    assert "Stopping at once." in capsys.readouterr().err
    assert supervised.are_workers_gone()


def test_a_stop_before_anything_was_saved_is_an_error(supervised):
    supervised.when_running(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(UserError, match="Stopped before the run had anything to save"):
        supervised.supervise(rank0=[["work"]])
    assert supervised.are_workers_gone()


def test_a_hang_is_reported_in_a_file_and_the_run_restarted(supervised):
    reason = supervised.supervise(
        rank0=[["step 3", "meet", "wait rank 1"], FINISHING],
        rank1=[["step 3", "meet", "signal SIGSTOP", "work"], FINISHING],
        changes={"hang_timeout": 1.5},
    )
    assert reason == "steps"
    (report,) = supervised.run.path.glob("hang-*.txt")
    (said,) = supervised.said
    assert said.startswith(f"Rank 1 on {socket.gethostname()} hangs at step 3: computing a gradient for ")
    assert "is stopped" in said
    assert f"Its stack is in {report}." in said
    text = report.read_text(encoding="utf-8")
    assert text.index("== rank 1") < text.index("in main") < text.index("== rank 0")
    assert supervised.are_workers_gone()


def test_a_worker_that_has_ended_does_not_hang_while_another_still_saves(supervised):
    rank0 = [["step 9", "save 2.2", "end 9 steps"]]
    assert supervised.supervise(rank0=rank0, rank1=[FINISHING], changes={"hang_timeout": 1.5}) == "steps"
    assert supervised.said == []


def test_a_run_over_two_hosts_names_them_and_ends_their_programs(supervised, capsys, monkeypatch):
    connections = []

    def connect(*arguments: Any) -> Connection:
        connections.append(Connection(*arguments))
        return connections[-1]

    monkeypatch.setattr(host_connections, "Connection", connect)
    ranks = {f"rank{rank}": [["print text of a worker", *FINISHING]] for rank in range(3)}
    assert supervised.supervise(Host("one", 2), Host("two", 1), **ranks) == "steps"
    assert [message.partition(",")[0] for message in supervised.said] == ["one: ranks 0 to 1", "two: rank 2"]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    places = [tuple(start[name] for name in names) for rank in range(3) for start in supervised.environments(rank)]
    assert places == [("0", "0", "3"), ("1", "1", "3"), ("2", "0", "3")]
    assert [(host.name, host.workers) for host in read_status(supervised.run).hosts] == [("one", 2), ("two", 1)]
    assert [connection._process.poll() for connection in connections] == [LAUNCHER_GONE] * 2
    for connection in connections:
        connection._output_thread.join(SECONDS)
    assert "[two] text of a worker" in capsys.readouterr().out


def test_a_host_that_is_not_up_at_the_start_is_an_error(supervised):
    """A mistyped name must not train on half of the machines."""
    with pytest.raises(UserError, match="unreachable cannot be used: ssh failed"):
        supervised.supervise(Host("one", 1), Host("unreachable", 1), rank0=[FINISHING], rank1=[FINISHING])
    assert supervised.environments(0) == []


def test_more_workers_than_virtual_workers_are_refused(supervised):
    with pytest.raises(UsageError, match="3 workers cannot share 2 virtual workers"):
        supervised.supervise(Host("one", 1), Host("two", 2), changes={"max_workers": 2}, rank0=[FINISHING])


# Restarts


def test_every_restart_is_recorded_even_if_the_attempt_ends_before_its_first_step(supervised):
    dying = ["exit 3"]
    supervised.run.checkpoint(7).mkdir(parents=True)
    assert supervised.supervise(rank0=[["step 8", *dying], dying, ["load 0.1", *dying], FINISHING]) == "steps"
    restarts = supervised.restarts()
    assert len(restarts) == read_status(supervised.run).num_restarts == 3
    assert [record["step"] for record in restarts] == [7] * 3  # where it continues
    cause = f"Worker 0 on {socket.gethostname()} ended with exit code 3 and gave no reason."
    assert {record["cause"] for record in restarts} == {cause}


@pytest.mark.slow
def test_a_host_whose_connection_closed_is_connected_again_at_once(supervised, monkeypatch):
    """It is not looked for as a lost one, and its last program, which holds its folder, has ended."""
    opened: list[Connection] = []

    def connect(*arguments: Any) -> Connection:
        opened.append(Connection(*arguments))
        return opened[-1]

    monkeypatch.setattr(host_connections, "Connection", connect)
    supervised.when_running(lambda: opened[0]._process.kill(), step=3)
    assert supervised.supervise(Host("one", 1), rank0=[["step 3", "work"], FINISHING]) == "steps"
    assert len(opened) == 2
    (record,) = supervised.restarts()
    assert record["cause"].startswith("The connection to one ended: its program ended with code -9")
    assert not any("Waiting for hosts" in message for message in supervised.said)
    assert supervised.are_workers_gone()


# Stops


def stop_after(seconds: float) -> float:
    """Sends this process a stop signal after some seconds; returns when, by time.monotonic()."""
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    return time.monotonic() + seconds


def test_a_stop_during_the_checks_of_hosts_ends_within_seconds(supervised, monkeypatch):
    monkeypatch.setattr(host_connections, "Connection", Connection)
    stopped_at = stop_after(0.5)
    with pytest.raises(UserError, match="Stopped before the run had anything to save"):
        supervised.supervise(Host("frozen", 1), rank0=[FINISHING])
    assert time.monotonic() - stopped_at < 20  # far below the time a frozen host would be waited for
    assert supervised.environments(0) == []


@pytest.mark.parametrize(("before", "num_received"), [(signal.SIG_IGN, 0), (signal.SIG_DFL, 1)])
def test_a_lost_terminal_stops_a_run_unless_nohup_ignores_it(before, num_received):
    former = signal.signal(signal.SIGHUP, before)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.num_received == num_received
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_stop_while_workers_hang_in_their_start_ends_them(supervised, monkeypatch):
    assert attempt_module.STOP_SECONDS + attempt_module.REPEAT_SECONDS <= 8
    monkeypatch.setattr(attempt_module, "STOP_SECONDS", 0.5)
    begin = time.monotonic()
    supervised.when_running(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(UserError, match="Stopped before the run had anything to save"):
        supervised.supervise(rank0=[["load 100"]], rank1=[["wait rank 0"]])
    assert time.monotonic() - begin < SECONDS / 2
    assert supervised.are_workers_gone()


def test_a_stop_while_workers_wait_for_each_other_in_vain_ends_them(supervised, monkeypatch):
    """As after a link that broke without a word."""
    monkeypatch.setattr(attempt_module, "STOP_SECONDS", 0.5)
    supervised.run.checkpoint(3).mkdir(parents=True)
    supervised.when_running(lambda: os.kill(os.getpid(), signal.SIGTERM), step=3)
    waiting = [["ignore SIGTERM", "step 3", "wait the gradients"]]
    assert supervised.supervise(rank0=waiting, rank1=waiting) == "signal"
    assert supervised.are_workers_gone()


def test_a_stop_while_waiting_for_hosts_ends_the_run(supervised, monkeypatch):
    call = host_connections.HostConnections.call

    def lose_after_the_first_attempt(connections: Any, hosts: Any) -> Any:
        if not supervised.environments(0):
            return call(connections, hosts)
        stop_after(0.3)
        return [], dict.fromkeys(hosts, "It is lost.")

    monkeypatch.setattr(host_connections.HostConnections, "call", lose_after_the_first_attempt)
    assert supervised.supervise(rank0=[["step 3", "signal SIGKILL"]]) == "signal"
    assert "Waiting for hosts: 0 of at least 1 are up." in supervised.said
