"""A run over many attempts, with real host programs and scripted workers: what is tried again, and what is told."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted_worker import Acts, read_starts, write_script

from dragoman.cluster.environment import CAUSE_VARIABLE, RESUMED_VARIABLE
from dragoman.launch.call_hosts import Wishes
from dragoman.launch.hosts import Host
from dragoman.launch.supervision import Plan, supervise
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder
from dragoman.run.status import RunStatus, StatusFile, read_status, request_stop

SECONDS = 60.0
FINISHING = ["step 9", "end steps"]
HEARD = "work 1.2"
"""Long enough for the launcher to hear of the step before."""
pytestmark = pytest.mark.usefixtures("fake_ssh", "scripted_worker")


@dataclass
class Stand:
    """A run folder and what the supervisor said about it."""

    run: RunFolder
    prepared: Path
    said: list[str] = field(default_factory=list)

    def supervise(
        self,
        *,
        hosts: tuple[Host, ...] | None = None,
        max_workers: int = 4,
        hang_timeout: float = SECONDS,
        max_restarts: int = 2,
        is_resumed: bool = False,
        **attempts_of_rank: list[Acts],
    ) -> str:
        write_script(self.run.path, **attempts_of_rank)
        wishes = Wishes(self.run, self.prepared, 0, host_timeout=15.0, is_resumed=is_resumed)
        hosts = hosts or (Host("localhost", len(attempts_of_rank)),)
        plan = Plan("scripted_worker", hosts, 1, max_workers, hang_timeout, max_restarts, wishes)
        with StatusFile(self.run, RunStatus.starting(100, len(attempts_of_rank))) as status:
            return supervise(plan, status, self.said.append)

    def environments(self, rank: int) -> list[dict[str, str]]:
        return [start["environment"] for start in read_starts(self.run.path, rank)]

    def are_workers_gone(self) -> bool:
        pids = [start["pid"] for rank in range(4) for start in read_starts(self.run.path, rank)]
        return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)

    def when_running(self, act: Callable[[], Any], step: int = 0) -> None:
        """Acts from another thread, once the run is under way and has come so far."""

        def wait() -> None:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                status = read_status(self.run)
                if status is not None and status.state == "running" and status.step >= step:
                    act()
                    return
                time.sleep(0.05)

        threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def stand(tmp_path, prepared, monkeypatch):
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    return Stand(RunFolder(tmp_path / "run"), prepared)


@pytest.fixture(autouse=True)
def _handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_a_killed_worker_is_started_again_with_the_others_and_the_cause_is_passed_on(stand):
    request_stop(stand.run)  # before the start it concerns nobody
    reason = stand.supervise(
        rank0=[["step 3", "meet", "work"], FINISHING], rank1=[["step 3", "meet", "signal SIGKILL"], FINISHING]
    )
    assert reason == "steps"
    assert not stand.run.stop_request.exists()
    cause = f"Worker 1 on {socket.gethostname()} was killed (SIGKILL), perhaps because the machine ran out of memory."
    assert stand.said == [f"{cause} Starting again from the newest checkpoint."]
    for rank in (0, 1):
        assert [environment[CAUSE_VARIABLE] for environment in stand.environments(rank)] == ["", cause]
    status = read_status(stand.run)
    assert (status.num_restarts, status.last_restart_cause, status.step) == (1, cause, 9)
    assert stand.are_workers_gone()


def test_cores_are_shared_and_a_persons_own_settings_kept(stand, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setattr("dragoman.launch.hosts.num_cores", lambda: 12)
    stand.supervise(rank0=[FINISHING], rank1=[FINISHING], is_resumed=True)
    (environment,) = stand.environments(1)
    assert environment["OMP_NUM_THREADS"] == "6"
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment["NCCL_SOCKET_IFNAME"] == "ib0"
    assert environment[RESUMED_VARIABLE] == "1"


@pytest.mark.slow
def test_restarts_that_get_further_are_not_counted_and_it_gives_up_after_those_that_do_not(stand):
    """Two attempts make new steps; the next two do not, and one of those was allowed."""
    further = [[f"step {step}", HEARD, "signal SIGKILL"] for step in (1, 2)]
    with pytest.raises(UserError) as told:
        stand.supervise(rank0=[*further, ["exit 3"], ["step 2", "exit 3"]], max_restarts=1)
    sentence = str(told.value)
    assert sentence.startswith(f"Worker 0 on {socket.gethostname()} ended with exit code 3 without saying why. ")
    assert "did not get it any further (tried: 1)" in sentence
    assert "--resume" in sentence
    assert len(stand.environments(0)) == 4
    status = read_status(stand.run)
    assert (status.state, status.message, status.num_restarts) == ("failed", sentence, 3)


def test_what_would_fail_again_is_told_at_once(stand):
    sentence = "There is no space left on the disk."
    with pytest.raises(UserError) as told:
        stand.supervise(rank0=[["meet", f"complain {sentence}"]], rank1=[["meet", "wait rank 0"]])
    assert str(told.value) == sentence
    assert len(stand.environments(0)) == 1
    assert stand.said == []
    assert read_status(stand.run).state == "failed"
    assert stand.are_workers_gone()


def test_a_request_to_stop_is_passed_on_and_then_taken_back(stand):
    stand.when_running(lambda: request_stop(stand.run), step=3)
    assert stand.supervise(rank0=[["step 3", "obey"]], rank1=[["step 3", "obey"]]) == "signal"
    assert not stand.run.stop_request.exists()
    assert stand.said == []


def test_one_signal_asks_for_an_orderly_end(stand, capsys):
    stand.when_running(lambda: os.kill(os.getpid(), signal.SIGTERM), step=3)
    assert stand.supervise(rank0=[["step 3", "obey"]]) == "signal"
    assert "Stopping after this step; once more to stop at once." in capsys.readouterr().err


@pytest.mark.slow
def test_a_second_signal_ends_at_once(stand, capsys):
    """The worker does not obey; the checkpoint it made before is what is left."""

    def signal_twice() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            time.sleep(0.3)

    stand.run.checkpoint(3).mkdir(parents=True)
    stand.when_running(signal_twice, step=3)
    assert stand.supervise(rank0=[["ignore SIGTERM", "step 3", "work"]]) == "signal"
    assert "Stopping at once." in capsys.readouterr().err
    assert stand.are_workers_gone()


def test_a_stop_before_anything_was_saved_is_said_to_be_one(stand):
    stand.when_running(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(UserError, match="Stopped before the run had anything to save"):
        stand.supervise(rank0=[["work"]])
    assert stand.are_workers_gone()


def test_a_worker_that_hangs_is_written_down_and_the_run_started_again(stand):
    reason = stand.supervise(
        rank0=[["step 3", "meet", "wait rank 1"], FINISHING],
        rank1=[["step 3", "meet", "signal SIGSTOP", "work"], FINISHING],
        hang_timeout=1.0,
    )
    assert reason == "steps"
    (report,) = stand.run.path.glob("hang-*.txt")
    (said,) = stand.said
    assert said.startswith(f"Rank 1 on {socket.gethostname()} hangs at step 3: computing a gradient for ")
    assert "is stopped" in said
    assert f"Its stack is in {report}." in said
    text = report.read_text(encoding="utf-8")
    assert text.index("== rank 1") < text.index("in main") < text.index("== rank 0")
    assert stand.are_workers_gone()


def test_a_worker_that_has_ended_is_not_taken_for_one_that_hangs_while_another_still_saves(stand):
    assert stand.supervise(rank0=[["step 9", "save 3", "end steps"]], rank1=[FINISHING], hang_timeout=1.0) == "steps"
    assert stand.said == []


def test_a_run_over_two_hosts_names_them_and_loses_no_rank(stand, capsys):
    ranks = {f"rank{rank}": [["print words of a worker", *FINISHING]] for rank in range(3)}
    assert stand.supervise(hosts=(Host("one", 2), Host("two", 1)), **ranks) == "steps"
    assert [sentence.partition(",")[0] for sentence in stand.said] == ["one: ranks 0 to 1", "two: rank 2"]
    places = [{name: environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} for rank in range(3)
              for environment in stand.environments(rank)]  # fmt: skip
    assert [tuple(place.values()) for place in places] == [("0", "0", "3"), ("1", "1", "3"), ("2", "0", "3")]
    assert [(host.name, host.workers) for host in read_status(stand.run).hosts] == [("one", 2), ("two", 1)]
    assert "[two] words of a worker" in capsys.readouterr().out


def test_a_host_that_is_not_there_at_the_start_is_an_error(stand):
    """A mistyped name must not train on half of the machines."""
    with pytest.raises(UserError, match="unreachable cannot be used: ssh failed"):
        stand.supervise(hosts=(Host("one", 1), Host("unreachable", 1)), rank0=[FINISHING], rank1=[FINISHING])
    assert stand.environments(0) == []


def test_more_workers_than_can_share_the_batch_are_refused(stand):
    with pytest.raises(UsageError, match="3 workers cannot share 2 virtual workers"):
        stand.supervise(hosts=(Host("one", 1), Host("two", 2)), max_workers=2, rank0=[FINISHING])
